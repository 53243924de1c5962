//! Why a call is denied, and the change that the page offers: it allows the call and changes nothing else.

mod beyond;
mod kinds;
mod parts;
mod random;

use anyhow::{Context, Result, bail, ensure};
use reqwest::Url;
use serde_json::{Value, json};

use super::{Browser, base};
use crate::http::made;
use crate::world::{World, text};

/// The tool of most cases. Its operation is `echo.read`.
const RUN: &str = "test_echo_run";
const DENIED: [&str; 2] = ["scope_violation", "permission_denied"];

/// A bot with one binding, and a call that it makes.
#[derive(Debug)]
struct Case {
    name: String,
    /// The fields of the role; null for a binding without a role.
    role: Value,
    /// The fields of the binding.
    binding: Value,
    /// The fields of the bot.
    bot: Value,
    tool: &'static str,
    params: Value,
}

impl Case {
    /// Returns a call of [`RUN`] under a role and a binding.
    fn new(name: &str, role: Value, binding: Value, params: Value) -> Case {
        Case { name: name.to_owned(), role, binding, bot: json!({}), tool: RUN, params }
    }

    /// Returns a call of [`RUN`] under scope constraints of the binding.
    fn scoped(name: &str, scopes: &Value, params: Value) -> Case {
        Case::new(name, every_operation(), json!({ "scope_constraints": scopes }), params)
    }

    fn of(self, tool: &'static str) -> Case {
        Case { tool, ..self }
    }
}

/// Returns the fields of a role that allows every operation.
fn every_operation() -> Value {
    json!({ "allowed_operations": ["*"] })
}

/// A change as the API suggests it: its action, the kind of its holder, its field and its entry.
type Change = [String; 4];

/// A denied call.
struct Denied {
    bot: String,
    request: String,
    /// The rule in the audit.
    rule: String,
    /// What the API answers to a check of the call.
    check: Value,
}

impl Denied {
    fn changes(&self) -> Vec<Change> {
        let listed = self.check["changes"].as_array().into_iter().flatten();
        let change = |change: &Value| {
            [&change["action"], &change["holder"]["kind"], &change["field"], &change["entry"]]
                .map(|value| text(value).to_owned())
        };
        listed.map(change).collect()
    }
}

/// A server with one resource, and a browser of a person who may change everything.
struct Scene {
    world: World,
    browser: Browser,
    base: String,
    resource: String,
}

impl Scene {
    async fn open() -> Result<Scene> {
        let world = World::with(&["test-echo"]).await?;
        let browser = Browser::log_in(&world, world.api.key()).await?;
        let base = base(&world).await?;
        let resource = world.api.resource("test-echo", "echo", "https://echo.example").await?;
        Ok(Scene { world, browser, base, resource })
    }

    /// Makes the bot, the role and the binding of a case, and the call. Returns `None` if the call is not denied.
    async fn denied(&self, case: &Case) -> Result<Option<Denied>> {
        let api = &self.world.api;
        let with = |mut own: Value, fields: &Value| -> Value {
            if let (Some(own), Some(fields)) = (own.as_object_mut(), fields.as_object()) {
                own.extend(fields.clone());
            }
            own
        };
        let name = json!({ "name": case.name });
        let bot = made(api, "/api/bots", &with(name.clone(), &case.bot)).await?;
        let mut binding = with(json!({ "resource_id": self.resource }), &case.binding);
        if !case.role.is_null() {
            binding["role_id"] = json!(made(api, "/api/roles", &with(name, &case.role)).await?);
        }
        made(api, &format!("/api/bots/{bot}/resources"), &binding).await?;
        let call = api.call(&bot, case.tool, &case.params).await?;
        if !DENIED.contains(&text(&call["status"])) {
            return Ok(None);
        }
        let request = text(&call["request_id"]).to_owned();
        let rule = text(&api.audit(&request).await?["rule"]).to_owned();
        let check = api.check(&bot, case.tool, &case.params).await?;
        ensure!(check["decision"] == "deny" && check["rule"] == *rule, "{call} {check}");
        Ok(Some(Denied { bot, request, rule, check }))
    }

    /// Returns the path of the page of a bot.
    fn bot(&self, denied: &Denied) -> String {
        format!("{}/bots/{}", self.base, denied.bot)
    }

    /// Checks that the page of the call and the page of the bot explain the denial, and returns the path of the change
    /// that they offer.
    async fn explained(&self, case: &Case, denied: &Denied) -> Result<Option<String>> {
        let bot = self.bot(denied);
        let params = case.params.to_string();
        let asked = Url::parse_with_params("http://localhost", [("tool", case.tool), ("params", params.as_str())])?;
        let asked = asked.query().context("a query")?;
        let request = format!("{}/activity/{}", self.base, denied.request);
        let has_changes = !denied.changes().is_empty();
        let mut offered = None;
        for path in [format!("{bot}?{asked}"), request] {
            let page = self.browser.page(&path).await?;
            let [reason, smallest] = ["reason", "smallest_change"].map(|field| prose(text(&denied.check[field])));
            for part in ["card why denied", &format!("<code>{}</code>", denied.rule), &reason] {
                ensure!(page.contains(part), "{path} lacks {part}: {page}");
            }
            ensure!(has_changes || page.contains(&smallest), "{path} lacks {smallest}: {page}");
            ensure!(!page.contains("<b>"), "{path} shows markup of a value: {page}");
            let link = page.split("href=\"").find(|part| part.starts_with(&format!("{bot}/change?")));
            let link = link.and_then(|link| link.split('"').next()).map(|link| link.replace("&#38;", "&"));
            ensure!(link.is_some() == has_changes, "{path} offers {link:?}: {}", denied.check);
            offered = link;
        }
        let change = format!("{bot}/change");
        if offered.is_none() {
            let page = self.browser.page(&format!("{change}?{asked}")).await?;
            ensure!(!page.contains(&format!("action=\"{change}\"")), "nothing can be changed: {page}");
        }
        Ok(offered)
    }

    /// Makes the change of the page, and checks that it allows the call and changes nothing else. A call for which a gate
    /// asks ends with the status `end`.
    async fn flipped(&self, case: &Case, denied: &Denied, change: &str, end: &str) -> Result<()> {
        let mut expected = self.policy().await?;
        alter(&mut expected, &case.name, &denied.changes())?;
        let page = self.browser.page(change).await?;
        let is_marked = ["removed", "added"].iter().any(|kind| page.contains(&format!("<span class=\"{kind}\">")));
        ensure!(page.contains("<pre class=\"lines\">") && is_marked, "{page}");
        let done = self.browser.submit(change, &format!("{}/change", self.bot(denied)), &[]).await?;
        ensure!(done.status == 303, "{} {}", done.status, done.text);
        let shown = self.browser.page(done.location()).await?;
        let class = if end == "success" { "card why success" } else { "card why waiting" };
        ensure!(shown.contains(class), "the page asks again: {shown}");
        let call = self.world.api.call(&denied.bot, case.tool, &case.params).await?;
        ensure!(call["status"] == end, "the call after the change: {call}");
        let policy = self.policy().await?;
        let differing: Vec<_> = policy.iter().zip(&expected).filter(|(is, wanted)| is != wanted).collect();
        ensure!(policy == expected, "the policy differs from what the page announced: {differing:#?}");
        Ok(())
    }

    /// Checks that the case is denied by this rule, and that exactly these changes allow the call.
    async fn proved(&self, case: &Case, rule: &str, changes: &[[&str; 4]], end: &str) -> Result<()> {
        let denied = self.denied(case).await?.context("the call is not denied")?;
        ensure!(denied.rule == rule, "denied by {}, expected {rule}", denied.rule);
        ensure!(denied.changes() == changes, "{:?}, expected {changes:?}", denied.changes());
        match self.explained(case, &denied).await? {
            Some(change) => self.flipped(case, &denied, &change, end).await,
            None => Ok(()),
        }
    }

    /// Returns every role, bot, resource and binding, with the names of the objects to which they refer.
    async fn policy(&self) -> Result<Vec<Value>> {
        let (status, export) = self.world.api.get("/api/export").await?;
        ensure!(status == 200, "{status} {export}");
        text(&export).lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }
}

/// Makes changes in an export, as a person would. `name` is the name of the bot and of the role.
fn alter(policy: &mut [Value], name: &str, changes: &[Change]) -> Result<()> {
    for [action, holder, field, entry] in changes {
        let (kind, key) = if holder == "role" { ("role", "name") } else { ("binding", "bot") };
        let line = policy.iter_mut().find(|line| line["kind"] == kind && line[key] == name);
        let mut place = line.with_context(|| format!("no {kind} of {name}"))?;
        for step in field.split('.') {
            place = &mut place[step];
        }
        match (action.as_str(), place) {
            ("add", Value::Array(list)) => list.push(json!(entry)),
            ("add", list) => *list = json!([entry]),
            ("remove", Value::Object(map)) => {
                map.remove(entry).with_context(|| format!("{field} has no {entry}"))?;
            }
            (other, place) => bail!("{other} {entry} at {place}"),
        }
    }
    Ok(())
}

/// Returns a sentence as a page shows it: escaped, with its parts between backticks as code.
fn prose(text: &str) -> String {
    let escaped = html(text);
    let mut parts = escaped.split('`');
    let mut shown = parts.next().unwrap_or_default().to_owned();
    while let (Some(code), Some(rest)) = (parts.next(), parts.next()) {
        // Two backticks that enclose nothing stay as they are.
        let code = if code.is_empty() { "``".to_owned() } else { format!("<code>{code}</code>") };
        shown.push_str(&format!("{code}{rest}"));
    }
    shown
}

/// Returns a text as the templates escape it.
fn html(text: &str) -> String {
    let escaped = text.replace('&', "&#38;").replace('<', "&#60;").replace('>', "&#62;");
    escaped.replace('"', "&#34;").replace('\'', "&#39;")
}
