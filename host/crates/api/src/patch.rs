//! Fields of a PATCH request, which distinguishes an absent field from a null field.

use serde::{Deserialize, Deserializer};

/// Deserializes a field that can be cleared: an absent field is unchanged, null clears it, and a value replaces it.
/// Use with `#[serde(default, deserialize_with = "nullable")]`.
///
/// # Errors
/// Returns an error if the value has another type.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// Deserializes a field that cannot be cleared: an absent field is unchanged, and null is an error.
/// Use with `#[serde(default, deserialize_with = "not_null")]`.
///
/// # Errors
/// Returns an error if the value is null or has another type.
pub fn not_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
