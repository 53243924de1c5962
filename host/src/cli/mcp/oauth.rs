//! `monstrum mcp oauth`: finds the authorization server of an MCP server, and confirms it as the OAuth provider of the
//! resource.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use monstrum_types::Secret;
use serde_json::{Value, json};

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::fields::Source;
use crate::cli::names::{self, Noun};
use crate::cli::output;

const DISCOVER_EXAMPLES: &str = "\
Examples:
  monstrum mcp oauth discover tracker

The command reads the metadata of the MCP server and of its authorization server, and changes nothing.";

const CONFIRM_EXAMPLES: &str = "\
Examples:
  monstrum mcp oauth confirm tracker
  monstrum mcp oauth confirm tracker --client-id monstrum --client-secret-file secret.txt
  monstrum mcp oauth confirm tracker --yes        does not ask for confirmation

If the authorization server registers clients on request, no --client-id is needed. Authorize the resource afterwards.";

/// Find and confirm the authorization server of an MCP server
#[derive(Subcommand)]
pub(in crate::cli) enum Oauth {
    /// Look for the authorization server of the MCP server behind a resource
    #[command(after_help = DISCOVER_EXAMPLES)]
    Discover {
        /// The name or the id of the resource
        resource: String,
    },
    /// Show the authorization server and make it the OAuth provider of the resource
    #[command(after_help = CONFIRM_EXAMPLES)]
    Confirm(Confirm),
}

#[derive(Args)]
pub(in crate::cli) struct Confirm {
    /// The name or the id of the resource
    resource: String,
    /// The id of a client that you have registered with the authorization server
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// A file with the secret of the client
    #[arg(long, value_name = "FILE", requires = "client_id")]
    client_secret_file: Option<PathBuf>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Oauth {
    pub(super) async fn run(self, client: &Client, json: bool) -> Result<(), Failure> {
        match self {
            Oauth::Discover { resource } => {
                let proposal = proposal(client, &names::id(client, Noun::Resource, &resource).await?).await?;
                if json { output::json(&proposal) } else { show(&proposal) }
            }
            Oauth::Confirm(confirm) => confirm.run(client, json).await,
        }
    }
}

impl Confirm {
    async fn run(self, client: &Client, json: bool) -> Result<(), Failure> {
        let secret = self.client_secret_file.as_deref().map(read_secret).transpose()?;
        let id = names::id(client, Noun::Resource, &self.resource).await?;
        let proposal = proposal(client, &id).await?;
        if !json {
            show(&proposal)?;
        }
        if !self.yes {
            output::confirm("confirm this authorization server?", "read the proposal", "nothing was confirmed")?;
        }
        let mut body = json!({ "digest": proposal["digest"] });
        if let Some(client_id) = self.client_id {
            body["client_id"] = json!(client_id);
        }
        if let Some(secret) = secret {
            body["client_secret"] = json!(secret.expose());
        }
        let answer = client.post(&["api", "resources", &id, "oauth", "confirm"], Some(&body)).await?;
        if json {
            return output::json(&answer);
        }
        let (resource, client_id) = (&self.resource, answer["client_id"].as_str().unwrap_or_default());
        output::note(&format!(
            "confirmed the OAuth provider of {resource}; its client is {}",
            output::plain(client_id)
        ));
        Ok(())
    }
}

async fn proposal(client: &Client, resource: &str) -> Result<Value, Failure> {
    client.post(&["api", "resources", resource, "oauth", "discover"], None).await
}

fn read_secret(path: &Path) -> Result<Secret, Failure> {
    let secret = Source::File(path.to_owned()).read()?;
    if secret.expose().trim().is_empty() || secret.expose().contains('\n') {
        let message = format!("{} does not contain a client secret", path.display());
        return Err(Failure::new(message, "--client-secret-file names a file with the secret on one line"));
    }
    Ok(secret)
}

fn show(proposal: &Value) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 10] = [
        ("resource", "resource"),
        ("issuer", "issuer"),
        ("authorization URL", "authorization_url"),
        ("token URL", "token_url"),
        ("client authentication", "token_auth"),
        ("scopes", "scopes"),
        ("registration", "registration"),
        ("registration URL", "registration_url"),
        ("digest", "digest"),
        ("expires", "expires_at"),
    ];
    output::given_fields(proposal, &FIELDS)
}
