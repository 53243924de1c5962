//! A setting that is a number of days, such as `400d`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::Deserialize;

/// A period of at least one day, written as a number and `d`, such as `400d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Days(NonZeroU32);

/// The error for a text that is not a period in days.
#[derive(Debug, thiserror::Error)]
#[error("expected a number of days of at least 1, with the unit d, such as 400d")]
pub struct NotDays;

impl Days {
    /// Returns the number of days.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl FromStr for Days {
    type Err = NotDays;

    fn from_str(text: &str) -> Result<Self, NotDays> {
        let number = text.strip_suffix('d').filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        number.and_then(|number| number.parse().ok()).map(Days).ok_or(NotDays)
    }
}

impl TryFrom<String> for Days {
    type Error = NotDays;

    fn try_from(text: String) -> Result<Self, NotDays> {
        text.parse()
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}d", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_a_number_and_a_unit() {
        assert_eq!("400d".parse::<Days>().unwrap().to_string(), "400d");
        for wrong in ["", "d", "0d", "400", "+1d", "-1d", "1.5d", "1 d", "1D", "2w", "4294967296d"] {
            assert!(wrong.parse::<Days>().is_err(), "{wrong}");
        }
    }
}
