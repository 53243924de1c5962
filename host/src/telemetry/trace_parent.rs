//! The trace of a client in which a call belongs (W3C Trace Context, `traceparent`).

use tracing::Span;

/// The trace of a client, and the client's span in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// 32 hex digits.
    trace: String,
    /// 16 hex digits.
    parent: String,
    /// Whether the client records the trace.
    is_sampled: bool,
}

impl TraceParent {
    /// Parses a value of `traceparent`. The standard asks servers to ignore a value that is not valid.
    pub fn parse(text: &str) -> Option<TraceParent> {
        let mut parts = text.splitn(5, '-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
        // Later versions may append parts.
        let is_complete = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        let is_valid = is_complete && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
        if !is_valid || is_zero(trace) || is_zero(parent) {
            return None;
        }
        let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        Some(TraceParent { trace: trace.to_owned(), parent: parent.to_owned(), is_sampled })
    }

    /// Returns a span of this host in the trace. Log lines within the span name the trace.
    pub fn span(&self) -> Span {
        let span = tracing::info_span!("trace", trace.id = self.trace, trace.parent = self.parent);
        #[cfg(feature = "otel")]
        super::otel::continue_trace(&span, &self.trace, &self.parent, self.is_sampled);
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    #[test]
    fn a_valid_value_names_a_trace_and_a_span() {
        for (text, is_sampled) in [
            (format!("00-{TRACE}-{PARENT}-01"), true),
            (format!("00-{TRACE}-{PARENT}-00"), false),
            (format!("cc-{TRACE}-{PARENT}-03-later-parts"), true),
        ] {
            let expected = TraceParent { trace: TRACE.to_owned(), parent: PARENT.to_owned(), is_sampled };
            assert_eq!(TraceParent::parse(&text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_values_are_ignored() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-01-more"),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}\n-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-1"),
        ] {
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }
}
