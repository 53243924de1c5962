//! The failure of a command: a message, its causes, and a hint.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use serde_json::json;

use super::output;

/// The failure of a command. The last line of its report is always a hint.
pub(super) struct Failure {
    message: String,
    causes: Vec<String>,
    hint: String,
    /// Whether the failure is not reported, because the reader of the output has closed the pipe.
    is_quiet: bool,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { message: message.into(), causes: Vec::new(), hint: hint.into(), is_quiet: false }
    }

    /// Creates a failure with `message`. The causes are `error` and its sources.
    pub(super) fn of(message: impl Into<String>, error: &dyn Error, hint: impl Into<String>) -> Self {
        Failure::new(message, hint).with_causes(Some(error))
    }

    /// Creates a failure whose message is the text of `error`.
    pub(super) fn from_error(error: &dyn Error, hint: impl Into<String>) -> Self {
        Failure::new(error.to_string(), hint).with_causes(error.source())
    }

    /// Adds a cause. Omits lines of the cause that the message or an earlier cause already contains.
    pub(super) fn because(mut self, cause: &str) -> Self {
        let is_known = |line: &str| self.message.contains(line) || self.causes.iter().any(|known| known.contains(line));
        let lines: Vec<&str> = cause.lines().filter(|line| !line.trim().is_empty() && !is_known(line)).collect();
        if !lines.is_empty() {
            let cause = lines.join("\n");
            self.causes.push(cause);
        }
        self
    }

    /// Prefixes the message with `part`, the field of the input that caused the failure.
    pub(super) fn about(mut self, part: &str) -> Self {
        self.message = format!("{part}: {}", self.message);
        self
    }

    /// Returns the message and the causes as one line, for commands that report several failures.
    pub(super) fn sentence(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.causes);
        parts.map(|part| part.replace('\n', "; ")).collect::<Vec<_>>().join(": ")
    }

    /// Creates the failure of a write to standard output.
    pub(super) fn of_output(error: &io::Error) -> Self {
        let mut failure = Failure::of("cannot write to standard output", error, "check the free disk space");
        failure.is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        failure
    }

    fn with_causes(mut self, mut error: Option<&dyn Error>) -> Self {
        while let Some(cause) = error {
            // Some libraries repeat the text of the cause in their own message.
            self = self.because(&cause.to_string());
            error = cause.source();
        }
        self
    }

    /// Reports the failure to the user and returns the exit code.
    pub(super) fn report(&self, json: bool) -> ExitCode {
        if self.is_quiet {
            return ExitCode::SUCCESS;
        }
        if json {
            let error = json!({ "message": self.message, "causes": self.causes, "hint": self.hint });
            output::note(&output::json_text(&json!({ "error": error })));
        } else {
            output::error(&self.message);
            for cause in &self.causes {
                output::note(&format!("  {}", output::plain(cause).replace('\n', "\n  ")));
            }
            output::hint(&self.hint);
        }
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the folder")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("permission denied")]
    struct Inner;

    #[test]
    fn causes_follow_the_message_without_repeating_it() {
        let failure = Failure::from_error(&Outer(Inner), "use another");
        assert_eq!(
            (failure.message.as_str(), failure.causes),
            ("cannot open the folder", vec!["permission denied".to_owned()])
        );
        let failure = Failure::of("failed: permission denied", &Inner, "use another");
        assert_eq!(failure.causes, Vec::<String>::new());
        let failure = failure.because("line 1\nwhat is there\npermission denied");
        assert_eq!(failure.causes, ["line 1\nwhat is there"]);
    }
}
