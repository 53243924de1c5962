//! `monstrum resource`: manages resources.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Assignment, Body, Extra, NamedChanges, Source};
use super::names::{self, Noun};
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum resource create tracker --type github
  monstrum resource create stand-in --type github --config api_base=http://127.0.0.1:9000 \\
      --allow-http --allow-address 127.0.0.0/8
  monstrum resource create notes --type mcp --config url=https://mcp.example.com/mcp

`monstrum resource types` lists the types, and their configuration with --json. A value of --config can be a text, @FILE,
or env:VARIABLE. Set the credential with `monstrum credential set` or `monstrum oauth authorize`.";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum resource edit tracker --config api_base=https://github.example.com/api/v3
  monstrum resource edit tracker --unset-config api_base
  monstrum resource edit tracker --name issues
  monstrum resource edit tracker --clear network      allow only https to public addresses

--config and --unset-config change single fields of the configuration. Other flags that can be repeated replace the whole
list.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum resource delete tracker

Its credential is deleted with it. A resource that a bot is bound to cannot be deleted.";

/// Create, list, show, edit and delete resources
#[derive(Subcommand)]
pub(super) enum Resource {
    /// Create a resource
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name
        name: String,
        /// The resource type
        #[arg(long = "type", value_name = "TYPE")]
        resource_type: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        extra: Extra,
    },
    /// List resources
    #[command(after_help = "Examples:\n  monstrum resource list\n  monstrum resource list --json")]
    List,
    /// List the resource types of the installed plugins
    #[command(
        after_help = "Examples:\n  monstrum resource types\n  monstrum resource types --json      with every field of the configuration and the credential"
    )]
    Types,
    /// Show a resource
    #[command(after_help = "Examples:\n  monstrum resource show tracker")]
    Show {
        /// The name or the id of the resource
        resource: String,
    },
    /// Change a resource
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        /// The name or the id of the resource
        resource: String,
        #[command(flatten)]
        fields: Fields,
        /// Remove a field of the configuration; can be repeated
        #[arg(long, value_name = "NAME")]
        unset_config: Vec<String>,
        #[command(flatten)]
        changes: NamedChanges,
    },
    /// Delete a resource
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the resource
        resource: String,
    },
}

#[derive(Args)]
pub(super) struct Fields {
    /// A field of the configuration; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    config: Vec<Assignment>,
    /// A range of non-public addresses to which connections are allowed, such as 10.1.0.0/16; can be repeated
    #[arg(long, value_name = "CIDR")]
    allow_address: Vec<String>,
    /// Whether http:// URLs are allowed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    allow_http: Option<bool>,
    /// A label for the results of this resource, such as private; can be repeated
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
}

impl Resource {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Resource::Create { name, resource_type, fields, extra } => {
                let mut body = fields.into_body(&client, &resource_type, None, &[]).await?;
                body.set("resource_type", Some(resource_type));
                objects::create(&client, Noun::Resource, name, (body, extra), options.json).await?;
            }
            Resource::List => list(&client, options.json).await?,
            Resource::Types => types(&client, options.json).await?,
            Resource::Show { resource } => show(&client, &resource, options.json).await?,
            Resource::Edit { resource, fields, unset_config, changes } => {
                let present = names::find(&client, Noun::Resource, &resource).await?;
                let resource_type = names::text(&present, "resource_type")?;
                let mut body = fields.into_body(&client, &resource_type, Some(&present), &unset_config).await?;
                body.set("name", changes.name);
                body.apply(changes.others)?;
                // The command changes parts of the fields `config` and `network`, which a PATCH replaces as a whole.
                let path = ["api", "resources", &names::text(&present, "id")?];
                let changed = client.patch_present(&path, &present, &body.change()?).await?;
                objects::tell_changed(&changed, "resource", &output::cell(&changed["name"]), options.json)?;
            }
            Resource::Delete { resource } => objects::delete(&client, Noun::Resource, &resource, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Fields {
    /// Returns the fields that the flags set. The configuration and the network of `present` keep what no flag names.
    async fn into_body(
        self,
        client: &Client,
        resource_type: &str,
        present: Option<&Value>,
        unset: &[String],
    ) -> Result<Body, Failure> {
        let mut body = Body::default();
        let before = |field: &str| {
            let value = present.and_then(|present| present[field].as_object());
            value.cloned().unwrap_or_default()
        };
        if !self.config.is_empty() || !unset.is_empty() {
            let contract = client.get(&["api", "resource-types", resource_type], &[]).await?;
            let mut config = before("config");
            for name in unset {
                if config.shift_remove(name).is_none() {
                    let message = format!("the configuration has no value of `{}`", output::plain(name));
                    return Err(Failure::new(message, "`monstrum resource show RESOURCE` shows the configuration"));
                }
            }
            for field in self.config {
                let name = field.name.clone();
                config.insert(name, config_value(&contract, field)?);
            }
            body.set("config", Some(config));
        }
        if !self.allow_address.is_empty() || self.allow_http.is_some() {
            let mut network = before("network");
            if !self.allow_address.is_empty() {
                network.insert("allow_addresses".to_owned(), json!(self.allow_address));
            }
            if let Some(allow_http) = self.allow_http {
                network.insert("allow_http".to_owned(), json!(allow_http));
            }
            body.set("network", Some(network));
        }
        body.set_list("labels", self.label);
        Ok(body)
    }
}

/// Returns the value of a configuration field, which has the type that the contract of the resource type declares.
fn config_value(contract: &Value, field: Assignment) -> Result<Value, Failure> {
    let Assignment { name, source } = field;
    let schema = contract["config_schema"].as_array().map(Vec::as_slice).unwrap_or_default();
    let known: Vec<String> = schema.iter().map(|field| output::cell(&field["field"])).collect();
    let Some(declared) = schema.iter().find(|field| field["field"] == *name) else {
        let message = format!("the resource type has no configuration field `{}`", output::plain(&name));
        return Err(Failure::new(message, format!("its fields are: {}", output::plain(&known.join(", ")))));
    };
    let kind = declared["type"].as_str().unwrap_or_default();
    if kind == "secret" && matches!(source, Source::Argument(_)) {
        return Err(Failure::new(
            format!(
                "the field `{name}` is a secret and must not be an argument, because other users can see arguments"
            ),
            format!("use --config {name}=@FILE or --config {name}=env:VARIABLE"),
        ));
    }
    let text = source.read()?;
    let parsed = |what: &str| {
        serde_json::from_str::<Value>(text.expose()).map_err(|error| {
            Failure::of(format!("the value of `{name}` is not {what}"), &error, "correct the value of --config")
        })
    };
    Ok(match kind {
        "integer" => match parsed("an integer")? {
            value if value.is_i64() || value.is_u64() => value,
            _ => {
                return Err(Failure::new(
                    format!("the value of `{name}` is not an integer"),
                    "correct the value of --config",
                ));
            }
        },
        "json" => parsed("JSON")?,
        _ => json!(text.expose()),
    })
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let items = client.items(&["api", "resources"], &[]).await?;
    if json || items.is_empty() {
        let empty = "no resources; `monstrum resource create` creates one";
        return output::list(&items, json, empty, ["NAME"], ["name"]);
    }
    let rows = items.iter().map(|item| {
        let status = match &item["credential"] {
            Value::Null => "none".to_owned(),
            credential => output::cell(&credential["status"]),
        };
        let [name, id, kind] = ["name", "id", "resource_type"].map(|field| output::cell(&item[field]));
        vec![name, kind, status, id]
    });
    output::table(&["NAME", "TYPE", "CREDENTIAL", "ID"], rows.collect())
}

async fn types(client: &Client, json: bool) -> Result<(), Failure> {
    let items = client.items(&["api", "resource-types"], &[]).await?;
    if json || items.is_empty() {
        return output::list(&items, json, "no plugin is loaded; `monstrum plugin list` shows why", ["TYPE"], ["id"]);
    }
    let names = |list: &Value, field: &str| {
        let items = list.as_array().into_iter().flatten();
        items.map(|item| output::cell(&item[field])).collect::<Vec<_>>().join(", ")
    };
    let rows = items.iter().map(|item| {
        vec![
            output::cell(&item["id"]),
            names(&item["config_schema"], "field"),
            names(&item["auth_methods"], "method"),
            output::cell(&item["description"]),
        ]
    });
    output::table(&["TYPE", "CONFIGURATION", "AUTH METHODS", "DESCRIPTION"], rows.collect())
}

async fn show(client: &Client, resource: &str, json: bool) -> Result<(), Failure> {
    let resource = names::find(client, Noun::Resource, resource).await?;
    if json {
        return output::json(&resource);
    }
    let mut shown = Map::new();
    for field in ["name", "id", "resource_type", "config", "network", "labels", "created_at", "updated_at"] {
        shown.insert(field.to_owned(), resource[field].clone());
    }
    let credential = &resource["credential"];
    if !credential.is_null() {
        let text = ["status", "method"].map(|field| output::cell(&credential[field])).join(", ");
        shown.insert("credential".to_owned(), json!(text));
        shown.insert("audience".to_owned(), credential["audience"].clone());
        shown.insert("expires".to_owned(), credential["expires_at"].clone());
    }
    let discovery = &resource["discovery"];
    if !discovery.is_null() {
        let text = ["status", "error"].map(|field| output::cell(&discovery[field])).join(" ");
        shown.insert("discovery".to_owned(), json!(text.trim()));
    }
    objects::fields(
        &Value::Object(shown),
        &[
            ("name", "name"),
            ("id", "id"),
            ("type", "resource_type"),
            ("configuration", "config"),
            ("network", "network"),
            ("labels", "labels"),
            ("credential", "credential"),
            ("sent to", "audience"),
            ("expires", "expires"),
            ("discovery", "discovery"),
            ("created", "created_at"),
            ("updated", "updated_at"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        let contract = json!({ "config_schema": [
            { "field": "url", "type": "url" }, { "field": "pages", "type": "integer" },
            { "field": "dimensions", "type": "json" }, { "field": "salt", "type": "secret" },
        ] });
        config_value(&contract, text.parse().unwrap()).map_err(|failure| failure.sentence())
    }

    #[test]
    fn configuration_values_have_the_declared_type() {
        assert_eq!(value("url=http://a/?b=c").unwrap(), json!("http://a/?b=c"));
        assert_eq!(value("pages=12").unwrap(), json!(12));
        assert_eq!(value("dimensions=[{\"key\": \"a\"}]").unwrap(), json!([{ "key": "a" }]));
        for wrong in ["pages=1.5", "pages=many", "dimensions=[", "salt=secret", "other=1"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
        assert!(!value("salt=hunter2").unwrap_err().contains("hunter2"), "a secret is not repeated");
    }
}
