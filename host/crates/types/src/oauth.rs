//! The words with which the metadata of authorization servers are shown and stored.

use serde::{Deserialize, Serialize};

crate::words! {
    /// The way in which a client authenticates at a token endpoint (RFC 7591, section 2).
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum TokenAuth {
        /// The client is public and has no secret.
        None = "none",
        /// The client sends its secret by HTTP Basic.
        ClientSecretBasic = "client_secret_basic",
        /// The client sends its secret in the body.
        ClientSecretPost = "client_secret_post",
    }
}

crate::words! {
    /// The way in which this server becomes a client of an authorization server.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ClientRegistration {
        /// The client id is the URL of a document of this server, `/oauth/client.json`.
        ClientIdMetadata = "client_id_metadata",
        /// An admin registers a client and states its id.
        Given = "given",
        /// This server registers a client (RFC 7591) when an admin confirms the authorization server.
        Dynamic = "dynamic",
    }
}
