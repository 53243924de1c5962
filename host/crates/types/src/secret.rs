//! A secret value.

use zeroize::Zeroizing;

/// A text that must never be shown: it has no `Debug`, no `Display` and no `Serialize`, and its memory is wiped when
/// it is dropped. Whoever needs the value asks for it by name, which makes every such place easy to find.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the value over.
    #[must_use]
    pub fn new(value: String) -> Self {
        Secret(Zeroizing::new(value))
    }

    /// The value itself. Use it where it is injected, sealed or searched for, and nowhere else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Secret::new(value)
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}
