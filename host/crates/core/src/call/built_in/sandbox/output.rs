//! Shortens the output of a command for a model. The shortened text starts with a line that states the size of the
//! removed part. The end of the output follows, starting at a line boundary.

use monstrum_sandbox::{ExecOutput, Output};

/// The maximum size of both streams together. A longer answer would leave a model too little room in its context.
pub(super) const TEXT_BYTES_MAX: usize = 50_000;
/// The maximum number of lines of both streams together.
pub(super) const LINES_MAX: usize = 2_000;
/// The maximum size of the line that states the size of the removed part.
const MARKER_BYTES_MAX: usize = 400;
/// The maximum length of the provider's error message in the line that replaces the removed part.
const REASON_CHARS_MAX: usize = 60;

/// The location of the complete output.
pub(super) enum Kept {
    /// A file in the sandbox, by its path.
    In(String),
    /// The complete output was not kept. The text is the reason.
    Nowhere(String),
}

/// Returns whether the output exceeds a limit for models, or the provider has not captured the complete output.
pub(super) fn is_too_long(output: &ExecOutput) -> bool {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    output.is_truncated()
        || stdout.text.len() + stderr.text.len() > TEXT_BYTES_MAX
        || lines(&stdout.text) + lines(&stderr.text) > LINES_MAX
}

/// Shortens the two streams to the limits for models.
pub(super) fn cut(output: &ExecOutput, kept: &Kept) -> (String, String) {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    let bytes_max = TEXT_BYTES_MAX - 2 * MARKER_BYTES_MAX;
    let (stdout_bytes, stderr_bytes) = shares(bytes_max, stdout.text.len(), stderr.text.len());
    let (stdout_lines, stderr_lines) = shares(LINES_MAX - 2, lines(&stdout.text), lines(&stderr.text));
    (cut_one(stdout, stdout_bytes, stdout_lines, kept), cut_one(stderr, stderr_bytes, stderr_lines, kept))
}

/// Returns the content of the file: the captured standard output, followed by the captured standard error, if any.
pub(super) fn whole(output: &ExecOutput) -> String {
    let ExecOutput { stdout, stderr, .. } = output;
    if stderr.text.is_empty() {
        return stdout.text.clone();
    }
    let between = if stdout.text.is_empty() || stdout.text.ends_with('\n') { "" } else { "\n" };
    format!("{}{between}==> stderr <==\n{}", stdout.text, stderr.text)
}

/// Divides `max` equally between two streams. If one stream needs less than half, the other stream gets the remaining
/// part.
fn shares(max: usize, first: usize, second: usize) -> (usize, usize) {
    let half = max / 2;
    match (first <= half, second <= half) {
        (true, _) => (first, max - first),
        (false, true) => (max - second, second),
        (false, false) => (half, max - half),
    }
}

fn cut_one(stream: &Output, bytes_max: usize, lines_max: usize, kept: &Kept) -> String {
    let shown = newest(&stream.text, bytes_max, lines_max);
    let left_out = &stream.text[..stream.text.len() - shown.len()];
    if left_out.is_empty() && !stream.is_truncated {
        return shown.to_owned();
    }
    let before = usize::try_from(stream.bytes).unwrap_or(usize::MAX).saturating_sub(stream.text.len());
    let bytes = left_out.len() + if stream.is_truncated { before } else { 0 };
    // The provider does not report the number of dropped lines.
    let in_lines = if stream.is_truncated { String::new() } else { format!(" in {} lines", lines(left_out)) };
    let place = match kept {
        Kept::In(path) if stream.is_truncated => format!("the captured part is in {path}"),
        Kept::In(path) => format!("the whole output is in {path}"),
        Kept::Nowhere(reason) => {
            let reason: String =
                reason.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
            format!("the output could not be saved to a file: {reason}")
        }
    };
    format!("[{bytes} bytes{in_lines} were cut here; {place}]\n{shown}")
}

/// Returns the end of a text, starting at the beginning of a line. If the last line alone exceeds `bytes_max`, returns
/// the end of that line.
fn newest(text: &str, bytes_max: usize, lines_max: usize) -> &str {
    let mut from = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
    if from > 0 && !text[..from].ends_with('\n') {
        let line = text[from..].find('\n').map(|at| from + at + 1).filter(|line| *line < text.len());
        from = line.unwrap_or(from);
    }
    let body = text.strip_suffix('\n').unwrap_or(text);
    let too_many = body.rmatch_indices('\n').nth(lines_max.saturating_sub(1)).map_or(0, |(at, _)| at + 1);
    if lines_max == 0 { "" } else { &text[from.max(too_many)..] }
}

fn lines(text: &str) -> usize {
    text.lines().count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use monstrum_sandbox::Termination;

    use super::*;

    fn stream(text: &str) -> Output {
        Output { text: text.to_owned(), bytes: text.len() as u64, is_truncated: false }
    }

    fn output(stdout: &str, stderr: &str) -> ExecOutput {
        ExecOutput {
            stdout: stream(stdout),
            stderr: stream(stderr),
            exit_code: 0,
            termination: Termination::Exited,
            duration: Duration::from_millis(5),
        }
    }

    fn numbered(count: usize) -> String {
        (1..=count).map(|n| format!("{n}\n")).collect()
    }

    const KEPT: &str = "/workspace/.monstrum/output/x.txt";

    #[test]
    fn what_fits_is_left_alone() {
        assert!(!is_too_long(&output(&numbered(1_999), "one\n")));
        assert!(!is_too_long(&output(&"x".repeat(49_999), "e")));
        assert!(is_too_long(&output(&numbered(2_000), "one")));
        assert!(is_too_long(&output(&"x".repeat(49_999), "ee")));
    }

    #[test]
    fn the_newest_lines_of_both_streams_share_the_room() {
        let (stdout, stderr) = cut(&output(&numbered(5_000), "late\n"), &Kept::In(KEPT.to_owned()));
        assert_eq!(stderr, "late\n");
        let expected = "[13908 bytes in 3003 lines were cut here; the whole output is in \
            /workspace/.monstrum/output/x.txt]\n3004\n";
        assert!(stdout.starts_with(expected), "{}", &stdout[..200]);
        assert!(stdout.ends_with("\n5000\n"));
        let (stdout, stderr) = cut(&output(&numbered(5_000), &numbered(5_000)), &Kept::In(KEPT.to_owned()));
        assert_eq!((lines(&stdout), lines(&stderr)), (1_000, 1_000));
    }

    #[test]
    fn no_text_is_larger_than_the_limit_nor_cut_within_a_character() {
        let long_line = "é".repeat(60_000);
        for (stdout, stderr) in
            [(long_line.clone(), String::new()), (long_line.clone(), long_line.clone()), (numbered(90_000), long_line)]
        {
            for kept in [Kept::In(KEPT.to_owned()), Kept::Nowhere("é\n".repeat(1_000))] {
                let (stdout, stderr) = cut(&output(&stdout, &stderr), &kept);
                assert!(stdout.len() + stderr.len() <= TEXT_BYTES_MAX, "{} {}", stdout.len(), stderr.len());
                assert!(lines(&stdout) + lines(&stderr) <= LINES_MAX);
            }
        }
    }

    #[test]
    fn a_last_line_that_is_too_long_shows_its_end() {
        let text = format!("first\n{}end\n", "x".repeat(60_000));
        let (stdout, _) = cut(&output(&text, ""), &Kept::In(KEPT.to_owned()));
        assert!(stdout.ends_with("xend\n") && stdout.contains(" bytes in 2 lines were cut here"));
    }

    #[test]
    fn what_the_provider_dropped_is_counted_and_its_file_promises_no_more_than_it_has() {
        let mut flood = output("last\n", "");
        flood.stdout = Output { bytes: 10_000_005, is_truncated: true, ..flood.stdout };
        assert!(is_too_long(&flood));
        let (stdout, _) = cut(&flood, &Kept::In(KEPT.to_owned()));
        assert_eq!(stdout, format!("[10000000 bytes were cut here; the captured part is in {KEPT}]\nlast\n"));
        let (stdout, _) = cut(&flood, &Kept::Nowhere("no space\nleft".to_owned()));
        let expected = "[10000000 bytes were cut here; the output could not be saved to a file: no space left]\nlast\n";
        assert_eq!(stdout, expected);
        assert_eq!(whole(&flood), "last\n");
    }

    #[test]
    fn the_file_is_what_was_written() {
        assert_eq!(whole(&output("a\nb", "")), "a\nb");
        assert_eq!(whole(&output("a", "c\n")), "a\n==> stderr <==\nc\n");
        assert_eq!(whole(&output("", "c")), "==> stderr <==\nc");
    }

    #[test]
    fn the_newest_of_a_text() {
        assert_eq!(newest("a\nb\nc\n", 100, 2), "b\nc\n");
        assert_eq!(newest("a\nb\nc", 100, 2), "b\nc");
        assert_eq!(newest("a\nb\nc\n", 4, 9), "b\nc\n");
        assert_eq!(newest("a\nb\nc\n", 3, 9), "c\n");
        assert_eq!(newest("abc", 2, 9), "bc");
        assert_eq!(newest("", 2, 9), "");
        assert_eq!(newest("a\n", 9, 0), "");
    }
}
