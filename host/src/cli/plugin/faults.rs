//! Shows errors in an author's files with the source line.

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report};
use monstrum_manifest::ManifestError;

use super::super::output;

/// The maximum length of a displayed source line. A longer line is not readable on a screen.
const LINE_CHARS_MAX: usize = 300;

/// Creates an error that concerns a whole file, or a field whose line is unknown.
pub(super) fn fault(file: String, field: String, message: String) -> ManifestError {
    ManifestError { file, line: None, column: None, field, message }
}

/// Shows an error, with its line of `source` if the line is known.
pub(super) fn show(fault: &ManifestError, source: &str) {
    match snippet(fault, source) {
        Some(text) => output::note(text.trim_end()),
        None => output::error(&fault.to_string()),
    }
}

fn snippet(fault: &ManifestError, source: &str) -> Option<String> {
    let (line, column) = (fault.line?, fault.column?);
    // Characters are replaced one by one, so lines and columns do not change.
    let source = output::plain(source);
    let start: usize = source.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let text = source[start..].lines().next()?;
    if text.chars().count() > LINE_CHARS_MAX {
        return None;
    }
    let offset = text.char_indices().nth(column.checked_sub(1)?).map_or(text.len(), |(at, _)| at);
    let length = text[offset..].trim_end().len();
    let message = match fault.field.as_str() {
        "" => output::plain(&fault.message),
        field => output::plain(&format!("{field}: {}", fault.message)),
    };
    let span = LabeledSpan::underline((start + offset, length));
    let report = Report::new(MietteDiagnostic::new(message).with_label(span))
        .with_source_code(NamedSource::new(output::plain(&fault.file), source.clone()));
    let theme = if output::is_coloured() { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let mut rendered = String::new();
    GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .render_report(&mut rendered, report.as_ref())
        .ok()
        .map(|()| rendered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_shown_with_its_line() {
        let source = "name: github\nversion: 1\n";
        let fault = ManifestError {
            file: "github/monstrum.yaml".to_owned(),
            line: Some(2),
            column: Some(10),
            field: "version".to_owned(),
            message: "expected a semantic version such as 1.0.0".to_owned(),
        };
        let text = snippet(&fault, source).unwrap();
        for part in ["github/monstrum.yaml:2:10", "version: expected a semantic version", "version: 1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn positions_outside_of_the_text_are_no_fault_of_ours() {
        let mut fault = fault("f".to_owned(), String::new(), "m".to_owned());
        for (line, column) in [(0, 1), (1, 0), (9, 9), (1, 900), (2, 1)] {
            (fault.line, fault.column) = (Some(line), Some(column));
            snippet(&fault, "ä: \u{1b}[2J\n");
        }
    }
}
