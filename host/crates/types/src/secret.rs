//! A secret value.

use zeroize::Zeroizing;

/// Text that must never be shown. The type implements neither `Debug` nor `Display` nor `Serialize`, and its memory is
/// wiped on drop. [`Secret::expose`] is the only way to read the value, so that every use is easy to find.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: String) -> Self {
        Secret(Zeroizing::new(value))
    }

    /// Returns the value. Use it only to inject, encrypt or search for the secret.
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
