//! Links into the console.

use monstrum_types::UtcMillis;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTicketInput {
    /// The lifetime of the link in seconds, 1 to 600; 60 by default.
    #[schema(minimum = 1, maximum = 600, default = 60)]
    pub ttl_s: Option<u32>,
}

/// A link into the console. Only this response contains the link.
#[derive(Serialize, ToSchema)]
pub struct ConsoleTicket {
    /// The URL of a page at which a browser logs in as the key of this request. It works once.
    pub url: String,
    pub expires_at: UtcMillis,
}
