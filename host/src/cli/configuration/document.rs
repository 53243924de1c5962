//! The YAML form of a configuration, and its conversion from and to the lines of the API's export and import.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use monstrum_api::resources::Network;
use monstrum_api::roles::ScopeConstraints;
use monstrum_manifest::{error_at, read_document};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::client::NOT_MONSTRUM;
use super::super::failure::Failure;
use super::super::output;
use super::FILE_BYTES_MAX;
use super::budgets::Budget;
use super::schedules::Schedule;

/// The roles, resources, bots, OAuth providers, budgets and schedules of a workspace.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Configuration {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) roles: Vec<Role>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) resources: Vec<Resource>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) bots: Vec<Bot>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) oauth_providers: Vec<Provider>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) budgets: Vec<Budget>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) schedules: Vec<Schedule>,
}

/// The OAuth provider of a resource type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Provider {
    #[serde(rename = "type")]
    pub(super) resource_type: String,
    pub(super) client_id: String,
    /// A reference to the secret; never exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) authorization_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device_authorization_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scopes: Option<Vec<String>>,
}

/// The approved definition of a tool that comes from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pin {
    pub(super) digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) effect: Option<String>,
}

impl Pin {
    pub(super) fn effect(&self) -> &str {
        self.effect.as_deref().unwrap_or("write")
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Role {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allowed_operations: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allowed_tools: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    scope_constraints: ScopeConstraints,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gates: Vec<GateText>,
}

/// A gate, which only the server reads.
type GateText = Value;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resource {
    pub(super) name: String,
    #[serde(rename = "type")]
    resource_type: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    config: Map<String, Value>,
    #[serde(default, skip_serializing_if = "is_default")]
    network: Network,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    /// The credential; never exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) credential: Option<Credential>,
    /// The approved tools that come from outside, by their original names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) pins: BTreeMap<String, Pin>,
}

/// A credential whose fields are references to secrets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Credential {
    pub(super) method: String,
    pub(super) fields: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bot {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    system_prompt: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    use_agent_sandbox: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    monthly_token_budget: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gates: Vec<GateText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    model_fallbacks: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task_limits: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_idle_s: Option<i64>,
    #[serde(default, skip_serializing_if = "is_default")]
    client_tools: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) bindings: Vec<Binding>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Binding {
    pub(super) resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permissions: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    scope_constraints: ScopeConstraints,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delegate: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gates: Vec<GateText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow_calls: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    allow_subscribe: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calls_per_minute: Option<u32>,
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
fn is_true(value: &bool) -> bool {
    *value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Configuration {
    /// Returns the configuration that the lines of an export describe.
    pub(super) fn of_lines(lines: &[Value]) -> Result<Configuration, Failure> {
        let mut configuration = Configuration::default();
        for line in lines {
            let mut object = line.as_object().cloned().unwrap_or_default();
            let kind = object.shift_remove("kind");
            object.shift_remove("workspace");
            match kind.as_ref().and_then(Value::as_str) {
                Some("role") => configuration.roles.push(read_line(object)?),
                Some("resource") => {
                    let resource_type = object.shift_remove("resource_type").unwrap_or_default();
                    object.insert("type".to_owned(), resource_type);
                    configuration.resources.push(read_line(object)?);
                }
                Some("bot") => configuration.bots.push(read_line(object)?),
                Some("binding") => {
                    let name = object.shift_remove("bot").unwrap_or_default();
                    let bot = configuration.bots.iter_mut().find(|bot| name == bot.name);
                    bot.ok_or_else(|| unreadable("a binding of no bot"))?.bindings.push(read_line(object)?);
                }
                _ => return Err(unreadable("an unknown kind of object")),
            }
        }
        Ok(configuration)
    }

    pub(super) fn yaml(&self) -> String {
        let mut text = serde_yaml::to_string(self).expect("a configuration is plain data");
        if text.trim() == "{}" {
            text = "# The workspace is empty.\n".to_owned();
        }
        text
    }
}

fn read_line<T: for<'de> Deserialize<'de>>(object: Map<String, Value>) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(object)).map_err(|error| unreadable(&error.to_string()))
}

fn unreadable(what: &str) -> Failure {
    Failure::new(format!("the server's export contains {what}"), NOT_MONSTRUM)
        .because("this program and the server may have different versions")
}

/// The lines of an import, with the place of each line in the files.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<Value>,
    places: Vec<Place>,
    files: Vec<File>,
}

/// A file and its content.
struct File {
    name: String,
    text: String,
    configuration: Configuration,
}

/// The place of an object: a file, and a field such as `bots[2].bindings[0]`.
struct Place {
    file: usize,
    field: String,
}

/// An object in a file.
pub(super) struct At<'a> {
    file: &'a File,
    field: String,
}

impl At<'_> {
    /// Returns the place of the object.
    pub(super) fn whole(&self) -> String {
        let At { file: File { name, text, .. }, field } = self;
        error_at(name, text, field, "").to_string().trim_end_matches(": ").to_owned()
    }

    /// Returns the place of a field of the object: `a.yaml:7:5: resources[0].credential`.
    pub(super) fn place(&self, field: &str) -> String {
        At { file: self.file, field: format!("{}.{field}", self.field) }.whole()
    }
}

impl Lines {
    /// Adds the objects of a file.
    pub(super) fn read(&mut self, name: String, text: String) -> Result<(), Failure> {
        let configuration: Configuration = read_document(&name, &text, FILE_BYTES_MAX).map_err(|error| {
            Failure::new(error.to_string(), "`monstrum apply --help` describes the form of the file")
        })?;
        let file = self.files.len();
        for (index, role) in configuration.roles.iter().enumerate() {
            self.add(file, format!("roles[{index}]"), role_line(role));
        }
        for (index, resource) in configuration.resources.iter().enumerate() {
            self.add(file, format!("resources[{index}]"), resource_line(resource));
        }
        for (index, bot) in configuration.bots.iter().enumerate() {
            self.add(file, format!("bots[{index}]"), bot_line(bot));
            for (number, binding) in bot.bindings.iter().enumerate() {
                self.add(file, format!("bots[{index}].bindings[{number}]"), binding_line(bot, binding));
            }
        }
        self.files.push(File { name, text, configuration });
        Ok(())
    }

    fn add(&mut self, file: usize, field: String, line: Value) {
        self.lines.push(line);
        self.places.push(Place { file, field });
    }

    /// Returns the objects of all files.
    pub(super) fn configurations(&self) -> impl Iterator<Item = &Configuration> {
        self.files.iter().map(|file| &file.configuration)
    }

    /// Returns the resources of all files, each with its place.
    pub(super) fn resources(&self) -> impl Iterator<Item = (At<'_>, &Resource)> {
        self.placed("resources", |configuration| &configuration.resources)
    }

    /// Returns the OAuth providers of all files, each with its place.
    pub(super) fn providers(&self) -> impl Iterator<Item = (At<'_>, &Provider)> {
        self.placed("oauth_providers", |configuration| &configuration.oauth_providers)
    }

    /// Returns the budgets of all files, each with its place.
    pub(super) fn budgets(&self) -> impl Iterator<Item = (At<'_>, &Budget)> {
        self.placed("budgets", |configuration| &configuration.budgets)
    }

    /// Returns the schedules of all files, each with its place.
    pub(super) fn schedules(&self) -> impl Iterator<Item = (At<'_>, &Schedule)> {
        self.placed("schedules", |configuration| &configuration.schedules)
    }

    fn placed<'a, T: 'a>(
        &'a self,
        field: &'static str,
        list: fn(&'a Configuration) -> &'a Vec<T>,
    ) -> impl Iterator<Item = (At<'a>, &'a T)> {
        self.files.iter().flat_map(move |file| {
            let objects = list(&file.configuration).iter().enumerate();
            objects.map(move |(index, object)| (At { file, field: format!("{field}[{index}]") }, object))
        })
    }

    /// Returns the body of an import.
    pub(super) fn body(&self) -> String {
        let mut body = String::new();
        for line in &self.lines {
            writeln!(body, "{line}").expect("writing to a String cannot fail");
        }
        body
    }

    /// Returns the failure with all errors of an import, whose paths begin with the number of a line.
    pub(super) fn invalid(&self, errors: &[Value]) -> Failure {
        let mut failure = Failure::new(
            "the configuration is invalid; nothing was changed",
            "correct the files; `monstrum apply FILE --dry-run` checks them",
        );
        for error in errors {
            let (path, message) = (output::cell(&error["path"]), output::cell(&error["message"]));
            failure = failure.because(&match self.place(&path) {
                Some((file, field)) => error_at(&file.name, &file.text, &field, self.with_places(&message)).to_string(),
                None if path.is_empty() => message,
                None => format!("{path}: {message}"),
            });
        }
        failure
    }

    /// Replaces the line of the import at the beginning of a message, such as `line 4 has the same role`, with its place.
    fn with_places(&self, message: &str) -> String {
        let number = message.strip_prefix("line ").and_then(|rest| rest.split_once(' '));
        let found = number.and_then(|(number, rest)| Some((self.place(&format!("line {number}"))?, rest)));
        found.map_or_else(
            || message.to_owned(),
            |((file, field), rest)| format!("{} {rest}", At { file, field }.whole()),
        )
    }

    /// Returns the file and the field of a path such as `line 12: /scope_constraints/repos/0`.
    fn place(&self, path: &str) -> Option<(&File, String)> {
        let (number, pointer) = match path.strip_prefix("line ")?.split_once(": ") {
            Some((number, pointer)) => (number, pointer),
            None => (path.strip_prefix("line ")?, ""),
        };
        let number: usize = number.parse().ok()?;
        let Place { file, field } = self.places.get(number.checked_sub(1)?)?;
        let mut field = field.clone();
        for step in pointer.split('/').skip(1) {
            match step {
                "resource_type" => field.push_str(".type"),
                "bot" => {}
                index if index.parse::<usize>().is_ok() => write!(field, "[{index}]").expect("no failure"),
                key => write!(field, ".{key}").expect("writing to a String cannot fail"),
            }
        }
        Some((self.files.get(*file)?, field))
    }
}

fn role_line(role: &Role) -> Value {
    let Role { name, allowed_operations, allowed_tools, scope_constraints, gates } = role;
    json!({ "kind": "role", "name": name, "allowed_operations": allowed_operations, "allowed_tools": allowed_tools,
        "scope_constraints": scope_constraints, "gates": gates })
}

fn resource_line(resource: &Resource) -> Value {
    let Resource { name, resource_type, config, network, labels, credential: _, pins: _ } = resource;
    json!({ "kind": "resource", "resource_type": resource_type, "name": name, "config": config, "network": network,
        "labels": labels })
}

fn bot_line(bot: &Bot) -> Value {
    let Bot { name, description, system_prompt, model, use_agent_sandbox, monthly_token_budget, gates, .. } = bot;
    let Bot { model_fallbacks, task_limits, session_idle_s, client_tools, .. } = bot;
    json!({ "kind": "bot", "name": name, "description": description, "system_prompt": system_prompt, "model": model,
        "use_agent_sandbox": use_agent_sandbox, "monthly_token_budget": monthly_token_budget, "gates": gates,
        "model_fallbacks": model_fallbacks, "task_limits": task_limits, "session_idle_s": session_idle_s,
        "client_tools": client_tools })
}

fn binding_line(bot: &Bot, binding: &Binding) -> Value {
    let mut line = json!(binding);
    let defaults = json!({ "kind": "binding", "bot": bot.name, "role": null, "permissions": null,
        "scope_constraints": {}, "delegate": null, "gates": [], "allow_calls": [], "allow_subscribe": false,
        "limits": null, "calls_per_minute": null, "enabled": true, "expires_at": null });
    for (field, value) in defaults.as_object().into_iter().flatten() {
        if line.get(field).is_none() {
            line[field] = value.clone();
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
roles:
  - name: reader
    allowed_operations: ['*.read']
    scope_constraints: { repos: [acme/*] }
resources:
  - name: tracker
    type: github
    network: { allow_http: true }
    credential:
      method: token
      fields: { access_token: env:TOKEN }
bots:
  - name: helper
    bindings:
      - resource: tracker
        role: reader
        limits: { timeout_s: 5 }
";

    fn lines(text: &str) -> Lines {
        let mut lines = Lines::default();
        assert!(lines.read("a.yaml".to_owned(), text.to_owned()).is_ok());
        lines
    }

    #[test]
    fn a_file_becomes_the_lines_of_an_import_and_back() {
        let lines = lines(FILE);
        let kinds: Vec<String> = lines.lines.iter().map(|line| output::cell(&line["kind"])).collect();
        assert_eq!(kinds, ["role", "resource", "bot", "binding"]);
        assert_eq!(lines.lines[1]["network"], json!({ "allow_addresses": [], "allow_http": true }));
        assert_eq!(lines.lines[3]["calls_per_minute"], Value::Null);
        assert!(!lines.body().contains("TOKEN"), "a reference to a secret leaves this machine");
        let read = Configuration::of_lines(&lines.lines).ok().unwrap();
        let mut again = Lines::default();
        assert!(again.read("b.yaml".to_owned(), read.yaml()).is_ok(), "{}", read.yaml());
        assert_eq!(again.body(), lines.body());
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_field() {
        let lines = lines(FILE);
        let error = |path: &str| lines.invalid(&[json!({ "path": path, "message": "is wrong" })]).sentence();
        assert!(
            error("line 4: /role").ends_with("a.yaml:16:15: bots[0].bindings[0].role: is wrong"),
            "{}",
            error("line 4: /role")
        );
        assert!(error("line 1: /scope_constraints/repos/0").contains("a.yaml:4:"), "a pattern");
        assert!(error("line 2: /resource_type").contains("resources[0].type: is wrong"));
        assert!(error("line 3").contains("a.yaml:13:") && error("").ends_with("is wrong"));
        let mut wrong = Lines::default();
        let told = wrong.read("c.yaml".to_owned(), "bots:\n  - name: a\n    colour: red\n".to_owned());
        assert!(told.err().unwrap().sentence().starts_with("c.yaml:3:5: bots[0].colour"));
    }

    /// The file of a workspace whose bots have long prompts is larger than any manifest.
    #[test]
    fn a_file_of_several_mib_can_be_read() {
        let bot =
            |number: usize| json!({ "kind": "bot", "name": number.to_string(), "system_prompt": "x".repeat(20 << 10) });
        let bots: Vec<Value> = (0..240).map(bot).collect();
        let written = Configuration::of_lines(&bots).ok().unwrap().yaml();
        assert!(written.len() > 4 << 20 && written.len() < FILE_BYTES_MAX);
        let mut lines = Lines::default();
        let read = lines.read("large.yaml".to_owned(), written);
        assert!(read.is_ok(), "{:?}", read.err().map(|failure| failure.sentence()));
    }

    #[test]
    fn two_lines_for_one_object_name_both_places() {
        let lines = lines("roles:\n  - name: a\n  - name: b\n  - name: a\n");
        let told = lines.invalid(&[json!({ "path": "line 3", "message": "line 1 has the same role" })]).sentence();
        let [second, first] = ["a.yaml:4:", ": roles[2]: a.yaml:2:"].map(|part| told.find(part));
        assert!(second.is_some() && second < first && told.ends_with(": roles[0] has the same role"), "{told}");
    }

    #[test]
    fn an_empty_configuration_can_be_read() {
        assert_eq!(Configuration::default().yaml(), "# The workspace is empty.\n");
    }
}
