//! The conversation to which a sandbox belongs.

use sha2::{Digest, Sha256};

/// The maximum length of each part of a conversation's name in bytes. The ids of all chat systems are shorter.
pub const PART_BYTES_MAX: usize = 256;

/// The validation error of a part of a conversation's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` must be 1 to {PART_BYTES_MAX} bytes long and must not contain control characters")]
pub struct InvalidConversation {
    /// `app_id`, `user_id` or `chat_id`.
    pub part: &'static str,
}

/// The conversation that owns a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    app_id: String,
    user_id: String,
    chat_id: String,
}

impl Conversation {
    /// Validates the three parts.
    pub fn new(
        app_id: impl Into<String>,
        user_id: impl Into<String>,
        chat_id: impl Into<String>,
    ) -> Result<Conversation, InvalidConversation> {
        let of = Conversation { app_id: app_id.into(), user_id: user_id.into(), chat_id: chat_id.into() };
        for (part, text) in [("app_id", &of.app_id), ("user_id", &of.user_id), ("chat_id", &of.chat_id)] {
            if text.is_empty() || text.len() > PART_BYTES_MAX || text.chars().any(char::is_control) {
                return Err(InvalidConversation { part });
            }
        }
        Ok(of)
    }

    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    pub fn user_id(&self) -> &str {
        &self.user_id
    }

    pub fn chat_id(&self) -> &str {
        &self.chat_id
    }

    /// Returns the first 16 hex digits of the SHA-256 of `{app_id}-{user_id}-{chat_id}`. Two conversations can have the
    /// same id. The id therefore names a sandbox, but does not prove which conversation owns the sandbox.
    pub fn sandbox_id(&self) -> String {
        let digest = Sha256::digest(format!("{}-{}-{}", self.app_id, self.user_id, self.chat_id));
        hex::encode(&digest[..8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the ids with the output of coreutils, for example of `printf %s 'app-1-user-1-chat-1' | sha256sum | cut
    /// -c1-16`.
    #[test]
    fn the_id_of_a_sandbox_is_that_of_an_independent_sha256() {
        for (app, user, chat, id) in [
            ("app-1", "user-1", "chat-1", "6a3e9ea13b08c5af"),
            ("x", "u-1", "c", "01be256a6eccadcb"),
            ("x", "u", "1-c", "01be256a6eccadcb"),
            ("68ad85a7463006c963799a05", "tmb-7", "0rD2LqzXb9a", "8f9e9677c1d2aff9"),
            ("Büro", "用户", "💬", "9b00f20a5b57ea8b"),
        ] {
            assert_eq!(Conversation::new(app, user, chat).unwrap().sandbox_id(), id, "{app} {user} {chat}");
        }
    }

    #[test]
    fn parts_are_short_texts_without_control_characters() {
        let long = "x".repeat(PART_BYTES_MAX);
        assert!(Conversation::new(&long, &long, &long).is_ok());
        let refused = |app: &str, user: &str, chat: &str| Conversation::new(app, user, chat).unwrap_err().part;
        assert_eq!(refused("", "u", "c"), "app_id");
        assert_eq!(refused("a", "u\n", "c"), "user_id");
        assert_eq!(refused("a", "u\u{0}", "c"), "user_id");
        assert_eq!(refused("a", "u", "\u{85}"), "chat_id");
        assert_eq!(refused("a", "u", &"é".repeat(129)), "chat_id");
    }
}
