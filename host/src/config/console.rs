//! The settings of the console.

use clap::ValueEnum;
use serde::Deserialize;

/// Whether the server serves its console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleSwitch {
    #[default]
    On,
    Off,
}
