//! Fields of a PATCH, where an absent field and a null field mean different things.

use serde::{Deserialize, Deserializer};

/// For fields that can be cleared: an absent field stays as it is, null clears it, and a value replaces it.
/// Use with `#[serde(default, deserialize_with = "nullable")]`.
///
/// # Errors
/// The value has another type.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// For fields that cannot be cleared: an absent field stays as it is, and null is an error.
/// Use with `#[serde(default, deserialize_with = "not_null")]`.
///
/// # Errors
/// The value is null or has another type.
pub fn not_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
