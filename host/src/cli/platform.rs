//! `monstrum platform`: calls platform functions of plugins, which infrastructure code uses.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::ResourceId;
use serde_json::Value;

use super::client::Client;
use super::failure::Failure;
use super::params::Params;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum platform call github sync
  monstrum platform call github sync '{\"since\": \"2026-11-01\"}'
  monstrum platform call github rotate '{}' --resource 01998a3d-… --json

This command requires a root key. The exit code is 0 if the function succeeded, and 1 otherwise.";

/// Call platform functions of plugins
#[derive(Subcommand)]
pub(super) enum Platform {
    Call(Call),
}

/// Call a function of the plugin that defines a resource type
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Call {
    /// The resource type
    #[arg(value_name = "TYPE")]
    resource_type: String,
    /// The function
    function: String,
    /// The parameters, as a JSON object
    #[arg(default_value = "{}")]
    params: Params,
    /// The resource whose credential and upstream the function uses
    #[arg(long, value_name = "ID")]
    resource: Option<ResourceId>,
}

impl Platform {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let Platform::Call(call) = self;
        let body = call.params.body(call.resource);
        let client = Client::new(options)?;
        let path = ["api", "platform", call.resource_type.as_str(), call.function.as_str()];
        let answer = client.post(&path, Some(&body)).await?;
        if options.json {
            output::json(&answer)?;
        } else {
            show(&answer)?;
        }
        Ok(if answer["status"] == "success" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show(answer: &Value) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 5] =
        [("status", "status"), ("code", "code"), ("message", "message"), ("data", "data"), ("request", "request_id")];
    output::given_fields(answer, &FIELDS)
}
