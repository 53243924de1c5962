//! Numbers with bounds, which flags, variables and the settings file check alike.

use std::str::FromStr;

use serde::Deserialize;

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct Bounded<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Bounded<MIN, MAX> {
    /// Returns the number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> TryFrom<u32> for Bounded<MIN, MAX> {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        let is_within = (MIN..=MAX).contains(&number);
        is_within.then_some(Bounded(number)).ok_or_else(|| format!("expected a number from {MIN} to {MAX}"))
    }
}

impl<const MIN: u32, const MAX: u32> FromStr for Bounded<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A text that is not a number has the same error as a number outside the bounds.
        text.parse().map_err(|_| format!("expected a number from {MIN} to {MAX}")).and_then(u32::try_into)
    }
}
