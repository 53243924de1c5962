//! Settings that are on or off.

use std::str::FromStr;

use serde::Deserialize;

/// Whether a part of the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    Off,
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Switch, String> {
        match text {
            "on" => Ok(Switch::On),
            "off" => Ok(Switch::Off),
            _ => Err("expected on or off".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_on_or_off() {
        assert_eq!(("on".parse(), "off".parse()), (Ok(Switch::On), Ok(Switch::Off)));
        for bad in ["", "On", "true", "1"] {
            assert!(bad.parse::<Switch>().is_err(), "{bad}");
        }
    }
}
