//! How a command fails: what could not be done, why, and what to do about it.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use serde_json::json;

use super::output;

/// A command that did not do what was asked. Its last line is always a hint.
pub(super) struct Failure {
    message: String,
    causes: Vec<String>,
    hint: String,
    /// The reader of our output has closed the pipe.
    is_quiet: bool,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { message: message.into(), causes: Vec::new(), hint: hint.into(), is_quiet: false }
    }

    /// `message`, because of `error` and its causes.
    pub(super) fn of(message: impl Into<String>, error: &dyn Error, hint: impl Into<String>) -> Self {
        Failure::new(message, hint).with_causes(Some(error))
    }

    /// An error that says by itself what could not be done.
    pub(super) fn from_error(error: &dyn Error, hint: impl Into<String>) -> Self {
        Failure::new(error.to_string(), hint).with_causes(error.source())
    }

    /// The same with one more cause, or as much of it as has not been said yet.
    pub(super) fn because(mut self, cause: &str) -> Self {
        let is_known = |line: &str| self.message.contains(line) || self.causes.iter().any(|known| known.contains(line));
        let lines: Vec<&str> = cause.lines().filter(|line| !line.trim().is_empty() && !is_known(line)).collect();
        if !lines.is_empty() {
            let cause = lines.join("\n");
            self.causes.push(cause);
        }
        self
    }

    /// The same, of a part of something larger.
    pub(super) fn about(mut self, part: &str) -> Self {
        self.message = format!("{part}: {}", self.message);
        self
    }

    /// What went wrong in one line, for a report of its own.
    pub(super) fn sentence(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.causes);
        parts.map(|part| part.replace('\n', "; ")).collect::<Vec<_>>().join(": ")
    }

    /// Standard output took no more.
    pub(super) fn of_output(error: &io::Error) -> Self {
        let mut failure = Failure::of("cannot write to standard output", error, "is the disk full?");
        failure.is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        failure
    }

    fn with_causes(mut self, mut error: Option<&dyn Error>) -> Self {
        while let Some(cause) = error {
            // Some libraries repeat their cause in their own words.
            self = self.because(&cause.to_string());
            error = cause.source();
        }
        self
    }

    /// Tells the user, and what the process ends with.
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
