//! `monstrum credential`: sets and tests the credentials of resources. A secret is typed without echo, or read from a
//! file or an environment variable. It is never an argument, because other users of the machine can see arguments.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Assignment, Source};
use super::names::{self, Noun};
use super::{Options, objects, output};

const SET_EXAMPLES: &str = "\
Examples:
  monstrum credential set tracker                                 asks for each field, without echo
  monstrum credential set tracker --field access_token=@token.txt
  monstrum credential set tracker --field access_token=env:GITHUB_TOKEN
  pass show github | monstrum credential set tracker --field access_token=@-

The server encrypts the credential and never shows it again. For OAuth, use `monstrum oauth authorize`.";

const CONFIRM_EXAMPLES: &str = "\
Examples:
  monstrum credential confirm tracker

A credential needs a confirmation after a change of the origins to which it would be sent.";

/// Set, show, test, confirm and delete the credentials of resources
#[derive(Subcommand)]
pub(super) enum Credential {
    /// Set or replace the credential of a resource
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// The name or the id of the resource
        resource: String,
        /// The auth method; required if the resource type has several
        #[arg(long)]
        method: Option<String>,
        /// A field of the credential; can be repeated
        #[arg(long, value_name = "NAME=@FILE")]
        field: Vec<Assignment>,
    },
    /// Show the status of a credential
    #[command(after_help = "Examples:\n  monstrum credential show tracker")]
    Show {
        /// The name or the id of the resource
        resource: String,
    },
    /// Check with the upstream that a credential works
    #[command(after_help = "Examples:\n  monstrum credential test tracker")]
    Test {
        /// The name or the id of the resource
        resource: String,
    },
    /// Confirm the origins to which a credential is sent
    #[command(after_help = CONFIRM_EXAMPLES)]
    Confirm {
        /// The name or the id of the resource
        resource: String,
    },
    /// Delete the credential of a resource
    #[command(after_help = "Examples:\n  monstrum credential delete tracker")]
    Delete {
        /// The name or the id of the resource
        resource: String,
    },
}

impl Credential {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Credential::Set { resource, method, field } => {
                set(&client, &resource, method, field, options.json).await?;
            }
            Credential::Show { resource } => {
                let found = names::find(&client, Noun::Resource, &resource).await?;
                let credential = &found["credential"];
                if credential.is_null() && !options.json {
                    output::note("the resource has no credential; `monstrum credential set` sets one");
                } else {
                    show(credential, options.json)?;
                }
            }
            Credential::Test { resource } => return test(&client, &resource, options.json).await,
            Credential::Confirm { resource } => {
                let id = names::id(&client, Noun::Resource, &resource).await?;
                let confirmed = client.post(&["api", "resources", &id, "credential", "confirm"], None).await?;
                show(&confirmed, options.json)?;
            }
            Credential::Delete { resource } => {
                let id = names::id(&client, Noun::Resource, &resource).await?;
                client.delete(&["api", "resources", &id, "credential"]).await?;
                objects::tell_deleted(&id, "the credential of", &resource, options.json)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(credential: &Value, json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 6] = [
        ("status", "status"),
        ("method", "method"),
        ("sent to", "audience"),
        ("would be sent to", "requested_audience"),
        ("expires", "expires_at"),
        ("updated", "updated_at"),
    ];
    if json { output::json(credential) } else { objects::fields(credential, &FIELDS) }
}

async fn set(
    client: &Client,
    resource: &str,
    method: Option<String>,
    given: Vec<Assignment>,
    json: bool,
) -> Result<(), Failure> {
    let found = names::find(client, Noun::Resource, resource).await?;
    let (id, kind) = (names::text(&found, "id")?, names::text(&found, "resource_type")?);
    let contract = client.get(&["api", "resource-types", &kind], &[]).await?;
    let method = chosen_method(&contract, method.as_deref(), resource)?;
    let fields = read_fields(schema_of(&contract, method), given)?;
    let body = json!({ "auth_method": method["method"], "fields": fields });
    let saved = client.put(&["api", "resources", &id, "credential"], &body).await?;
    if !json {
        output::note(&format!("saved the credential of {}", output::plain(resource)));
    }
    show(&saved, json)
}

/// Returns the fields of the method, or those of the resource type if the method does not declare any.
fn schema_of<'a>(contract: &'a Value, method: &'a Value) -> &'a [Value] {
    let fields = |schema: &'a Value| schema.as_array().map(Vec::as_slice).unwrap_or_default();
    match fields(&method["credential_schema"]) {
        [] => fields(&contract["credential_schema"]),
        own => own,
    }
}

/// Returns the auth method with this name, or else the only method whose fields a person can type.
fn chosen_method<'a>(contract: &'a Value, name: Option<&str>, resource: &str) -> Result<&'a Value, Failure> {
    // `none` means that a resource works without a credential, so nothing can be saved for it.
    let methods = contract["auth_methods"].as_array().into_iter().flatten();
    let methods: Vec<&Value> = methods.filter(|method| method["method"] != "none").collect();
    let needs_browser =
        |method: &Value| method["method"] == "oauth2_auth_code" || method["method"] == "oauth2_device_code";
    let authorize = format!("`monstrum oauth authorize {}` authorizes by OAuth", output::plain(resource));
    let list = |methods: &[&Value]| {
        let names: Vec<String> = methods.iter().map(|method| output::cell(&method["method"])).collect();
        output::plain(&names.join(", "))
    };
    let typed: Vec<&Value> = methods.iter().copied().filter(|method| !needs_browser(method)).collect();
    match name {
        Some(name) => match methods.iter().copied().find(|method| method["method"] == *name) {
            Some(method) if needs_browser(method) => {
                Err(Failure::new(format!("a credential of the method {name} cannot be typed"), authorize))
            }
            Some(method) => Ok(method),
            None => Err(Failure::new(
                format!("the resource type has no auth method `{}`", output::plain(name)),
                format!("its methods are: {}", list(&methods)),
            )),
        },
        None => match typed.as_slice() {
            [method] => Ok(method),
            [] if methods.is_empty() => {
                Err(Failure::new("this resource type uses no credential", "use the resource without a credential"))
            }
            [] => Err(Failure::new("the credential of this resource cannot be typed", authorize)),
            several => Err(Failure::new(
                "the resource type has several auth methods",
                format!("choose one with --method: {}", list(several)),
            )),
        },
    }
}

/// Returns the values of the fields: those of `--field`, and else what the person at the terminal types.
fn read_fields(schema: &[Value], given: Vec<Assignment>) -> Result<Map<String, Value>, Failure> {
    let asks = given.is_empty();
    let mut fields = Map::new();
    for Assignment { name, source } in given {
        let Some(declared) = schema.iter().find(|field| field["field"] == *name) else {
            let known: Vec<String> = schema.iter().map(|field| output::cell(&field["field"])).collect();
            let message = format!("the credential has no field `{}`", output::plain(&name));
            return Err(Failure::new(message, format!("its fields are: {}", output::plain(&known.join(", ")))));
        };
        if declared["type"] == "secret" && matches!(source, Source::Argument(_)) {
            return Err(Failure::new(
                format!(
                    "the field `{name}` is a secret and must not be an argument, because other users can see arguments"
                ),
                format!("use --field {name}=@FILE or --field {name}=env:VARIABLE, or omit --field to be asked"),
            ));
        }
        if fields.contains_key(&name) {
            let message = format!("the field `{}` is set twice", output::plain(&name));
            return Err(Failure::new(message, "set each field with one --field"));
        }
        fields.insert(name, json!(source.read()?.expose()));
    }
    if !asks {
        return Ok(fields);
    }
    if !std::io::stdin().is_terminal() {
        let names: Vec<String> = schema.iter().map(|field| output::cell(&field["field"])).collect();
        return Err(Failure::new(
            "cannot ask for the credential without a terminal",
            format!("use --field NAME=@FILE or --field NAME=env:VARIABLE for: {}", output::plain(&names.join(", "))),
        ));
    }
    for field in schema {
        let name = output::cell(&field["field"]);
        let value = ask(field, &name)?;
        if !value.is_empty() {
            fields.insert(name, json!(value));
        }
    }
    Ok(fields)
}

/// Asks for a field on the terminal, for a secret without echo.
fn ask(field: &Value, name: &str) -> Result<String, Failure> {
    let description = output::plain(&output::cell(&field["description"]));
    if !description.is_empty() {
        output::note(&description);
    }
    let optional = if field["required"] == true { "" } else { " (optional)" };
    let prompt = format!("{}{optional}: ", output::plain(name));
    let failed = |error: std::io::Error| Failure::of("cannot read from the terminal", &error, "use --field NAME=@FILE");
    if field["type"] == "secret" {
        return rpassword::prompt_password(prompt).map_err(failed);
    }
    output::prompt(&prompt);
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(failed)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

async fn test(client: &Client, resource: &str, json: bool) -> Result<ExitCode, Failure> {
    let id = names::id(client, Noun::Resource, resource).await?;
    let report = client.post(&["api", "resources", &id, "credential", "test"], None).await?;
    let works = report["status"] == "success";
    if json {
        output::json(&report)?;
    } else if works {
        output::note(&format!("the credential of {} works", output::plain(resource)));
    } else {
        let message = output::cell(&report["message"]);
        output::error(&format!("the credential does not work: {message}"));
        output::hint(&format!("`monstrum credential set {resource}` replaces it"));
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Vec<Value> {
        vec![json!({ "field": "user", "type": "string" }), json!({ "field": "token", "type": "secret" })]
    }

    #[test]
    fn a_secret_is_no_argument() {
        let refused = read_fields(&schema(), vec!["token=hunter2".parse().unwrap()]).err().unwrap().sentence();
        assert!(refused.contains("must not be an argument") && !refused.contains("hunter2"), "{refused}");
        let fields = read_fields(&schema(), vec!["user=ann".parse().unwrap()]).ok().unwrap();
        assert_eq!(Value::Object(fields), json!({ "user": "ann" }));
        let twice = ["user=ann", "user=bea"].map(|field| field.parse().unwrap());
        let twice = read_fields(&schema(), twice.to_vec()).err().unwrap().sentence();
        assert_eq!(twice, "the field `user` is set twice");
        let unknown = read_fields(&schema(), vec!["tokens=@/etc/hostname".parse().unwrap()]).err().unwrap().sentence();
        assert!(unknown.contains("has no field `tokens`"), "{unknown}");
    }

    #[test]
    fn the_method_is_the_only_one_or_the_one_that_is_named() {
        let contract = |methods: &[&str]| {
            let methods: Vec<Value> = methods.iter().map(|method| json!({ "method": method })).collect();
            json!({ "auth_methods": methods })
        };
        let chosen = |methods: &[&str], name: Option<&str>| {
            chosen_method(&contract(methods), name, "r").map(|method| method["method"].clone()).ok()
        };
        assert_eq!(chosen(&["token", "oauth2_auth_code"], None), Some(json!("token")));
        assert_eq!(chosen(&["none", "api_key"], None), Some(json!("api_key")));
        assert_eq!(chosen(&["none", "api_key"], Some("none")), None);
        assert_eq!(chosen(&["token", "api_key"], None), None);
        assert_eq!(chosen(&["token", "api_key"], Some("api_key")), Some(json!("api_key")));
        assert_eq!(chosen(&["token"], Some("basic")), None);
        assert_eq!(chosen(&["oauth2_auth_code"], None), None);
        assert_eq!(chosen(&["oauth2_auth_code"], Some("oauth2_auth_code")), None);
        assert_eq!(chosen(&[], None), None);
    }
}
