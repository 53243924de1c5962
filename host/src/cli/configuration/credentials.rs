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
use super::document::{Credential, Lines};

/// The credentials of the files, with their secrets.
pub(super) struct Credentials(Vec<Read>);

struct Read {
    resource: String,
    method: String,
    fields: BTreeMap<String, Secret>,
}

impl Credentials {
    /// Reads the secrets of all credentials.
    pub(super) fn read(lines: &Lines) -> Result<Credentials, Failure> {
        let resources = lines.configurations().flat_map(|configuration| &configuration.resources);
        let given = resources.filter_map(|resource| Some((&resource.name, resource.credential.as_ref()?)));
        given.map(|(name, credential)| read(name, credential)).collect::<Result<_, _>>().map(Credentials)
    }

    /// Keeps the credentials of resources that lack one or do not exist yet. With `replaces`, keeps all.
    pub(super) async fn without_present(self, client: &Client, replaces: bool) -> Result<Credentials, Failure> {
        if replaces || self.0.is_empty() {
            return Ok(self);
        }
        let present = client.items(&["api", "resources"], &[]).await?;
        let has_one = |read: &Read| {
            let resource = present.iter().find(|resource| resource["name"] == *read.resource);
            resource.is_some_and(|resource| !resource["credential"].is_null())
        };
        Ok(Credentials(self.0.into_iter().filter(|read| !has_one(read)).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn resources(&self) -> Vec<&str> {
        self.0.iter().map(|read| read.resource.as_str()).collect()
    }

    /// Saves the credentials.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        for Read { resource, method, fields } in &self.0 {
            let id = names::id_of_name(client, Noun::Resource, resource).await?;
            let fields: Map<String, Value> =
                fields.iter().map(|(name, secret)| (name.clone(), json!(secret.expose()))).collect();
            let body = json!({ "auth_method": method, "fields": fields });
            let saved = client.put(&["api", "resources", &id, "credential"], &body).await;
            saved.map_err(|failure| failure.about(&format!("the credential of {}", output::plain(resource))))?;
        }
        Ok(())
    }
}

fn read(resource: &str, credential: &Credential) -> Result<Read, Failure> {
    let mut fields = BTreeMap::new();
    for (name, reference) in &credential.fields {
        let about = format!("the credential of {}, field {}", output::plain(resource), output::plain(name));
        fields.insert(name.clone(), secret(reference, &about)?);
    }
    Ok(Read { resource: resource.to_owned(), method: credential.method.clone(), fields })
}

/// Reads the secret of a reference. `about` says what the secret is for.
pub(super) fn secret(reference: &str, about: &str) -> Result<Secret, Failure> {
    let source = match reference.split_once(':') {
        Some(("env", variable)) => Source::Variable(variable.to_owned()),
        Some(("file", path)) => Source::File(Path::new(path).to_owned()),
        // The value may be a secret, so the message does not repeat it.
        _ => {
            let message = format!("{about}: expected env:VARIABLE or file:PATH");
            return Err(Failure::new(message, "a file must not contain a secret; use a reference"));
        }
    };
    source.read().map_err(|failure| failure.about(about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_the_file_is_refused_and_not_repeated() {
        for value in ["hunter2", "plain:hunter2", ""] {
            let fields = BTreeMap::from([("token".to_owned(), value.to_owned())]);
            let credential = Credential { method: "token".to_owned(), fields };
            let refused = read("tracker", &credential).err().unwrap().sentence();
            assert!(refused.contains("expected env:VARIABLE") && !refused.contains("hunter2"), "{refused}");
        }
    }
}
