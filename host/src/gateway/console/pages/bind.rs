//! Binding a bot to a resource: the role, the permissions, the scopes and the limits on one page, with a preview that
//! the server decides.

mod preview;

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, Failure, Versioned, segment, with_query};
use crate::gateway::console::form::Fields;
use crate::gateway::console::gates::{self, GateForm};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bot::{self, Bot};
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::picker::{Restriction, Scope};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;
use preview::Preview;

/// The mode of a saved scope that the type does not declare.
const UNDECLARED: &str = "undeclared";

#[derive(Deserialize)]
struct Named {
    id: String,
    name: Text,
}

#[derive(Deserialize)]
struct Resource {
    id: String,
    name: Text,
    resource_type: Text,
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// What a resource type offers.
#[derive(Default, Deserialize)]
struct Type {
    tools: Vec<TypeTool>,
    scope_dimensions: Vec<Dimension>,
}

#[derive(Deserialize)]
struct TypeTool {
    name: Text,
    description: Text,
    operation: Text,
}

#[derive(Deserialize)]
struct Dimension {
    key: Text,
    match_mode: String,
}

/// A tool of a resource that discovers its tools.
#[derive(Deserialize)]
struct Pin {
    name: Text,
    effect: String,
    status: String,
}

impl BindPage {
    /// Returns the path of the form's action, without its query.
    fn action_path(&self) -> &str {
        self.action.split('?').next().unwrap_or_default()
    }
}

#[derive(Template)]
#[template(path = "console/bind.html")]
struct BindPage {
    frame: Frame,
    bot: Bot,
    /// The resources to choose from, before one is chosen.
    resources: Vec<Resource>,
    resource: Option<Resource>,
    roles: Vec<Named>,
    role_id: Text,
    operations: Restriction,
    tools: Restriction,
    scopes: Vec<Scope>,
    allow_calls: Text,
    calls_per_minute: Text,
    limits: Vec<(&'static str, Text)>,
    expires_at: Text,
    enabled: bool,
    gates: GateForm,
    delegate: Text,
    errors: Vec<(Text, Text)>,
    preview: Option<Preview>,
    action: String,
    version: String,
    /// Whether an existing binding is edited.
    is_edit: bool,
    back: String,
}

const LIMITS: [&str; 4] = ["concurrent", "timeout_s", "memory_mib", "fuel"];

/// The resource that was chosen.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Chosen {
    #[serde(default)]
    resource: String,
}

/// Shows the form of a new binding. First, a resource is chosen.
pub(in crate::gateway::console) async fn new(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<Chosen>,
) -> Page {
    let target = new_target(&visit, &id, chosen).await?;
    // Without a role, no restriction of both lists grants nothing, so the form starts with a list to choose from.
    let start = json!({"enabled": true, "permissions": {"allowed_operations": []}});
    let page = form(&visit, target, &start, Vec::new()).await?;
    Ok(page::render(&page))
}

/// Shows an existing binding.
pub(in crate::gateway::console) async fn edit(
    visit: Visit,
    Path((_, id, binding)): Path<(String, String, String)>,
) -> Page {
    let (target, value) = existing(&visit, &id, &binding).await?;
    let page = form(&visit, target, &value, Vec::new()).await?;
    Ok(page::render(&page))
}

/// The binding that a form creates or changes.
struct Target {
    bot: Bot,
    resource: String,
    binding: Option<String>,
    version: String,
    action: String,
}

/// Returns the binding that does not exist yet.
async fn new_target(visit: &Visit, id: &str, chosen: Chosen) -> Result<Target, Failure> {
    let bot = bot::read(visit, id).await?;
    let action = with_query(&format!("{}/bind", bot.base), &[("resource", &chosen.resource)]);
    Ok(Target { bot, resource: chosen.resource, binding: None, version: String::new(), action })
}

async fn existing(visit: &Visit, id: &str, binding: &str) -> Result<(Target, Value), Failure> {
    let path = format!("/api/bots/{}/resources/{}", segment(id), segment(binding));
    let (bot, read) = tokio::join!(bot::read(visit, id), visit.client.get_versioned::<Value>(&path));
    let (bot, Versioned { value, version }) = (bot?, read?);
    let resource = value.get("resource_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let action = format!("{}/bindings/{}", bot.base, segment(binding));
    Ok((Target { bot, resource, binding: Some(binding.to_owned()), version, action }, value))
}

async fn form(visit: &Visit, target: Target, value: &Value, errors: Vec<(Text, Text)>) -> Result<BindPage, Failure> {
    let Target { bot, resource, binding, version, action } = target;
    let title = visit.words().filled("bind.title", &[&bot.name]);
    let frame = visit.frame("bots", &title).await;
    let (mut resources, mut chosen, mut kind, mut pins) = (Vec::new(), None, Type::default(), Vec::new());
    if resource.is_empty() {
        resources = visit.client.get::<List<Resource>>("/api/resources?limit=200").await?.items;
    } else {
        let found = visit.client.get::<Resource>(&format!("/api/resources/{}", segment(&resource))).await?;
        let of_type = format!("/api/resource-types/{}", segment(found.resource_type.raw()));
        let of_pins = format!("/api/resources/{}/tools", segment(&resource));
        let (of_type, of_pins) =
            tokio::join!(visit.client.get::<Type>(&of_type), visit.client.get::<List<Pin>>(&of_pins));
        // A type whose plugin is not loaded has no tools at this moment.
        kind = of_type.unwrap_or_default();
        pins = of_pins.map(|list| list.items).unwrap_or_default();
        chosen = Some(found);
    }
    let roles = visit.client.get::<List<Named>>("/api/roles?limit=200").await?.items;
    let text = |name: &str| -> Text {
        match value.get(name) {
            None | Some(Value::Null) => Text::default(),
            Some(Value::String(text)) => text.as_str().into(),
            Some(other) => other.to_string().into(),
        }
    };
    let json = |name: &str| match value.get(name) {
        None | Some(Value::Null) => Text::default(),
        Some(Value::Array(list)) if list.is_empty() => Text::default(),
        Some(other) => pretty(other),
    };
    let limit = |name: &'static str| {
        let limit = value.get("limits").and_then(|limits| limits.get(name));
        (name, limit.map(|limit| Text::from(limit.to_string())).unwrap_or_default())
    };
    let permissions = value.get("permissions");
    let list = |name: &str| permissions.and_then(|permissions| permissions.get(name));
    let back = bot.base.clone();
    Ok(BindPage {
        frame,
        roles,
        role_id: text("role_id"),
        operations: Restriction::new(list("allowed_operations"), operations(&kind, &pins)),
        tools: Restriction::new(list("allowed_tools"), tools(&kind, &pins)),
        scopes: scopes(&kind, value),
        allow_calls: lines(value.get("allow_calls")),
        calls_per_minute: text("calls_per_minute"),
        limits: LIMITS.map(limit).to_vec(),
        expires_at: text("expires_at"),
        enabled: value.get("enabled").and_then(Value::as_bool).unwrap_or_default(),
        gates: GateForm::of(value.get("gates").unwrap_or(&Value::Null)).opened(&errors),
        delegate: json("delegate"),
        errors,
        preview: None,
        action,
        version,
        is_edit: binding.is_some(),
        back,
        bot,
        resources,
        resource: chosen,
    })
}

fn operations(kind: &Type, pins: &[Pin]) -> Vec<(Text, Text)> {
    let mut by_name: BTreeMap<Text, Vec<&str>> = BTreeMap::new();
    for tool in &kind.tools {
        by_name.entry(tool.operation.clone()).or_default().push(tool.name.raw());
    }
    let declared = by_name.into_iter().map(|(name, tools)| (name, Text::from(tools.join(", "))));
    // A discovered tool is an operation of its own.
    declared.chain(pins.iter().map(|pin| (pin.name.clone(), Text::default()))).collect()
}

fn tools(kind: &Type, pins: &[Pin]) -> Vec<(Text, Text)> {
    let declared = kind.tools.iter().map(|tool| (tool.name.clone(), tool.description.start(120)));
    let discovered = pins.iter().map(|pin| (pin.name.clone(), Text::from(format!("{}, {}", pin.effect, pin.status))));
    declared.chain(discovered).collect()
}

/// Returns the scopes that the type declares, and after them the saved ones that it does not declare. A form without the
/// latter would remove them, and the binding would then permit every value. A type whose plugin is not loaded declares
/// none.
fn scopes(kind: &Type, value: &Value) -> Vec<Scope> {
    let saved = value.get("scope_constraints").and_then(Value::as_object);
    let scope = |key: &str, match_mode: &str| {
        let entries = saved.and_then(|saved| saved.get(key));
        Scope {
            key: key.into(),
            match_mode: match_mode.to_owned(),
            is_restricted: entries.is_some(),
            entries: lines(entries),
            tested: Text::default(),
            verdict: None,
        }
    };
    let declared = &kind.scope_dimensions;
    let is_declared = |key: &str| declared.iter().any(|dimension| dimension.key.raw() == key);
    let others = saved.into_iter().flatten().map(|(key, _)| key.as_str()).filter(|key| !is_declared(key));
    let others = others.map(|key| scope(key, UNDECLARED));
    declared.iter().map(|dimension| scope(dimension.key.raw(), &dimension.match_mode)).chain(others).collect()
}

fn lines(list: Option<&Value>) -> Text {
    let entries = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n").into()
}

/// Reads the binding that a form describes. The fields that the page does not show are left out. Also returns the places
/// of the values that cannot be read, each with the key of a word.
fn draft(fields: &Fields) -> (Map<String, Value>, Vec<(Text, Text)>) {
    let mut errors = Vec::new();
    let mut number = |name: &str| match fields.value(name).trim() {
        "" => Value::Null,
        text => match text.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) => {
                errors.push((Text::from(name), Text::from("form.not_integer")));
                Value::Null
            }
        },
    };
    let calls_per_minute = number("calls_per_minute");
    let limits: Map<String, Value> = LIMITS
        .iter()
        .map(|name| ((*name).to_owned(), number(&format!("limit.{name}"))))
        .filter(|(_, value)| !value.is_null())
        .collect();
    let limits = if limits.is_empty() { Value::Null } else { limits.into() };
    let mut json = |name: &str| match fields.value(name).trim() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| {
            errors.push((Text::from(name), Text::from("form.not_json")));
            Value::Null
        }),
    };
    let delegate = json("delegate");
    let optional = |name: &str| Some(fields.value(name).trim()).filter(|value| !value.is_empty());
    // Entries count as a restriction also beside the choice of no restriction. Otherwise they would be lost, and the
    // binding would permit everything.
    let restricted = |mode: &str, entries: Vec<String>| (mode == "only" || !entries.is_empty()).then_some(entries);
    let restriction = |name: &str| {
        let chosen = format!("{name}.known");
        let mut entries: Vec<String> = fields.values(&chosen).map(str::to_owned).collect();
        entries.extend(fields.lines(&format!("{name}.others")));
        restricted(fields.value(&format!("{name}.mode")), entries)
    };
    let (operations, tools) = (restriction("operations"), restriction("tools"));
    let permissions = match (&operations, &tools) {
        (None, None) => Value::Null,
        _ => {
            let lists = [("allowed_operations", operations), ("allowed_tools", tools)];
            let lists = lists.into_iter().filter_map(|(name, list)| Some((name.to_owned(), Value::from(list?))));
            Value::Object(lists.collect())
        }
    };
    let scopes: Map<String, Value> = fields
        .with_prefix("scope.mode.")
        .filter_map(|(key, mode)| {
            let entries = restricted(mode, fields.lines(&format!("scope.entries.{key}")))?;
            Some((key.to_owned(), Value::from(entries)))
        })
        .collect();
    let gates = gates::read(fields, &mut errors);
    let mut draft = json!({
        "role_id": optional("role_id"),
        "permissions": permissions,
        "scope_constraints": scopes,
        "allow_calls": fields.lines("allow_calls"),
        "calls_per_minute": calls_per_minute,
        "limits": limits,
        "expires_at": optional("expires_at"),
        "enabled": fields.has("enabled"),
        "delegate": delegate,
    });
    if let Some(gates) = gates {
        draft["gates"] = gates.into();
    }
    match draft {
        Value::Object(draft) => (draft, errors),
        _ => (Map::new(), errors),
    }
}

/// Returns the places of the choices that a binding lacks, each with the key of a word.
fn missing(draft: &Map<String, Value>, is_new: bool) -> Vec<(Text, Text)> {
    let permissions = draft.get("permissions").filter(|permissions| !permissions.is_null());
    if permissions.is_none() && draft.get("role_id").is_none_or(Value::is_null) {
        return vec![("role_id".into(), "bind.needs_grant".into())];
    }
    // The form of a new binding starts with an empty list, which can be an oversight.
    let is_empty = |list: &str| permissions.and_then(|all| all[list].as_array()).is_some_and(Vec::is_empty);
    let lists = [("operations", "allowed_operations"), ("tools", "allowed_tools")];
    let empty = lists.into_iter().filter(|(_, list)| is_new && is_empty(list));
    empty.map(|(place, _)| (place.into(), "bind.needs_values".into())).collect()
}

/// Shows the numbers and the JSON texts as they were typed, because some of them cannot be read.
fn as_typed(page: BindPage, fields: &Fields) -> BindPage {
    let text = |name: &str| Text::from(fields.value(name));
    BindPage {
        calls_per_minute: text("calls_per_minute"),
        limits: LIMITS.map(|name| (name, text(&format!("limit.{name}")))).to_vec(),
        gates: GateForm::typed(fields).opened(&page.errors),
        delegate: text("delegate"),
        ..page
    }
}

/// Previews or creates a binding.
pub(in crate::gateway::console) async fn create(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(chosen): Query<Chosen>,
) -> Page {
    let target = new_target(&visit, &id, chosen).await?;
    submit(&visit, target).await
}

/// Previews or saves a binding.
pub(in crate::gateway::console) async fn save(
    visit: Visit,
    Path((_, id, binding)): Path<(String, String, String)>,
) -> Page {
    let (target, _) = existing(&visit, &id, &binding).await?;
    submit(&visit, target).await
}

async fn submit(visit: &Visit, mut target: Target) -> Page {
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut target.version, visit.shown_version());
    let (mut body, mut unread) = draft(visit.fields());
    if unread.is_empty() {
        unread = missing(&body, target.binding.is_none());
    }
    if !unread.is_empty() {
        let told = |(place, key): (Text, Text)| (place, Text::from(visit.words().text(key.raw())));
        let errors = unread.into_iter().map(told).collect();
        let page = form(visit, target, &Value::Object(body), errors).await?;
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &as_typed(page, visit.fields())));
    }
    let path = format!("/api/bots/{}/resources", segment(&target.bot.id));
    let shown = Value::Object(body.clone());
    if target.binding.is_none() || visit.fields().has("preview") {
        body.insert("resource_id".to_owned(), target.resource.as_str().into());
    }
    let refused = if visit.fields().has("preview") {
        let mut ask = json!({"draft": body});
        if let Some(binding) = &target.binding {
            ask["binding_id"] = binding.as_str().into();
        }
        let path = format!("{path}/preview");
        match visit.client.send::<Preview>(Method::POST, &path, &ask, Conditions::default()).await {
            Ok(preview) => {
                let mut page = BindPage { preview: Some(preview), ..form(visit, target, &shown, Vec::new()).await? };
                for scope in &mut page.scopes {
                    let value = visit.fields().value(&format!("scope.test.{}", scope.key.raw()));
                    scope.test(visit.words(), value);
                }
                return Ok(page::render(&page));
            }
            Err(failure) => failure,
        }
    } else {
        let (method, path) = match &target.binding {
            Some(binding) => (Method::PATCH, format!("{path}/{}", segment(binding))),
            None => (Method::POST, path),
        };
        match visit.client.act(method, &path, Some(&Value::Object(body)), visit.conditions()).await {
            Ok(()) => return Ok(visit.done(visit.words().text("bind.saved").to_owned(), &target.bot.base).await),
            Err(failure) => failure,
        }
    };
    match refused {
        Failure::Refused(refusal) if matches!(refusal.status, 409 | 412 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            let mut errors = refusal.told();
            if refusal.status == 412 {
                target.version = current;
                errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            }
            let page = form(visit, target, &shown, errors).await?;
            Ok(page::render_as(status, &page))
        }
        failure => Err(failure),
    }
}

/// Asks before a binding is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(
    visit: Visit,
    Path((_, id, binding)): Path<(String, String, String)>,
) -> Page {
    let (target, _) = existing(&visit, &id, &binding).await?;
    let path = format!("/api/resources/{}", segment(&target.resource));
    let resource = visit.client.get::<Resource>(&path).await?;
    let frame = visit.frame("bots", visit.words().text("bind.delete")).await;
    let text = visit.words().filled("bind.delete_text", &[&target.bot.name, &resource.name]);
    let (action, back) = (format!("{}/delete", target.action), target.action);
    Ok(page::render(&ConfirmPage { frame, name: Text::default(), text, action, version: target.version, back }))
}

/// Deletes a binding.
pub(in crate::gateway::console) async fn delete(
    visit: Visit,
    Path((_, id, binding)): Path<(String, String, String)>,
) -> Page {
    let path = format!("/api/bots/{}/resources/{}", segment(&id), segment(&binding));
    visit.client.act(Method::DELETE, &path, None, visit.conditions()).await?;
    let back = visit.to(&format!("bots/{}", segment(&id)));
    Ok(visit.done(visit.words().text("bind.deleted").to_owned(), &back).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_list_and_an_empty_list_differ() {
        let draft = |body: &str| Value::Object(draft(&Fields::parse(body.as_bytes())).0);
        let none = draft("operations.mode=all&tools.mode=all&scope.mode.repos=all");
        assert_eq!((&none["permissions"], &none["scope_constraints"]), (&Value::Null, &json!({})));
        let some = draft(
            "operations.mode=only&tools.mode=only&tools.known=a&tools.others=b_*%0D%0A&scope.mode.repos=only&\
             scope.entries.repos=acme%2F*&enabled=on",
        );
        assert_eq!(some["permissions"], json!({"allowed_operations": [], "allowed_tools": ["a", "b_*"]}));
        assert_eq!(some["scope_constraints"], json!({"repos": ["acme/*"]}));
        assert_eq!((&none["enabled"], &some["enabled"]), (&json!(false), &json!(true)));
    }

    #[test]
    fn saved_scopes_that_the_type_does_not_declare_are_shown_and_kept() {
        let saved = json!({"scope_constraints": {"repos": ["acme/*"], "labels": ["bug"], "old": []}});
        let dimension = Dimension { key: "repos".into(), match_mode: "pattern".to_owned() };
        let declares_repos = Type { tools: Vec::new(), scope_dimensions: vec![dimension] };
        for (kind, modes) in [
            (declares_repos, ["pattern", UNDECLARED, UNDECLARED]),
            (Type::default(), [UNDECLARED, UNDECLARED, UNDECLARED]),
        ] {
            let scopes = scopes(&kind, &saved);
            assert_eq!(scopes.iter().map(|scope| scope.match_mode.as_str()).collect::<Vec<_>>(), modes);
            let sent: String = scopes
                .iter()
                .map(|scope| {
                    let (key, entries) = (scope.key.raw(), scope.entries.raw().replace('/', "%2F"));
                    let mode = if scope.is_restricted { "only" } else { "all" };
                    format!("scope.mode.{key}={mode}&scope.entries.{key}={entries}&")
                })
                .collect();
            let (draft, errors) = draft(&Fields::parse(sent.as_bytes()));
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(draft["scope_constraints"], saved["scope_constraints"]);
        }
    }

    #[test]
    fn entries_are_not_lost_beside_the_choice_of_no_restriction() {
        let typed = b"operations.mode=all&operations.known=a&tools.mode=all&tools.others=b&scope.mode.repos=all&\
            scope.entries.repos=acme%2F*&scope.mode.labels=all";
        let (draft, errors) = draft(&Fields::parse(typed));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(draft["permissions"], json!({"allowed_operations": ["a"], "allowed_tools": ["b"]}));
        assert_eq!(draft["scope_constraints"], json!({"repos": ["acme/*"]}));
    }

    #[test]
    fn a_choice_that_a_new_binding_lacks_is_told_with_its_place() {
        let places = |body: &str, is_new: bool| -> Vec<String> {
            let (draft, _) = draft(&Fields::parse(body.as_bytes()));
            missing(&draft, is_new).iter().map(|(place, _)| place.raw().to_owned()).collect()
        };
        assert_eq!(places("operations.mode=all&tools.mode=all", true), ["role_id"]);
        assert_eq!(places("operations.mode=only&tools.mode=all", true), ["operations"]);
        assert_eq!(places("role_id=r&operations.mode=only&tools.mode=only", true), ["operations", "tools"]);
        let complete = ["role_id=r&operations.mode=all&tools.mode=all", "operations.mode=all&operations.known=a"];
        for body in complete {
            assert!(places(body, true).is_empty(), "{body}");
        }
        // An existing binding may keep a list that grants nothing.
        assert!(places("operations.mode=only&tools.mode=all", false).is_empty());
    }

    #[test]
    fn numbers_and_json_that_cannot_be_read_are_told_with_their_place() {
        let errors = draft(&Fields::parse(b"calls_per_minute=x&limit.fuel=-1&delegate=%5B&gates=1&gate=0")).1;
        let places: Vec<&str> = errors.iter().map(|(place, _)| place.raw()).collect();
        assert_eq!(places, ["calls_per_minute", "limit.fuel", "delegate", "/gates/0/action"]);
    }
}
