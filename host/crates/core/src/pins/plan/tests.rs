use monstrum_types::KeyId;
use serde_json::{Value, json};

use super::*;
use crate::pins::declared::check;
use crate::pins::{Choice, DeclaredTool, Refusal, Verdict};

/// A resource with its stored rows, whose server declares tools again and again.
struct Server {
    workspace: WorkspaceId,
    resource: ResourceId,
    url: &'static str,
    how: Definitions,
    stored: Stored,
    now: UtcMillis,
}

fn tool(name: &str, description: &str) -> DeclaredTool {
    let definition = json!({"name": name, "description": description, "inputSchema": {"type": "object"}});
    declared(name, definition)
}

fn declared(name: &str, definition: Value) -> DeclaredTool {
    let Value::Object(definition) = definition else { panic!("a definition is an object") };
    DeclaredTool { original_name: name.to_owned(), definition, effect_hint: None }
}

impl Server {
    fn new(how: Definitions) -> Server {
        let (workspace, resource) = (WorkspaceId::new(), ResourceId::new());
        Server { workspace, resource, url: "https://a.example", how, stored: Stored::default(), now: UtcMillis(1_000) }
    }

    /// Records a discovery. Returns the original name and the status of each tool, sorted by name.
    fn declares(&mut self, tools: Vec<DeclaredTool>) -> Vec<(String, &'static str)> {
        let checked = check(tools, &self.stored.rows);
        let discovery = Discovery {
            workspace: self.workspace,
            resource: self.resource,
            name: "tracker",
            url: self.url,
            declared: &checked,
            how: self.how,
            now: self.now,
        };
        let writes = discovery.plan(&self.stored);
        self.apply(writes);
        let again = discovery.plan(&self.stored);
        assert!(again.written.is_empty() && again.deleted.is_empty() && again.first.is_none(), "{again:?}");
        self.now = self.now.plus_ms(1_000);
        self.shown()
    }

    fn apply(&mut self, writes: ToolWrites) {
        let rows = &mut self.stored.rows;
        rows.retain(|row| !writes.deleted.contains(&row.id));
        for row in writes.written {
            match rows.iter_mut().find(|known| known.id == row.id) {
                Some(known) => *known = row,
                None => rows.push(row),
            }
        }
        self.stored.first = writes.first.or(self.stored.first.take());
    }

    fn decides(&mut self, verdict: Verdict, name: &str, effect: Effect) -> Result<(), Refusal> {
        let digest = self.row(name).digest.clone();
        let choice = Choice { original_name: name.to_owned(), digest, effect };
        let Stored { rows, first } = self.stored.clone();
        let writes = verdict.writes(&[choice], rows, first, (KeyId::new(), self.now))?;
        self.apply(writes);
        Ok(())
    }

    fn approves(&mut self, name: &str) {
        self.decides(Verdict::Approve, name, Effect::Read).unwrap();
    }

    fn row(&self, name: &str) -> &ResourceToolRow {
        self.stored.rows.iter().find(|row| row.original_name == name).unwrap()
    }

    fn shown(&self) -> Vec<(String, &'static str)> {
        let mut shown: Vec<_> =
            self.stored.rows.iter().map(|row| (row.original_name.clone(), row.status.as_str())).collect();
        shown.sort();
        for row in &self.stored.rows {
            assert_eq!(row.is_served(), row.status == PinStatus::Approved, "{row:?}");
        }
        shown
    }
}

fn expected(tools: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    tools.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect()
}

#[test]
fn under_review_nothing_is_served_before_it_is_approved() {
    let mut server = Server::new(Definitions::Review);
    let both = || vec![tool("a", "1"), tool("b", "1")];
    assert_eq!(server.declares(both()), expected(&[("a", "pending"), ("b", "pending")]));
    server.approves("a");
    assert_eq!(server.declares(both()), expected(&[("a", "approved"), ("b", "pending")]));
    assert_eq!(server.row("a").effect, "read");
    assert_eq!(server.declares(vec![tool("a", "2"), tool("b", "1")]), expected(&[("a", "changed"), ("b", "pending")]));
    assert_eq!(server.row("a").approved_definition.as_deref().map(|text| text.contains("\"1\"")), Some(true));
    assert_eq!(
        server.declares(both()),
        expected(&[("a", "approved"), ("b", "pending")]),
        "the approved digest is back"
    );
    assert_eq!((server.row("a").effect.as_str(), &server.row("a").approved_definition), ("read", &None));
    assert_eq!(server.declares(vec![]), expected(&[("a", "gone")]), "only a row with a decision stays");
    let slug = server.row("a").slug.clone();
    assert_eq!(server.declares(both()), expected(&[("a", "approved"), ("b", "pending")]));
    assert_eq!(server.row("a").slug, slug);
}

#[test]
fn every_member_of_a_definition_counts_and_no_other() {
    let full = json!({
        "name": "a", "title": "T", "description": "D", "inputSchema": {"type": "object", "properties": {"x": {}}},
        "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true},
    });
    let mut server = Server::new(Definitions::Review);
    server.declares(vec![declared("a", full.clone())]);
    server.approves("a");
    for (member, value) in [
        ("title", json!("t")),
        ("description", json!("D.")),
        ("inputSchema", json!({"type": "object", "properties": {"x": {"type": "string"}}})),
        ("outputSchema", json!({"type": "object", "required": ["x"]})),
        ("annotations", json!({"readOnlyHint": false})),
        ("title", Value::Null),
    ] {
        let mut other = full.clone();
        other[member] = value;
        assert_eq!(server.declares(vec![declared("a", other)]), expected(&[("a", "changed")]), "{member}");
        assert_eq!(server.declares(vec![declared("a", full.clone())]), expected(&[("a", "approved")]), "{member}");
    }
    let mut more = full;
    more["_meta"] = json!({"x": 1});
    more["icons"] = json!([]);
    assert_eq!(server.declares(vec![declared("a", more)]), expected(&[("a", "approved")]));
}

#[test]
fn first_approves_the_first_discovery_of_a_url_only() {
    let mut server = Server::new(Definitions::First);
    let hidden = tool("c", "looks\u{200b}fine");
    assert_eq!(server.declares(vec![tool("a", "1"), hidden]), expected(&[("a", "approved"), ("c", "pending")]));
    assert_eq!((server.row("a").effect.as_str(), server.row("a").approved_by), ("write", None));
    let later = server.declares(vec![tool("a", "2"), tool("b", "1")]);
    assert_eq!(later, expected(&[("a", "changed"), ("b", "pending")]));
    server.url = "https://b.example";
    assert_eq!(
        server.declares(vec![tool("a", "2"), tool("b", "1")]),
        expected(&[("a", "approved"), ("b", "approved")])
    );

    let mut empty = Server::new(Definitions::First);
    assert_eq!(empty.declares(vec![]), []);
    assert_eq!(empty.declares(vec![tool("a", "1")]), expected(&[("a", "pending")]), "the first discovery was empty");
    let mut reviewed = Server::new(Definitions::Review);
    reviewed.declares(vec![tool("a", "1")]);
    reviewed.how = Definitions::First;
    assert_eq!(reviewed.declares(vec![tool("a", "1")]), expected(&[("a", "pending")]));
}

#[test]
fn trusted_serves_every_definition_that_no_admin_has_rejected() {
    let mut server = Server::new(Definitions::Trusted);
    assert_eq!(server.declares(vec![tool("a", "1")]), expected(&[("a", "approved")]));
    server.approves("a");
    assert_eq!(server.declares(vec![tool("a", "2")]), expected(&[("a", "approved")]));
    assert_eq!(server.row("a").effect, "write", "the effect was set for another definition");
    server.decides(Verdict::Reject, "a", Effect::Write).unwrap();
    assert_eq!(server.declares(vec![tool("a", "3")]), expected(&[("a", "rejected")]));
    assert_eq!(server.declares(vec![]), expected(&[("a", "gone")]));
    assert_eq!(server.declares(vec![tool("a", "4")]), expected(&[("a", "rejected")]));
}

#[test]
fn a_rejection_takes_back_an_approval_and_holds_for_its_digest() {
    let mut server = Server::new(Definitions::First);
    server.declares(vec![tool("a", "1")]);
    server.decides(Verdict::Reject, "a", Effect::Write).unwrap();
    assert_eq!(server.declares(vec![tool("a", "1")]), expected(&[("a", "rejected")]));
    assert_eq!(server.declares(vec![tool("a", "2")]), expected(&[("a", "pending")]));
    assert_eq!(server.declares(vec![tool("a", "1")]), expected(&[("a", "rejected")]));
    server.approves("a");
    assert_eq!(server.declares(vec![tool("a", "1")]), expected(&[("a", "approved")]));
}

#[test]
fn a_decision_names_the_declared_digest() {
    let mut server = Server::new(Definitions::Review);
    server.declares(vec![tool("a", "1"), declared("b", json!({"name": "b"}))]);
    let before = server.stored.clone();
    let first = server.row("a").digest.clone();
    server.declares(vec![tool("a", "2"), declared("b", json!({"name": "b"}))]);
    let decide = |server: &Server, choices: &[(&str, &Digest)]| {
        let choice = |(name, digest): &(&str, &Digest)| Choice {
            original_name: (*name).to_owned(),
            digest: (*digest).clone(),
            effect: Effect::Write,
        };
        let choices: Vec<Choice> = choices.iter().map(choice).collect();
        let Stored { rows, first } = server.stored.clone();
        Verdict::Approve.writes(&choices, rows, first, (KeyId::new(), server.now)).map(|writes| writes.written.len())
    };
    let second = server.row("a").digest.clone();
    assert_eq!(decide(&server, &[("a", &first)]), Err(Refusal::OtherDigest(0, second.clone())));
    assert_eq!(decide(&server, &[("a", &second)]), Ok(1));
    assert_eq!(decide(&server, &[("a", &second), ("a", &second)]), Err(Refusal::Twice(1)));
    assert_eq!(decide(&server, &[("a", &second), ("x", &second)]), Err(Refusal::Unknown(1)));
    let invalid = server.row("b").digest.clone();
    let reason = "the inputSchema is missing".to_owned();
    assert_eq!(decide(&server, &[("b", &invalid)]), Err(Refusal::Invalid(0, reason)));
    server.approves("a");
    server.declares(vec![]);
    assert_eq!(decide(&server, &[("a", &second)]), Err(Refusal::Gone(0)));
    assert_ne!(before.rows, server.stored.rows);
}

#[test]
fn an_invalid_definition_is_not_served_and_the_others_go_on() {
    let mut server = Server::new(Definitions::First);
    let long = "n".repeat(300);
    let broken = declared("bad", json!({"name": "bad", "inputSchema": {"type": "nothing"}}));
    let twice = vec![tool("twice", "1"), tool("twice", "2")];
    let tools = [vec![tool("good", "1"), broken, tool(&long, "1"), tool("", "1")], twice].concat();
    let shown = server.declares(tools);
    assert_eq!(shown.iter().filter(|(_, status)| *status == "approved").count(), 1, "{shown:?}");
    assert_eq!(shown.iter().filter(|(_, status)| *status == "invalid").count(), 4, "{shown:?}");
    assert!(shown.iter().all(|(name, _)| name.len() <= 128), "{shown:?}");
    assert_eq!(server.row("twice").reason.as_deref(), Some("the name is declared twice"));
    let again = server.declares(vec![tool("good", "1"), tool("bad", "1")]);
    assert_eq!(again, expected(&[("bad", "pending"), ("good", "approved")]), "invalid tools without a decision go");
}

#[test]
fn tools_with_one_slug_do_not_shadow_each_other() {
    let mut server = Server::new(Definitions::First);
    server.declares(vec![tool("Get-Issue", "1"), tool("get_issue", "1"), tool("get.issue", "1")]);
    let slugs: BTreeSet<&str> = server.stored.rows.iter().map(|row| row.slug.as_str()).collect();
    assert_eq!(slugs.len(), 3, "{slugs:?}");
    assert_eq!(server.row("Get-Issue").slug, "get_issue");
    let kept: Vec<(String, String)> =
        server.stored.rows.iter().map(|row| (row.original_name.clone(), row.slug.clone())).collect();
    server.declares(vec![tool("get_issue", "1")]);
    server.declares(vec![tool("get.issue", "1"), tool("get_issue", "1"), tool("Get-Issue", "1")]);
    for (name, slug) in kept {
        assert_eq!(server.row(&name).slug, slug, "a slug never moves");
    }
}

#[test]
fn a_renamed_tool_is_a_new_one() {
    let mut server = Server::new(Definitions::First);
    server.declares(vec![tool("a", "1")]);
    assert_eq!(server.declares(vec![tool("b", "1")]), expected(&[("a", "gone"), ("b", "pending")]));
}

#[test]
fn a_server_that_always_declares_other_tools_fills_no_database() {
    let mut server = Server::new(Definitions::Trusted);
    let tools =
        |round: usize| (0..crate::pins::TOOLS_MAX + 9).map(move |index| tool(&format!("t{round}_{index}"), "1"));
    for round in 0..5 {
        server.declares(tools(round).collect());
        assert!(server.stored.rows.len() <= ROWS_MAX, "{}", server.stored.rows.len());
    }
    let served = server.stored.rows.iter().filter(|row| row.is_served()).count();
    assert_eq!((served, server.stored.rows.len()), (crate::pins::TOOLS_MAX, ROWS_MAX));
}

/// A trusted agent must not lift a rejection, nor push out what an admin has approved, by declaring many other tools.
#[test]
fn many_other_tools_push_out_no_decision_of_an_admin() {
    let mut server = Server::new(Definitions::Trusted);
    server.declares(vec![tool("rejected", "1"), tool("approved", "1")]);
    server.decides(Verdict::Reject, "rejected", Effect::Write).unwrap();
    server.approves("approved");
    for round in 0..6 {
        let tools = (0..crate::pins::TOOLS_MAX).map(|index| tool(&format!("t{round}_{index}"), "1"));
        server.declares(tools.collect());
    }
    assert!(server.stored.rows.len() <= ROWS_MAX + 1, "{}", server.stored.rows.len());
    server.declares(vec![tool("rejected", "2"), tool("approved", "1")]);
    assert_eq!(server.row("rejected").status, PinStatus::Rejected);
    assert_eq!(server.row("approved").effect, "read", "the decision of the admin still counts");
}
