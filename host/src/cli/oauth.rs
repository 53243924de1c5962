//! `monstrum oauth`: authorizes resources by OAuth. The command starts the authorization, shows the link or the code, and
//! waits until a person has authorized the resource.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use monstrum_types::{Clock as _, SystemClock, UtcMillis};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{Options, browser, output};

/// The interval at which the command asks the server about the authorization.
const POLL_EVERY: Duration = Duration::from_secs(1);

const AUTHORIZE_EXAMPLES: &str = "\
Examples:
  monstrum oauth authorize tracker
  monstrum oauth authorize tracker --no-browser      only prints the link
  monstrum oauth authorize tracker --device          shows a code to enter on another device
  monstrum oauth authorize tracker --no-wait         prints the link and ends

Only the first browser that opens the link can use it. The link expires after ten minutes. The command ends when the
resource is authorized.";

/// Authorize resources by OAuth
#[derive(Subcommand)]
pub(super) enum Oauth {
    /// Authorize a resource in a browser
    #[command(after_help = AUTHORIZE_EXAMPLES)]
    Authorize {
        /// The name or the id of the resource
        resource: String,
        /// Do not open a browser
        #[arg(long)]
        no_browser: bool,
        /// Show a code to enter on another device
        #[arg(long)]
        device: bool,
        /// Do not wait for the authorization
        #[arg(long)]
        no_wait: bool,
    },
    /// Refresh the access token of a resource now
    #[command(after_help = "Examples:\n  monstrum oauth refresh tracker")]
    Refresh {
        /// The name or the id of the resource
        resource: String,
    },
}

impl Oauth {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Oauth::Authorize { resource, no_browser, device, no_wait } => {
                let before = names::find(&client, Noun::Resource, &resource).await?;
                let waiting =
                    Waiting { client: &client, id: names::text(&before, "id")?, resource, json: options.json };
                if device {
                    waiting.by_code(no_wait).await?;
                } else {
                    waiting.by_browser(&before["credential"]["updated_at"], !no_browser, no_wait).await?;
                }
            }
            Oauth::Refresh { resource } => {
                let id = names::id(&client, Noun::Resource, &resource).await?;
                let answer = client.post(&["api", "resources", &id, "oauth", "refresh"], None).await?;
                output::done(options.json, &answer, &format!("refreshed the access token of {resource}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// An authorization for which the command waits.
struct Waiting<'a> {
    client: &'a Client,
    id: String,
    resource: String,
    json: bool,
}

impl Waiting<'_> {
    /// Waits until the credential, which was saved at `before`, is saved anew.
    async fn by_browser(&self, before: &Value, opens: bool, no_wait: bool) -> Result<(), Failure> {
        let started = self.client.post(&["api", "resources", &self.id, "oauth", "start"], Some(&json!({}))).await?;
        let link = names::text(&started, "authorization_url")?;
        if no_wait {
            return if self.json { output::json(&started) } else { output::line(output::plain(&link)) };
        }
        if opens && browser::open(&link) {
            output::note(&format!("opened {} in the browser", output::plain(&link)));
        } else {
            output::note(&format!("open this link in a browser: {}", output::plain(&link)));
        }
        let expires = time(&started, "expires_at")?;
        loop {
            let resource = self.client.get(&["api", "resources", &self.id], &[]).await?;
            let credential = &resource["credential"];
            if credential["status"] == "ready" && credential["updated_at"] != *before {
                return self.done(credential);
            }
            if SystemClock.now() >= expires {
                return Err(self.expired());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    async fn by_code(&self, no_wait: bool) -> Result<(), Failure> {
        let started = self.client.post(&["api", "resources", &self.id, "oauth", "device"], Some(&json!({}))).await?;
        if no_wait && self.json {
            return output::json(&started);
        }
        let cell = |field: &str| output::plain(&output::cell(&started[field]));
        output::note(&format!("open {} and enter the code {}", cell("verification_uri"), cell("user_code")));
        if no_wait {
            return output::line(cell("id"));
        }
        let flow = names::text(&started, "id")?;
        loop {
            let progress = self.client.get(&["api", "resources", &self.id, "oauth", "device", &flow], &[]).await?;
            match progress["status"].as_str() {
                Some("done") => {
                    let resource = self.client.get(&["api", "resources", &self.id], &[]).await?;
                    return self.done(&resource["credential"]);
                }
                Some("failed") => {
                    let message = format!("the authorization failed: {}", output::cell(&progress["message"]));
                    return Err(Failure::new(output::plain(&message), self.again()));
                }
                _ if SystemClock.now() >= time(&progress, "expires_at")? => return Err(self.expired()),
                _ => tokio::time::sleep(POLL_EVERY).await,
            }
        }
    }

    fn done(&self, credential: &Value) -> Result<(), Failure> {
        output::done(self.json, credential, &format!("{} is authorized", self.resource))
    }

    fn expired(&self) -> Failure {
        Failure::new("the authorization expired before it was completed", self.again())
    }

    fn again(&self) -> String {
        format!("start again with `monstrum oauth authorize {}`", output::plain(&self.resource))
    }
}

fn time(answer: &Value, field: &str) -> Result<UtcMillis, Failure> {
    let text = names::text(answer, field)?;
    text.parse()
        .map_err(|_| Failure::new(format!("the server's response has no time `{field}`"), super::client::NOT_MONSTRUM))
}
