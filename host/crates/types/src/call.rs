//! The outcome of a tool call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::JsonText;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, utoipa::ToSchema)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word by which the API, the audit and the plugin know this value.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The value that goes by `word`.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words!(
    /// How a call ended. An open set for readers: treat one you do not know as not done.
    Status {
        /// The tool did what was asked.
        Success = "success",
        /// The call was allowed but did not succeed.
        Error = "error",
        /// A parameter lies outside what the bot was granted.
        ScopeViolation = "scope_violation",
        /// The bot may not use this tool, or it does not exist: the answer is the same.
        PermissionDenied = "permission_denied",
    }
);

words!(
    /// Why a call did not succeed: one list for HTTP, WIT and audit.
    Code {
        /// The parameters do not satisfy the tool's input_schema.
        InvalidParams = "invalid_params",
        /// Refused by roles.
        Denied = "denied",
        /// Refused by scope.
        Scope = "scope",
        /// The plugin used up its computing budget.
        Fuel = "fuel",
        /// The call took too long.
        Timeout = "timeout",
        /// The plugin ran out of memory.
        Memory = "memory",
        /// The plugin crashed.
        Trap = "trap",
        /// The plugin's result is not acceptable JSON.
        BadResult = "bad_result",
        /// The plugin's result is too large.
        ResultTooLarge = "result_too_large",
        /// A limit on calls between tools was reached.
        Limit = "limit",
        /// The plugin or the bot has too many calls in flight.
        Busy = "busy",
        /// The bot's token budget is spent.
        Budget = "budget",
        /// The resource has no credential that may be used.
        Unauthenticated = "unauthenticated",
        /// The other side could not be reached or did not speak HTTP.
        Upstream = "upstream",
        /// The host cannot serve the call at present.
        Unavailable = "unavailable",
        /// The caller went away.
        Cancelled = "cancelled",
        /// The host ended while the call was running.
        Interrupted = "interrupted",
        /// The plugin itself answered with an error.
        Plugin = "plugin",
    }
);

/// One thing that is wrong with an input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Fault {
    /// Where: a JSON pointer (RFC 6901) into the input; empty for the whole.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

/// A call of a tool that a plugin has asked for and that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolFailure {
    /// Exactly what an LLM would read.
    pub message: String,
    /// How the call ended.
    pub status: Status,
    /// Why.
    pub code: Code,
}

impl ToolFailure {
    /// A call that did not come about, or failed.
    #[must_use]
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        ToolFailure { message: message.into(), status: Status::Error, code }
    }
}

/// The end of a call, before the request id and the duration are added.
#[derive(Clone, PartialEq, Debug)]
pub struct CallOutcome {
    /// How it ended.
    pub status: Status,
    /// Why, on anything but success.
    pub code: Option<Code>,
    /// Exactly what the LLM reads, on anything but success.
    pub message: Option<String>,
    /// What the tool answered: on success, and where a failure has a shape of its own.
    pub data: Option<JsonText>,
    /// The rule that refused the call, for the audit and for administrators.
    pub rule: Option<String>,
    /// The data does not match the tool's output_schema; it is delivered all the same.
    pub output_mismatch: bool,
    /// When to try again, if the call met a limit that lifts with time.
    pub retry_after: Option<Duration>,
}

impl CallOutcome {
    /// A success with its data.
    #[must_use]
    pub fn success(data: JsonText) -> Self {
        CallOutcome {
            status: Status::Success,
            code: None,
            message: None,
            data: Some(data),
            rule: None,
            output_mismatch: false,
            retry_after: None,
        }
    }

    /// Anything but a success.
    #[must_use]
    pub fn failure(status: Status, code: Code, message: impl Into<String>) -> Self {
        CallOutcome {
            status,
            code: Some(code),
            message: Some(message.into()),
            data: None,
            rule: None,
            output_mismatch: false,
            retry_after: None,
        }
    }

    /// A call that was allowed but failed.
    #[must_use]
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        CallOutcome::failure(Status::Error, code, message)
    }

    /// The same end with data besides.
    #[must_use]
    pub fn with_data(mut self, data: JsonText) -> Self {
        self.data = Some(data);
        self
    }

    /// The outcome with the time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The same end with the rule that brought it about.
    #[must_use]
    pub fn by_rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }
}
