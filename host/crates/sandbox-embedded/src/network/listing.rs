//! The JSON output of `ip -j`.

use std::net::Ipv4Addr;

use serde::Deserialize;

use super::NetworkError;

#[derive(Deserialize)]
pub(super) struct Interface {
    #[serde(default)]
    pub ifname: String,
    #[serde(default)]
    pub operstate: String,
    #[serde(default)]
    pub addr_info: Vec<AddressInfo>,
}

#[derive(Deserialize)]
pub(super) struct AddressInfo {
    pub local: Ipv4Addr,
}

#[derive(Deserialize)]
pub(super) struct Route {
    #[serde(default)]
    pub dst: String,
    #[serde(default)]
    pub dev: String,
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, NetworkError> {
    // `ip` prints nothing if the list is empty.
    let text = if text.trim().is_empty() { "[]" } else { text };
    serde_json::from_str(text).map_err(|source| NetworkError::Answer { source })
}
