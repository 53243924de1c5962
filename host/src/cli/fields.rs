//! The fields of a request body, as flags of a command set them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use monstrum_types::Secret;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::output;

/// The maximum size of a value that is read from a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A request body.
#[derive(Default)]
pub(super) struct Body(Map<String, Value>);

impl Body {
    /// Sets a field whose flag is given.
    pub(super) fn set(&mut self, field: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.0.insert(field.to_owned(), json!(value));
        }
    }

    /// Sets a list whose flag is given at least once.
    pub(super) fn set_list(&mut self, field: &str, items: Vec<String>) {
        self.set(field, (!items.is_empty()).then_some(items));
    }

    /// Sets a map of scopes whose flag is given at least once.
    pub(super) fn set_scopes(&mut self, scopes: Vec<Scope>) {
        self.set("scope_constraints", (!scopes.is_empty()).then(|| grouped(scopes)));
    }

    /// Adds the fields that an `edit` changes besides those with flags of their own.
    pub(super) fn apply(&mut self, changes: Changes) -> Result<(), Failure> {
        self.add(changes.extra)?;
        self.clear(changes.clear)
    }

    /// Adds the fields of `--set`.
    pub(super) fn add(&mut self, extra: Extra) -> Result<(), Failure> {
        for JsonField { field, value } in extra.set {
            self.insert(field, value)?;
        }
        Ok(())
    }

    /// Adds the fields of `--clear`, which become null.
    fn clear(&mut self, fields: Vec<String>) -> Result<(), Failure> {
        fields.into_iter().try_for_each(|field| self.insert(field, Value::Null))
    }

    fn insert(&mut self, field: String, value: Value) -> Result<(), Failure> {
        if self.0.contains_key(&field) {
            let message = format!("the field `{}` is set twice", output::plain(&field));
            return Err(Failure::new(message, "set each field with one flag"));
        }
        self.0.insert(field, value);
        Ok(())
    }

    /// Returns the body of a change, which must change at least one field.
    pub(super) fn change(self) -> Result<Value, Failure> {
        if self.0.is_empty() {
            return Err(Failure::new("the command changes nothing", "set at least one flag; `--help` lists the flags"));
        }
        Ok(self.whole())
    }

    pub(super) fn whole(self) -> Value {
        Value::Object(self.0)
    }
}

/// Fields of the API for which the command has no flag of their own.
#[derive(Args, Default)]
pub(super) struct Extra {
    /// Set any other field of the API to a JSON value, for example gates='[…]'
    #[arg(long, value_name = "FIELD=JSON")]
    set: Vec<JsonField>,
}

/// The changes of an `edit` for which the command has no flag of their own.
#[derive(Args)]
pub(super) struct Changes {
    /// Remove the value of a field of the API; can be repeated
    #[arg(long, value_name = "FIELD")]
    clear: Vec<String>,
    #[command(flatten)]
    extra: Extra,
}

/// The changes of an `edit` of an object with a name.
#[derive(Args)]
pub(super) struct NamedChanges {
    /// The new name
    #[arg(long)]
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) others: Changes,
}

#[derive(Clone)]
struct JsonField {
    field: String,
    value: Value,
}

impl FromStr for JsonField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, value) = pair(text, "FIELD=JSON")?;
        let value = serde_json::from_str(value).map_err(|error| format!("the value is not JSON: {error}"))?;
        Ok(JsonField { field, value })
    }
}

/// Entries of a scope dimension: `repos=acme/*`.
#[derive(Clone)]
pub(super) struct Scope {
    dimension: String,
    entry: String,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dimension, entry) = pair(text, "DIMENSION=ENTRY")?;
        Ok(Scope { dimension, entry: entry.to_owned() })
    }
}

/// Groups the entries by dimension. An empty entry stands for an empty list, which allows nothing.
fn grouped(scopes: Vec<Scope>) -> BTreeMap<String, Vec<String>> {
    let mut grouped: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Scope { dimension, entry } in scopes {
        let entries = grouped.entry(dimension).or_default();
        if !entry.is_empty() {
            entries.push(entry);
        }
    }
    grouped
}

/// A text as an argument, or as the content of a file.
#[derive(Clone)]
pub(super) struct Text(Source);

impl FromStr for Text {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Text(match text.strip_prefix('@') {
            Some(file) => Source::File(file.into()),
            None => Source::Argument(text.to_owned()),
        }))
    }
}

impl Text {
    pub(super) fn read(self) -> Result<String, Failure> {
        Ok(self.0.read()?.expose().to_owned())
    }
}

/// Reads the JSON of an option.
pub(super) fn json_of(option: &str, text: Text) -> Result<Value, Failure> {
    serde_json::from_str(&text.read()?).map_err(|error| {
        let hint = format!("set --{option} to JSON, or to @FILE for a file with JSON");
        Failure::of(format!("the {option} is not JSON"), &error, hint)
    })
}

/// A field and where its value comes from: `NAME=VALUE`, `NAME=@FILE` or `NAME=env:VARIABLE`.
#[derive(Clone)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) source: Source,
}

#[derive(Clone)]
pub(super) enum Source {
    Argument(String),
    /// A file, or standard input if the path is `-`.
    File(PathBuf),
    Variable(String),
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A secret may stand in the wrong place, so the message does not repeat the text.
        let (name, value) = pair(text, "NAME=@FILE or NAME=env:VARIABLE")?;
        let source = if let Some(file) = value.strip_prefix('@') {
            Source::File(file.into())
        } else if let Some(variable) = value.strip_prefix("env:") {
            Source::Variable(variable.to_owned())
        } else {
            Source::Argument(value.to_owned())
        };
        Ok(Assignment { name, source })
    }
}

impl Source {
    /// Reads the value. A final line feed of a file is not part of the value.
    #[expect(clippy::disallowed_methods, reason = "the user names the variable that contains the value")]
    pub(super) fn read(self) -> Result<Secret, Failure> {
        match self {
            Source::Argument(text) => Ok(Secret::new(text)),
            Source::File(path) => read_file(&path),
            Source::Variable(name) => {
                let value = std::env::var(&name);
                value.map(Secret::new).map_err(|error| {
                    let message = format!("cannot read the environment variable `{}`", output::plain(&name));
                    Failure::of(message, &error, "set the variable for this command")
                })
            }
        }
    }
}

fn read_file(path: &Path) -> Result<Secret, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let shown = path.display();
    let size = read.map_err(|error| {
        Failure::of(format!("cannot read {shown}"), &error, "check the path; `-` is standard input")
    })?;
    let mut secret = Secret::new(text);
    if size as u64 > FILE_BYTES_MAX {
        let message = format!("{shown} exceeds the limit of {} MiB", FILE_BYTES_MAX >> 20);
        return Err(Failure::new(message, "check that this is the right file"));
    }
    if let Some(line) = secret.expose().strip_suffix('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        secret = Secret::new(line.to_owned());
    }
    Ok(secret)
}

/// Splits `text` at the first equals sign.
fn pair<'a>(text: &'a str, form: &str) -> Result<(String, &'a str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value)),
        _ => Err(format!("expected {form}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_dimension_form_one_list() {
        let scopes = ["repos=acme/*", "labels=", "repos=beta/a=b"].map(|text| text.parse().unwrap());
        let mut body = Body::default();
        body.set_scopes(scopes.to_vec());
        assert_eq!(body.whole(), json!({ "scope_constraints": { "labels": [], "repos": ["acme/*", "beta/a=b"] } }));
        assert_eq!("repos".parse::<Scope>().err().unwrap(), "expected DIMENSION=ENTRY");
        assert!("=x".parse::<Scope>().is_err());
    }

    #[test]
    fn a_field_is_set_once() {
        let mut body = Body::default();
        body.set("name", Some("a"));
        body.set("model", None::<String>);
        assert!(body.clear(vec!["name".to_owned()]).is_err());
        let extra = Extra { set: vec![r#"gates=[{"a": 1}]"#.parse().unwrap()] };
        assert!(body.add(extra).is_ok());
        assert_eq!(body.whole(), json!({ "name": "a", "gates": [{ "a": 1 }] }));
        assert!(Body::default().change().is_err());
        assert!("gates=[".parse::<JsonField>().is_err());
    }

    #[test]
    fn values_come_from_arguments_files_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (content, value) in [("abc\n", "abc"), ("abc\r\n", "abc"), ("a\nb\n\n", "a\nb\n"), ("abc", "abc")] {
            fs::write(&path, content).unwrap();
            let given: Assignment = format!("token=@{}", path.display()).parse().unwrap();
            assert_eq!((given.name.as_str(), given.source.read().ok().unwrap().expose()), ("token", value));
        }
        let given: Assignment = "user=ann=1".parse().unwrap();
        assert_eq!(given.source.read().ok().unwrap().expose(), "ann=1");
        for absent in ["a=@/absent/file", "a=env:MONSTRUM_ABSENT_VARIABLE"] {
            assert!(absent.parse::<Assignment>().unwrap().source.read().is_err(), "{absent}");
        }
    }

    #[test]
    fn files_are_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        fs::write(&path, vec![b'a'; usize::try_from(FILE_BYTES_MAX).unwrap() + 1]).unwrap();
        assert!(read_file(&path).is_err());
    }
}
