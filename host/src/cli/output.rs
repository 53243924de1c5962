//! Output of commands. Results go to standard output, and messages about the command go to standard error.
//!
//! Names, messages and parameters come from plugins, upstreams and bots. A terminal would execute control characters in
//! these texts, so every control character is replaced or escaped. Colours are used only on a terminal, and only if
//! `NO_COLOR` is not set.

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use monstrum_types::is_invisible;
use owo_colors::{OwoColorize, Stream};
use serde_json::{Value, json};

use super::failure::Failure;

/// Writes lines to standard output.
pub(super) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", text.as_ref()).and_then(|()| stdout.flush()).map_err(|error| Failure::of_output(&error))
}

/// Writes `value` as JSON to standard output.
pub(super) fn json(value: &Value) -> Result<(), Failure> {
    line(json_text(value))
}

/// Writes `value` as JSON on one line of standard output.
pub(super) fn json_line(value: &Value) -> Result<(), Failure> {
    line(safe_json(&value.to_string()))
}

/// Formats `value` as JSON without characters that control a terminal.
pub(super) fn json_text(value: &Value) -> String {
    safe_json(&serde_json::to_string_pretty(value).expect("a JSON value is JSON"))
}

/// Escapes the characters of a JSON text that control a terminal.
fn safe_json(text: &str) -> String {
    // serde_json escapes characters below the space. Other control characters occur only in strings, where they can be
    // escaped.
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_command(character) && character != '\n' {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(safe, "\\u{unit:04x}").expect("writing to a String cannot fail");
            }
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Writes a table that has no borders and is as wide as the terminal. If standard output is not a terminal, each row is
/// one line. Line feeds in cells are replaced, because text after a line feed would look like another row.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>());
    }
    line(table.trim_fmt())
}

/// Writes all items of a list as JSON, or as a table of these fields. `empty` is the note about a list without items.
pub(super) fn list<const N: usize>(
    items: &[Value],
    is_json: bool,
    empty: &str,
    header: [&str; N],
    fields: [&str; N],
) -> Result<(), Failure> {
    if is_json {
        return json(&json!({ "items": items, "next_cursor": null }));
    }
    if items.is_empty() {
        note(empty);
        return Ok(());
    }
    table(&header, items.iter().map(|item| fields.map(|field| cell(&item[field])).to_vec()).collect())
}

/// Writes the result of a command without an answer: as JSON to standard output, or as a note to standard error.
pub(super) fn done(is_json: bool, result: &Value, text: &str) -> Result<(), Failure> {
    if is_json {
        return json(result);
    }
    note(&plain(text));
    Ok(())
}

/// Writes the fields of an answer that are not null, under these names.
pub(super) fn given_fields(answer: &Value, names: &[(&str, &str)]) -> Result<(), Failure> {
    let given = names.iter().filter(|(_, field)| !answer[*field].is_null());
    fields(&given.map(|(name, field)| (*name, cell(&answer[*field]))).collect::<Vec<_>>())
}

/// Writes names and their values, one on each line.
pub(super) fn fields(fields: &[(&str, String)]) -> Result<(), Failure> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 2;
    for (name, value) in fields {
        let value = plain(value).replace('\n', &format!("\n{:width$}", ""));
        line(format!("{name:width$}{value}"))?;
    }
    Ok(())
}

/// Writes a message about the command to standard error.
pub(super) fn note(text: &str) {
    // If standard error is closed, the error cannot be reported anywhere.
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Writes a question to standard error, without a line feed. The answer follows on the same line.
pub(super) fn prompt(text: &str) {
    let mut stderr = std::io::stderr().lock();
    drop(write!(stderr, "{text}").and_then(|()| stderr.flush()));
}

/// Asks for confirmation on the terminal. Without a terminal, fails with the advice to `check` first and then to use
/// `--yes`. `undone` says what has not happened if the answer is not yes.
pub(super) fn confirm(question: &str, check: &str, undone: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        let message = "cannot ask for confirmation without a terminal";
        return Err(Failure::new(message, format!("{check}, then run the command with --yes")));
    }
    prompt(&format!("{} [y/N] ", plain(question)));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::from_error(&error, "run the command with --yes"))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(undone, "answer `y` to confirm"))
}

/// Writes an error to standard error.
pub(super) fn error(message: &str) {
    note(&format!("{} {}", "error:".if_supports_color(Stream::Stderr, |text| text.red()), plain(message)));
}

/// Writes a warning to standard error.
pub(super) fn warning(message: &str) {
    note(&format!("{} {}", "warning:".if_supports_color(Stream::Stderr, |text| text.yellow()), plain(message)));
}

/// Writes a hint to standard error.
pub(super) fn hint(text: &str) {
    note(&format!("{} {}", "hint:".if_supports_color(Stream::Stderr, |text| text.cyan()), plain(text)));
}

/// Creates a progress bar on standard error, which is shown only on a terminal. Without a length, it is a spinner.
pub(super) fn progress(length: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr()).with_style(style)
}

/// Returns whether standard error supports colours.
pub(super) fn is_coloured() -> bool {
    "x".if_supports_color(Stream::Stderr, |text| text.red()).to_string() != "x"
}

/// Replaces characters that control a terminal, except line feeds.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|character| if is_command(character) && character != '\n' { '\u{fffd}' } else { character })
        .collect()
}

/// Replaces characters that control a terminal, and line breaks.
fn one_line(text: &str) -> String {
    plain(text).replace('\n', "\u{fffd}")
}

/// Returns whether a character controls a terminal, or hides or reorders text. The joiners U+200C and U+200D may stay,
/// because words and emojis contain them.
fn is_command(character: char) -> bool {
    is_invisible(character) && !matches!(character, '\u{200c}' | '\u{200d}')
}

/// Formats a value for a cell: a string without quotes, and null as an empty text.
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
    use super::*;

    #[test]
    fn no_character_of_others_drives_the_terminal() {
        assert_eq!(
            plain("a\u{1b}[2Jb\rc\u{9b}d\u{202e}e\nf\u{7}"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e\nf\u{fffd}"
        );
        assert_eq!(one_line("a\nb\r\nc\u{2028}d"), "a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}d");
        assert_eq!(plain("a\u{200b}b\u{61c}c\u{2028}👩\u{200d}💻"), "a\u{fffd}b\u{fffd}c\u{fffd}👩\u{200d}💻");
        let value = json!({ "a\u{1b}": "\u{9b}\u{202e}\u{7f}\u{e0041}ü" });
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
