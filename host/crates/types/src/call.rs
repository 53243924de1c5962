//! The outcome of a tool call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ApprovalId, JsonText, ResourceId, UtcMillis, words};

words! {
    /// How a call ended. Later versions may add values: treat unknown values as failures.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        /// The call succeeded.
        Success = "success",
        /// The call was allowed but failed.
        Error = "error",
        /// A parameter is outside the scope granted to the bot.
        ScopeViolation = "scope_violation",
        /// The bot may not use this tool, or the tool does not exist. Both cases have the same response.
        PermissionDenied = "permission_denied",
        /// A person must approve the call. Repeat the call after the approval.
        ApprovalRequired = "approval_required",
    }
}

words! {
    /// The reason why a call failed. HTTP, WIT and the audit use the same list.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Code {
        /// The parameters do not satisfy the tool's `input_schema`.
        InvalidParams = "invalid_params",
        /// A role or permission denied the call.
        Denied = "denied",
        /// A scope constraint denied the call.
        Scope = "scope",
        /// A person must approve the call.
        Approval = "approval",
        /// The plugin used up its computing budget.
        Fuel = "fuel",
        /// The call exceeded its time limit.
        Timeout = "timeout",
        /// The plugin ran out of memory.
        Memory = "memory",
        /// The plugin crashed.
        Trap = "trap",
        /// The plugin's result is not valid JSON.
        BadResult = "bad_result",
        /// The plugin's result is too large.
        ResultTooLarge = "result_too_large",
        /// A limit on calls between tools was reached.
        Limit = "limit",
        /// The plugin or the bot has too many calls in flight.
        Busy = "busy",
        /// A budget of the bot, the workspace or the user is spent.
        Budget = "budget",
        /// The resource has no usable credential.
        Unauthenticated = "unauthenticated",
        /// The upstream server could not be reached, or its response was not valid HTTP.
        Upstream = "upstream",
        /// The host is temporarily unable to serve the call.
        Unavailable = "unavailable",
        /// The caller disconnected or cancelled the call.
        Cancelled = "cancelled",
        /// The host stopped while the call was running.
        Interrupted = "interrupted",
        /// The connection to the agent ended while it ran the call, which may have had effects.
        Uncertain = "uncertain",
        /// The plugin itself returned an error.
        Plugin = "plugin",
    }
}

/// One validation error of an input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct InputError {
    /// The invalid part, as a JSON pointer (RFC 6901) into the input; empty for the whole.
    pub path: String,
    /// A description of the error.
    pub message: String,
}

/// One validation error of a document with lines, or one warning about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DocumentError {
    /// The invalid part, as a JSON pointer (RFC 6901) into the document; empty for the whole.
    pub path: String,
    /// The line of the invalid part, from 1.
    pub line: u64,
    /// The column of the invalid part in characters, from 1.
    pub column: u64,
    /// A description of the error.
    pub message: String,
    /// What to do about the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A failed tool call that a plugin made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolFailure {
    /// The text that the LLM reads.
    pub message: String,
    /// How the call ended.
    pub status: Status,
    /// The reason.
    pub code: Code,
}

impl ToolFailure {
    /// Creates the failure of a call that did not run, or that ran and failed.
    #[must_use]
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        ToolFailure { message: message.into(), status: Status::Error, code }
    }
}

/// An approval that a call waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, utoipa::ToSchema)]
pub struct AwaitedApproval {
    /// The id of the approval.
    pub id: ApprovalId,
    /// The URL at which a person decides, if the server has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The time after which the approval expires.
    pub expires_at: UtcMillis,
}

/// A user of an app. Apps choose the ids of their users, so users of different apps may have the same `user_id`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppUser {
    /// The id of the app.
    pub app_id: String,
    /// The id of the user in the app.
    pub user_id: String,
}

impl AppUser {
    /// Returns the user as one text. Each part is preceded by its length, so that different users have different texts:
    /// user `b:c` of app `a` is not user `c` of app `a:b`.
    #[must_use]
    pub fn key(&self) -> String {
        let AppUser { app_id, user_id } = self;
        format!("{}:{app_id}{}:{user_id}", app_id.len(), user_id.len())
    }

    /// Returns the user with this [`key`](AppUser::key), or `None` if the text is not the key of a user.
    #[must_use]
    pub fn of_key(key: &str) -> Option<AppUser> {
        let (app_id, rest) = key_part(key)?;
        let (user_id, rest) = key_part(rest)?;
        rest.is_empty().then(|| AppUser { app_id: app_id.to_owned(), user_id: user_id.to_owned() })
    }
}

/// Splits a text that begins with a part and its length.
fn key_part(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(':')?;
    rest.split_at_checked(length.parse().ok()?)
}

/// The authorization without which a call cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, utoipa::ToSchema)]
pub struct AwaitedAuthorization {
    /// The resource that the user must authorize.
    pub resource_id: ResourceId,
    /// The user whose credential the call needs. Null if the call names no user.
    pub user: Option<AppUser>,
}

/// The outcome of a call, before the request id and the duration are added.
#[derive(Clone, PartialEq, Debug)]
pub struct CallOutcome {
    /// How the call ended.
    pub status: Status,
    /// The reason, unless the call succeeded.
    pub code: Option<Code>,
    /// The text that the LLM reads, unless the call succeeded.
    pub message: Option<String>,
    /// The result of the tool on success; on failure, details if available.
    pub data: Option<JsonText>,
    /// The rule that denied the call, for the audit and for administrators.
    pub rule: Option<String>,
    /// Whether the data does not match the tool's `output_schema`. The data is returned nevertheless.
    pub output_mismatch: bool,
    /// The time after which to retry, if the call reached a limit that resets with time.
    pub retry_after: Option<Duration>,
    /// The approval that the call waits for, if a person must approve it.
    pub approval: Option<Box<AwaitedApproval>>,
    /// The authorization that the call lacks, if the resource needs a credential of the user.
    pub authorization: Option<Box<AwaitedAuthorization>>,
}

impl CallOutcome {
    /// Creates a successful outcome with `data`.
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
            approval: None,
            authorization: None,
        }
    }

    /// Creates the outcome of a call that did not succeed.
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
            approval: None,
            authorization: None,
        }
    }

    /// Creates the outcome of a call that was allowed but failed.
    #[must_use]
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        CallOutcome::failure(Status::Error, code, message)
    }

    /// Adds `data` to this outcome.
    #[must_use]
    pub fn with_data(mut self, data: JsonText) -> Self {
        self.data = Some(data);
        self
    }

    /// Adds the time after which to retry.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds the approval that the call waits for.
    #[must_use]
    pub fn awaiting(mut self, approval: AwaitedApproval) -> Self {
        self.approval = Some(Box::new(approval));
        self
    }

    /// Adds the authorization that the call lacks.
    #[must_use]
    pub fn lacking(mut self, authorization: AwaitedAuthorization) -> Self {
        self.authorization = Some(Box::new(authorization));
        self
    }

    /// Adds the rule that caused this outcome.
    #[must_use]
    pub fn by_rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }
}
