//! Reads YAML or JSON text into a tree of values that know their places.
//!
//! The tree is built from the events of the parser, so limits apply while the text is read: an alias is refused where it
//! stands, and nesting ends at the limit. Scalars have the types of the core schema of YAML 1.2.

use std::borrow::Cow;
use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use crate::fault::{At, Fault, Spot};

/// Maximum size of a definition in bytes. Two hundred steps with long instructions have less.
pub const DEFINITION_BYTES_MAX: usize = 256 * 1024;
/// Maximum nesting depth. Blocks need four levels each and at most eight are nested; the rest is for parameters.
pub(crate) const DEFINITION_DEPTH_MAX: usize = 64;
/// Maximum number of values. Two hundred steps with a hundred values each have as many.
const VALUES_MAX: usize = 20_000;

/// Maximum number of marks that begin or separate values. The scanner keeps a whole flow collection in memory, so this is
/// counted before it starts.
const MARKS_MAX: usize = 50_000;
/// Maximum length of a key in bytes. The names of parameters and properties are shorter, and paths repeat keys.
const KEY_BYTES_MAX: usize = 256;

/// A value with the place of its first character.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) data: Data,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

#[derive(Debug)]
pub(crate) enum Data {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) node: Node,
}

impl Node {
    pub(crate) fn spot(&self, at: At<'_>) -> Spot {
        Spot { path: at.pointer().into(), line: self.line, column: self.column }
    }

    /// Returns the value without places.
    pub(crate) fn to_json(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::List(items) => items.iter().map(Node::to_json).collect(),
            Data::Map(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Returns the place of the value at a JSON pointer, or of the nearest value around it that exists.
    pub(crate) fn locate(&self, pointer: &str) -> (usize, usize) {
        let mut node = self;
        for step in pointer.split('/').skip(1) {
            let next = match &node.data {
                Data::Scalar(_) => None,
                Data::List(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
                Data::Map(entries) => {
                    let key = step.replace("~1", "/").replace("~0", "~");
                    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
                }
            };
            let Some(next) = next else { break };
            node = next;
        }
        (node.line, node.column)
    }

    pub(crate) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Scalar(Value::Null) => "nothing",
            Data::Scalar(Value::Bool(_)) => "a boolean",
            Data::Scalar(Value::Number(_)) => "a number",
            Data::Scalar(_) => "a string",
            Data::List(_) => "a list",
            Data::Map(_) => "a map",
        }
    }
}

/// Reads the only document of `text`.
pub(crate) fn read(text: &str) -> Result<Node, Fault> {
    if text.len() > DEFINITION_BYTES_MAX {
        let start = Spot { path: "".into(), line: 1, column: 1 };
        return Err(start.fault(format!("the definition has more than {} KiB", DEFINITION_BYTES_MAX / 1024)));
    }
    if text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{' | b'\n')).count() > MARKS_MAX {
        let start = Spot { path: "".into(), line: 1, column: 1 };
        return Err(start.fault(format!("the definition has more than {MARKS_MAX} lines, commas and brackets")));
    }
    let mut reader = Reader { parser: Parser::new_from_str(text), values: 0, last: (1, 1) };
    reader.document()
}

struct Reader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    values: usize,
    /// The place of the last event, for the end of the text.
    last: (usize, usize),
}

impl<'t> Reader<'t> {
    fn document(&mut self) -> Result<Node, Fault> {
        let root = loop {
            match self.next(At::Root)? {
                (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
                (Event::StreamEnd | Event::DocumentEnd, span) => {
                    return Err(fault(&span, At::Root, "the definition is empty"));
                }
                (event, span) => break self.node(event, &span, At::Root, 0)?,
            }
        };
        loop {
            match self.next(At::Root)? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentEnd | Event::Nothing, _) => {}
                (_, span) => {
                    return Err(fault(&span, At::Root, "a definition is one document, without a second `---`"));
                }
            }
        }
    }

    fn next(&mut self, at: At<'_>) -> Result<(Event<'t>, Span), Fault> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.last = (span.start.line(), span.start.col() + 1);
                Ok((event, span))
            }
            Some(Err(error)) => {
                let (line, column) = (error.marker().line(), error.marker().col() + 1);
                let place = Spot { path: at.pointer().into(), line, column };
                Err(place.fault(format!("not valid YAML: {}", error.info())))
            }
            None => {
                let (line, column) = self.last;
                Err(Spot { path: at.pointer().into(), line, column }.fault("not valid YAML: the text ends too early"))
            }
        }
    }

    fn node(&mut self, event: Event<'t>, span: &Span, at: At<'_>, depth: usize) -> Result<Node, Fault> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(fault(span, at, &format!("the definition has more than {VALUES_MAX} values")));
        }
        if depth >= DEFINITION_DEPTH_MAX {
            return Err(fault(span, at, &format!("nested deeper than {DEFINITION_DEPTH_MAX} levels")));
        }
        let data = match event {
            Event::Scalar(text, style, anchor, tag) => {
                plain(span, at, anchor, tag.as_deref())?;
                Data::Scalar(scalar(text, style).map_err(|message| fault(span, at, message))?)
            }
            Event::SequenceStart(anchor, tag) => {
                plain(span, at, anchor, tag.as_deref())?;
                Data::List(self.list(at, depth)?)
            }
            Event::MappingStart(anchor, tag) => {
                plain(span, at, anchor, tag.as_deref())?;
                Data::Map(self.map(at, depth)?)
            }
            Event::Alias(_) => {
                return Err(fault(span, at, "aliases are not supported").hint("write the value again"));
            }
            _ => return Err(fault(span, at, "not valid YAML: expected a value")),
        };
        Ok(Node { data, line: span.start.line(), column: span.start.col() + 1 })
    }

    fn list(&mut self, at: At<'_>, depth: usize) -> Result<Vec<Node>, Fault> {
        let mut items = Vec::new();
        loop {
            let here = At::Index(&at, items.len());
            match self.next(here)? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, &span, here, depth + 1)?),
            }
        }
    }

    fn map(&mut self, at: At<'_>, depth: usize) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let (key, span) = match self.next(at)? {
                (Event::MappingEnd, _) => return Ok(entries),
                (Event::Scalar(text, style, anchor, tag), span) => {
                    plain(&span, at, anchor, tag.as_deref())?;
                    match scalar(text, style) {
                        Ok(Value::String(key)) => (key, span),
                        _ => return Err(fault(&span, at, "a key must be a string").hint("put the key in quotes")),
                    }
                }
                (Event::Alias(_), span) => return Err(fault(&span, at, "aliases are not supported")),
                (_, span) => return Err(fault(&span, at, "a key must be a string")),
            };
            if key.len() > KEY_BYTES_MAX {
                return Err(fault(&span, at, &format!("a key has at most {KEY_BYTES_MAX} bytes")));
            }
            let here = At::Key(&at, &key);
            if !seen.insert(key.clone()) {
                return Err(fault(&span, here, "duplicate key"));
            }
            let (event, value_span) = self.next(here)?;
            let node = self.node(event, &value_span, here, depth + 1)?;
            let (line, column) = (span.start.line(), span.start.col() + 1);
            entries.push(Entry { key, line, column, node });
        }
    }
}

fn fault(span: &Span, at: At<'_>, message: &str) -> Fault {
    Spot { path: at.pointer().into(), line: span.start.line(), column: span.start.col() + 1 }.fault(message)
}

/// Refuses anchors and tags.
fn plain(span: &Span, at: At<'_>, anchor: usize, tag: Option<&Tag>) -> Result<(), Fault> {
    if anchor != 0 {
        return Err(fault(span, at, "anchors are not supported").hint("remove the word that starts with `&`"));
    }
    // The parser reports `!` of a quoted string as a tag without a name.
    if tag.is_some() {
        return Err(fault(span, at, "tags are not supported").hint("remove the word that starts with `!`"));
    }
    Ok(())
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Result<Value, &'static str> {
    if style != ScalarStyle::Plain {
        return Ok(Value::String(text.into_owned()));
    }
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    match number(&text)? {
        Some(number) => Ok(Value::Number(number)),
        None => Ok(Value::String(text.into_owned())),
    }
}

fn number(text: &str) -> Result<Option<Number>, &'static str> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).map_err(|_| "the number is too large");
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| all(digits, |c| c.is_ascii_hexdigit())) {
        return radix(digits, 16).map(|value| Some(Number::from(value)));
    }
    if let Some(digits) = text.strip_prefix("0o").filter(|digits| all(digits, |c| matches!(c, '0'..='7'))) {
        return radix(digits, 8).map(|value| Some(Number::from(value)));
    }
    if all(unsigned, |c| c.is_ascii_digit()) {
        let signed = text.strip_prefix('+').unwrap_or(text);
        let whole = signed.parse::<i64>().map(Number::from).or_else(|_| signed.parse::<u64>().map(Number::from));
        return whole.map(Some).map_err(|_| "the number is too large");
    }
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err("expected a finite number");
    }
    let is_decimal = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.contains(|c: char| c.is_ascii_digit())
        && all(unsigned, |c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    match text.parse::<f64>() {
        Ok(value) if is_decimal => Number::from_f64(value).map(Some).ok_or("expected a finite number"),
        _ => Ok(None),
    }
}

fn all(text: &str, is_allowed: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_have_the_types_of_the_core_schema() {
        let text = "[1, -2, 0x1f, 0o17, 1.5, 1e3, .5, true, no, null, ~, '1', \"a\\tb\", 1.2.3, 10s, -x, +1, 1e, e1]";
        let node = read(text).unwrap();
        let expected = json!([
            1, -2, 31, 15, 1.5, 1000.0, 0.5, true, "no", null, null, "1", "a\tb", "1.2.3", "10s", "-x", 1, "1e", "e1"
        ]);
        assert_eq!(node.to_json(), expected);
    }

    #[test]
    fn json_is_read_as_well() {
        let text = "{\n\t\"a\": [1, {\"b\": \"\\u00e4\\/\"}],\n\t\"c\": {}\n}\n";
        assert_eq!(read(text).unwrap().to_json(), json!({"a": [1, {"b": "ä/"}], "c": {}}));
    }

    #[test]
    fn values_know_their_places() {
        let node = read("a: 1\nb:\n  - x\n  - { c: y }\n").unwrap();
        let Data::Map(entries) = &node.data else { panic!() };
        let Data::List(items) = &entries[1].node.data else { panic!() };
        let Data::Map(inner) = &items[1].data else { panic!() };
        assert_eq!((entries[1].line, entries[1].column, entries[0].node.column), (2, 1, 4));
        assert_eq!((inner[0].line, inner[0].column, inner[0].node.column), (4, 7, 10));
    }

    #[test]
    fn what_is_not_one_plain_document_is_refused() {
        for (text, message) in [
            ("", "the definition is empty"),
            ("# nothing\n", "the definition is empty"),
            ("a: 1\n---\nb: 2\n", "one document"),
            ("a: &x 1\nb: *x\n", "anchors are not supported"),
            ("a: *x\n", "not valid YAML"),
            ("a: !!str 1\n", "tags are not supported"),
            ("a: !x 1\n", "tags are not supported"),
            ("a: 1\na: 2\n", "duplicate key"),
            ("1: a\n", "a key must be a string"),
            ("[a]: b\n", "a key must be a string"),
            ("a: 99999999999999999999\n", "too large"),
            ("a: .inf\n", "finite"),
            ("a: [\n", "not valid YAML"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message.contains(message), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_limits_are_reached() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(DEFINITION_DEPTH_MAX)).is_ok());
        assert!(read(&nested(DEFINITION_DEPTH_MAX + 1)).unwrap_err().message.contains("deeper"));
        assert!(read(&format!("[{}]", "1,".repeat(VALUES_MAX - 1))).is_ok());
        assert!(read(&format!("[{}]", "1,".repeat(VALUES_MAX))).unwrap_err().message.contains("values"));
        assert!(read(&format!("{}: 1", "k".repeat(KEY_BYTES_MAX))).is_ok());
        assert!(read(&format!("{}: 1", "k".repeat(KEY_BYTES_MAX + 1))).unwrap_err().message.contains("256 bytes"));
        assert!(read(&"a".repeat(DEFINITION_BYTES_MAX)).is_ok());
        assert!(read(&"a".repeat(DEFINITION_BYTES_MAX + 1)).unwrap_err().message.contains("KiB"));
    }
}
