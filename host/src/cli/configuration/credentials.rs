//! The credentials of the files: references to secrets, which this program reads and sends to the server.

use std::collections::BTreeMap;
use std::path::Path;

use monstrum_types::Secret;
use serde_json::{Map, Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::fields::Source;
use super::super::names::{self, Noun};
use super::super::output;
use super::document::{At, Credential, Lines};

/// The credentials of the files, with their secrets.
pub(super) struct Credentials<'a>(Vec<Read<'a>>);

struct Read<'a> {
    /// The place of the resource in the files.
    at: At<'a>,
    resource: String,
    method: String,
    fields: BTreeMap<String, Secret>,
    /// The credential that is replaced, as the server shows it.
    present: Option<Value>,
}

impl<'a> Credentials<'a> {
    /// Reads the secrets of all credentials.
    pub(super) fn read(lines: &'a Lines) -> Result<Credentials<'a>, Failure> {
        let given = lines.resources().filter_map(|(at, resource)| Some((at, resource, resource.credential.as_ref()?)));
        given
            .map(|(at, resource, credential)| read(at, &resource.name, credential))
            .collect::<Result<_, _>>()
            .map(Credentials)
    }

    /// Keeps the credentials of resources that lack one or do not exist yet. With `replaces`, keeps all.
    pub(super) async fn without_present(self, client: &Client, replaces: bool) -> Result<Credentials<'a>, Failure> {
        if self.0.is_empty() {
            return Ok(self);
        }
        let resources = client.items(&["api", "resources"], &[]).await?;
        let with_present = |read: Read<'a>| {
            let resource = resources.iter().find(|resource| resource["name"] == *read.resource);
            let present = resource.map(|resource| resource["credential"].clone()).filter(|held| !held.is_null());
            Read { present, ..read }
        };
        let all = self.0.into_iter().map(with_present);
        Ok(Credentials(all.filter(|read| replaces || read.present.is_none()).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn resources(&self) -> Vec<&str> {
        self.0.iter().map(|read| read.resource.as_str()).collect()
    }

    /// Saves the credentials. A credential that another command has saved since the plan stays, and the command fails.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        for Read { at, resource, method, fields, present } in &self.0 {
            let id = names::id_of_name(client, Noun::Resource, resource).await?;
            let fields: Map<String, Value> =
                fields.iter().map(|(name, secret)| (name.clone(), json!(secret.expose()))).collect();
            let body = json!({ "auth_method": method, "fields": fields });
            let path = ["api", "resources", &id, "credential"];
            let saved = client.put_present(&path, present.as_ref(), &body).await;
            saved.map_err(|failure| {
                failure.about(&format!("{}: the credential of {}", at.place("credential"), output::plain(resource)))
            })?;
        }
        Ok(())
    }
}

/// Reads the secrets of the credential of the resource at a place.
fn read<'a>(at: At<'a>, resource: &str, credential: &Credential) -> Result<Read<'a>, Failure> {
    let mut fields = BTreeMap::new();
    for (name, reference) in &credential.fields {
        let secret = secret(reference);
        let placed = secret.map_err(|failure| failure.about(&at.place(&format!("credential.fields.{name}"))));
        fields.insert(name.clone(), placed?);
    }
    Ok(Read { at, resource: resource.to_owned(), method: credential.method.clone(), fields, present: None })
}

/// Reads the secret of a reference.
pub(super) fn secret(reference: &str) -> Result<Secret, Failure> {
    let source = match reference.split_once(':') {
        Some(("env", variable)) => Source::Variable(variable.to_owned()),
        Some(("file", path)) => Source::File(Path::new(path).to_owned()),
        // The value may be a secret, so the message does not repeat it.
        _ => {
            return Err(Failure::new(
                "expected env:VARIABLE or file:PATH",
                "a file must not contain a secret; use a reference",
            ));
        }
    };
    source.read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_the_file_is_refused_and_not_repeated() {
        for value in ["hunter2", "plain:hunter2", "''"] {
            let mut lines = Lines::default();
            let text = format!(
                "resources:\n  - name: tracker\n    type: github\n    credential:\n      method: token\n      fields:\n        \
                 token: {value}\n"
            );
            assert!(lines.read("a.yaml".to_owned(), text).is_ok());
            let refused = Credentials::read(&lines).err().unwrap().sentence();
            let place = "a.yaml:7:16: resources[0].credential.fields.token: expected env:VARIABLE";
            assert!(refused.starts_with(place) && !refused.contains("hunter2"), "{refused}");
        }
    }
}
