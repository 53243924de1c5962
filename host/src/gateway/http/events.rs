//! Server-sent events.

use http::{HeaderMap, header};

/// Returns whether the client accepts server-sent events.
pub(crate) fn wants_events(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .any(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream")))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn events_are_for_who_asks_for_them() {
        let wants = |accept: &'static str| {
            wants_events(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert!(wants("text/event-stream") && wants("application/json;q=0.5, Text/Event-Stream;q=1"));
        assert!(!wants("*/*") && !wants("application/json") && !wants("text/event-streams"));
        assert!(!wants_events(&HeaderMap::new()));
    }
}
