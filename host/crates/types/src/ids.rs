//! Ids and names. Each kind has its own type, so that the kinds cannot be confused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An error for text that is not a valid id or name of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind}: expected {expected}")]
pub struct InvalidId {
    /// The expected kind of id or name, such as `bot id`.
    pub kind: &'static str,
    /// The rejected text, truncated to 64 characters.
    pub text: String,
    /// A description of the accepted format.
    pub expected: &'static str,
}

impl InvalidId {
    pub(crate) fn new(kind: &'static str, text: &str, expected: &'static str) -> Self {
        InvalidId { kind, text: text.chars().take(64).collect(), expected }
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String, format = "uuid")]
        pub struct $name(Uuid);

        impl $name {
            /// Creates a new id: a UUIDv7, so that ids sort by creation time.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a default id would differ each time")]
            pub fn new() -> Self {
                $name(Uuid::now_v7())
            }

            /// Returns the 16 bytes of the id, in the order of the hex digits in its text form.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                // Only the canonical spelling is accepted, so that each id has exactly one text form.
                match Uuid::try_parse(text) {
                    Ok(uuid) if uuid.hyphenated().to_string() == text => Ok($name(uuid)),
                    _ => Err(InvalidId::new($kind, text, "a UUID in lower case with hyphens")),
                }
            }
        }

        text_conversions!($name);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    };
}

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $expected:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema, utoipa::ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(text) { Ok($name(text.to_owned())) } else { Err(InvalidId::new($kind, text, $expected)) }
            }
        }

        text_conversions!($name);

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! text_conversions {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

uuid_id!(/** A workspace: the boundary between tenants. */ WorkspaceId, "workspace id");
uuid_id!(/** A bot: an agent that acts through tools only. */ BotId, "bot id");
uuid_id!(/** A resource: one instance of a resource type, with its configuration and credential. */ ResourceId, "resource id");
uuid_id!(/** A binding of a resource to a bot. */ BindingId, "binding id");
uuid_id!(/** A role: a named set of permissions that bindings refer to. */ RoleId, "role id");
uuid_id!(/** A credential of a resource. */ CredentialId, "credential id");
uuid_id!(/** An API key. */ KeyId, "key id");
uuid_id!(/** A key that is trusted to sign packages. */ TrustId, "trust id");
uuid_id!(/** An OAuth provider: the authorization server of a resource type. */ OauthProviderId, "OAuth provider id");
uuid_id!(/** A pending OAuth authorization. */ OauthFlowId, "OAuth flow id");
uuid_id!(/** A sandbox: the Linux machine of one conversation. */ SandboxInstanceId, "sandbox id");
uuid_id!(/** A tool call. */ RequestId, "request id");
uuid_id!(/** An approval: the decision of a person about one call. */ ApprovalId, "approval id");
uuid_id!(/** A budget of a workspace, a bot or users. */ BudgetId, "budget id");
uuid_id!(/** A reservation: the most that a running round can cost. */ ReservationId, "reservation id");
uuid_id!(/** A tool that the server or the agent behind a resource declares. */ ResourceToolId, "resource tool id");
uuid_id!(/** A task: the work of a bot on one instruction. */ TaskId, "task id");
uuid_id!(/** A schedule: times at which a bot starts a task. */ ScheduleId, "schedule id");
uuid_id!(/** A session: the tasks of one conversation. */ SessionId, "session id");
uuid_id!(/** A workflow: steps that a bot runs in an order. */ WorkflowId, "workflow id");
uuid_id!(/** A version of a workflow, which never changes. */ WorkflowVersionId, "workflow version id");
uuid_id!(/** A run of a workflow. */ RunId, "run id");
uuid_id!(/** A trigger: events that start runs of a workflow. */ WorkflowTriggerId, "trigger id");
uuid_id!(/** An event: something that happened, and that can start work. */ EventId, "event id");
uuid_id!(/** A webhook: a route by which a system outside makes events. */ WebhookId, "webhook id");
uuid_id!(/** A subscription: which events start tasks of a bot. */ SubscriptionId, "subscription id");
uuid_id!(/** A delivery of an event to one target. */ DeliveryId, "delivery id");
uuid_id!(/** A claim: the right of one host to run one turn. Each claim has a new id. */ WakeClaimId, "claim id");

fn starts_lower_then(text: &str, length_max: usize, more: fn(u8) -> bool) -> bool {
    text.len() <= length_max
        && text.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || more(byte))
}

name_id!(
    /// The name of a plugin, at most 64 characters, so that it can be a folder name and a metric label.
    PluginName,
    "plugin name",
    "1 to 64 lower-case letters, digits and hyphens, starting with a letter",
    |text| starts_lower_then(text, 64, |byte| byte == b'-')
);
name_id!(
    /// The name of a tool, unique across all plugins.
    ToolName,
    "tool name",
    "1 to 64 lower-case letters, digits and underscores, starting with a letter",
    |text| starts_lower_then(text, 64, |byte| byte == b'_')
);
name_id!(
    /// The id of a resource type.
    ResourceTypeId,
    "resource type id",
    "1 to 64 lower-case letters, digits, hyphens and underscores, starting with a letter",
    |text| starts_lower_then(text, 64, |byte| byte == b'-' || byte == b'_')
);
name_id!(
    /// A SHA-256 digest, written as `sha256:` followed by 64 lower-case hex digits.
    Digest,
    "digest",
    "sha256: followed by 64 lower-case hex digits",
    |text| text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_of_an_id_is_accepted() {
        let id = BotId::new();
        assert_eq!(id.to_string().parse::<BotId>(), Ok(id));
        assert!(id.to_string().to_uppercase().parse::<BotId>().is_err());
        assert!(id.to_string().replace('-', "").parse::<BotId>().is_err());
        assert!("".parse::<BotId>().is_err());
    }

    #[test]
    fn names_outside_their_alphabet_are_refused() {
        assert!("github_list_issues".parse::<ToolName>().is_ok());
        for bad in ["", "_x", "1x", "Github", "a-b", "a b", "é", &"a".repeat(65)] {
            assert!(bad.parse::<ToolName>().is_err(), "{bad}");
        }
        assert!("my-plugin".parse::<PluginName>().is_ok());
        assert!("my_plugin".parse::<PluginName>().is_err());
        assert!("../etc".parse::<PluginName>().is_err());
    }
}
