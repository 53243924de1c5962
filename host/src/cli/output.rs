//! What is written where: results to standard output, everything about the command itself to standard error.
//!
//! Names, messages and parameters come from plugins, upstreams and bots. A terminal would obey control characters in
//! them, so none is ever written as it is. Colours are for terminals only, and never where `NO_COLOR` is set.

use std::fmt::Write as _;
use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use owo_colors::{OwoColorize, Stream};
use serde_json::Value;

use super::failure::Failure;

/// Writes lines to standard output.
pub(super) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", text.as_ref()).and_then(|()| stdout.flush()).map_err(|error| Failure::of_output(&error))
}

/// Writes `value` to standard output, for programs.
pub(super) fn json(value: &Value) -> Result<(), Failure> {
    line(json_text(value))
}

/// `value` as JSON in which no character can drive a terminal.
pub(super) fn json_text(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).expect("a JSON value is JSON");
    // serde_json escapes what lies below the space; the rest occurs only inside of strings.
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_command(character) && character != '\n' {
            write!(safe, "\\u{:04x}", character as u32).expect("a String takes everything");
        } else {
            safe.push(character);
        }
    }
    safe
}

/// A table for people: no borders, as wide as the terminal, one line a row where there is none. A line feed in a cell
/// would pass for the start of another row.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>());
    }
    line(table.trim_fmt())
}

/// Names and what they stand for, one a line.
pub(super) fn fields(fields: &[(&str, String)]) -> Result<(), Failure> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 2;
    for (name, value) in fields {
        let value = plain(value).replace('\n', &format!("\n{:width$}", ""));
        line(format!("{name:width$}{value}"))?;
    }
    Ok(())
}

/// Something about the command, on standard error.
pub(super) fn note(text: &str) {
    // There is nowhere left to say that standard error is closed.
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// An error, on standard error.
pub(super) fn error(message: &str) {
    note(&format!("{} {}", "error:".if_supports_color(Stream::Stderr, |text| text.red()), plain(message)));
}

/// A warning, on standard error.
pub(super) fn warning(message: &str) {
    note(&format!("{} {}", "warning:".if_supports_color(Stream::Stderr, |text| text.yellow()), plain(message)));
}

/// What to do, on standard error.
pub(super) fn hint(text: &str) {
    note(&format!("{} {}", "hint:".if_supports_color(Stream::Stderr, |text| text.cyan()), plain(text)));
}

/// Whether standard error takes colours.
pub(super) fn is_coloured() -> bool {
    "x".if_supports_color(Stream::Stderr, |text| text.red()).to_string() != "x"
}

/// `text` without anything that a terminal would obey. Lines stay lines.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|character| if is_command(character) && character != '\n' { '\u{fffd}' } else { character })
        .collect()
}

/// The same on one line.
fn one_line(text: &str) -> String {
    plain(text).replace(['\n', '\u{2028}', '\u{2029}'], "\u{fffd}")
}

/// Control characters, and those that make text read in another order than it is written.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

/// A value in a cell: texts without quotes, nothing for null.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_character_of_others_drives_the_terminal() {
        assert_eq!(
            plain("a\u{1b}[2Jb\rc\u{9b}d\u{202e}e\nf\u{7}"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e\nf\u{fffd}"
        );
        assert_eq!(one_line("a\nb\r\nc\u{2028}d"), "a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}d");
        let value = json!({ "a\u{1b}": "\u{9b}\u{202e}\u{7f}ü" });
        let text = json_text(&value);
        assert!(!text.chars().any(|character| is_command(character) && character != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn cells_read_like_text() {
        assert_eq!(cell(&json!(["a", 1, null])), "a, 1, ");
        assert_eq!(cell(&json!({"a": 1})), r#"{"a":1}"#);
    }
}
