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
    /// Whoever read our output has seen enough.
    is_quiet: bool,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { message: message.into(), causes: Vec::new(), hint: hint.into(), is_quiet: false }
    }

    /// `message`, because of `error` and its causes.
    pub(super) fn of(message: impl Into<String>, error: &dyn Error, hint: impl Into<String>) -> Self {
        let mut failure = Failure::new(message, hint);
        failure.add_causes(Some(error));
        failure
    }

    /// An error that says by itself what could not be done.
    pub(super) fn from_error(error: &dyn Error, hint: impl Into<String>) -> Self {
        let mut failure = Failure::new(error.to_string(), hint);
        failure.add_causes(error.source());
        failure
    }

    /// The same with one more cause.
    pub(super) fn because(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Standard output took no more.
    pub(super) fn of_output(error: &io::Error) -> Self {
        let mut failure = Failure::of("cannot write to standard output", error, "is the disk full?");
        failure.is_quiet = error.kind() == io::ErrorKind::BrokenPipe;
        failure
    }

    fn add_causes(&mut self, mut error: Option<&dyn Error>) {
        while let Some(cause) = error {
            let text = cause.to_string();
            // Some libraries repeat their cause in their own words.
            let is_known = |known: &String| known.contains(&text);
            if !is_known(&self.message) && !self.causes.iter().any(is_known) {
                self.causes.push(text);
            }
            error = cause.source();
        }
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
                output::note(&format!("  {}", output::plain(cause)));
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
    }
}
