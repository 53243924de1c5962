//! Code mode: the plugin `code` runs JavaScript that calls the bot's tools. Each of these calls is governed.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Bound, Server};

use crate::http::made;
use crate::world::{World, text};

const ECHO: &str = "test-echo";

/// A bot with the plugin `code` and an echo resource.
struct Code {
    world: World,
    echo: Bound,
}

impl Code {
    /// Starts a server. The code may call the tools that match `allow_calls`.
    async fn start(allow_calls: &[&str]) -> Result<Code> {
        Code::on(Server::prepare(&["code", ECHO])?, allow_calls).await
    }

    async fn on(server: Server, allow_calls: &[&str]) -> Result<Code> {
        let world = World::on(server).await?;
        let echo = world.grant_all(ECHO).await?;
        let resource = made(&world.api, "/api/resources", &json!({ "resource_type": "code", "name": "code" })).await?;
        let role = world.api.role("coders", &["code.run"]).await?;
        let binding = json!({ "resource_id": resource, "role_id": role, "allow_calls": allow_calls });
        made(&world.api, &format!("/api/bots/{}/resources", world.bot), &binding).await?;
        Ok(Code { world, echo })
    }

    async fn run(&self, code: &str) -> Result<Value> {
        self.world.call("code_run", &json!({ "code": code })).await
    }

    /// Runs code that succeeds, and returns its result.
    async fn result(&self, code: &str) -> Result<Value> {
        let answer = self.run(code).await?;
        ensure!(answer["status"] == "success", "{code}: {answer}");
        Ok(answer["data"]["result"].clone())
    }

    /// Runs code that fails, and returns its code and message.
    async fn failure(&self, code: &str) -> Result<String> {
        let answer = self.run(code).await?;
        ensure!(answer["status"] == "error", "{code}: {answer}");
        Ok(format!("{}: {}", text(&answer["code"]), text(&answer["message"])))
    }

    async fn gate(&self, gates: &Value) -> Result<()> {
        self.world.rebind(&self.echo, &json!({ "gates": gates })).await
    }
}

/// Returns the text of code that calls a tool and returns its failure.
fn caught(call: &str) -> String {
    format!("try {{ {call}; 'no failure' }} catch (e) {{ [e.name, e.status, e.code, e.tool, e.message].join(' | ') }}")
}

#[tokio::test]
async fn code_calls_five_tools_and_catches_the_denied_one() -> Result<()> {
    let code = Code::start(&["*"]).await?;
    code.gate(&json!([{ "tools": ["test_echo_write"], "action": "deny", "reason": "read only" }])).await?;
    let names = ["test_echo_run", "test_echo_again", "test_echo_write", "test_echo_open", "test_echo_mismatch"];
    let answer = code
        .run(
            "const done = [];
             for (const name of ['test_echo_run', 'test_echo_again', 'test_echo_write', 'test_echo_open', 'test_echo_mismatch']) {
               try { done.push(tools[name]({ repo: 'acme/site' }).tool_name); }
               catch (error) { console.log(error.message); done.push(error.status); }
             }
             done",
        )
        .await?;
    let expected = ["test_echo_run", "test_echo_again", "permission_denied", "test_echo_open", "test_echo_mismatch"];
    assert_eq!(answer["data"]["result"], json!(expected), "{answer}");
    assert!(text(&answer["data"]["console"][0]).contains("Permission denied"), "{answer}");
    // Each call is in the audit, below the call of the code.
    let (status, rows) = code.world.api.get("/api/audit?limit=1000").await?;
    assert_eq!(status, 200, "{rows}");
    let rows = rows["items"].as_array().context("the audit has no rows")?;
    let below = |row: &&Value| row["parent_request_id"] == answer["request_id"];
    let called: Vec<&str> = rows.iter().rev().filter(below).map(|row| text(&row["tool"])).collect();
    assert_eq!(called, names);
    Ok(())
}

#[tokio::test]
async fn a_gate_asks_for_a_call_of_code() -> Result<()> {
    let code = Code::start(&["test_echo_*"]).await?;
    code.gate(&json!([{ "tools": ["test_echo_write"], "action": "ask" }])).await?;
    let caught = code.result(&caught("tools.test_echo_write({ repo: 'acme/site' })")).await?;
    assert!(text(&caught).starts_with("ToolError | approval_required | approval | test_echo_write"), "{caught}");
    // Code that does not catch the error fails with the approval.
    let script = "tools.test_echo_write({ repo: 'acme/site' }).tool_name";
    let answer = code.run(script).await?;
    assert_eq!(text(&answer["status"]), "approval_required", "{answer}");
    let approval = text(&answer["approval"]["id"]).to_owned();
    assert!(!approval.is_empty(), "{answer}");
    let admin = code.world.api.with_key(&code.world.api.new_key("admin", None).await?);
    let path = format!("/api/approvals/{approval}");
    let (_, pending) = admin.get(&path).await?;
    let decision = json!({ "decision": "approve", "digest": pending["digest"] });
    let (status, approved) = admin.post(&path, &decision).await?;
    assert_eq!(status, 200, "{approved}");
    assert_eq!(code.result(script).await?, "test_echo_write");
    assert!(text(&code.run(script).await?["approval"]["id"]) != approval, "an approval permits one call");
    Ok(())
}

#[tokio::test]
async fn only_granted_tools_can_be_called() -> Result<()> {
    let code = Code::start(&[]).await?;
    let called = code.result(&caught("tools.test_echo_run({})")).await?;
    assert!(text(&called).starts_with("ToolError | permission_denied | denied | test_echo_run"), "{called}");

    let code = Code::start(&["*"]).await?;
    // A model is asked only by tasks, and the tools of another bot belong to that bot.
    let other = code.world.api.bot("other").await?;
    let (url, token) = (code.world.github.url(), code.world.github.token());
    code.world.api.grant(&other, ECHO, (&url, &token), &["*"], &json!({})).await?;
    let path = format!("/api/bots/{}/resources/{}", code.world.bot, code.echo.binding);
    let (status, body) = code.world.api.delete(&path).await?;
    ensure!(status == 200 || status == 204, "{status} {body}");
    for tool in ["test_echo_run", "llm_complete", "task_read_result", "absent"] {
        let called = code.result(&caught(&format!("tools.{tool}({{}})"))).await?;
        let expected = format!(
            "ToolError | permission_denied | denied | {tool} | Permission denied: tool '{tool}' is not available to this bot"
        );
        assert_eq!(text(&called), expected);
    }
    Ok(())
}

#[tokio::test]
async fn code_that_does_not_end_is_stopped() -> Result<()> {
    let code = Code::start(&["*"]).await?;
    let mut lines = Vec::new();
    for script in [
        "for (;;) {}",
        "for (;;) { for (let i = 0; i < 1000; i++) {} }",
        "/(a+)+b/.test('a'.repeat(40))",
        "(function f() { return f() })()",
        "const f = () => [1].map(f); f()",
        "try { (function f() { return f() })() } catch (e) { 'caught' }",
        "const s = 'x'.repeat(1e6), all = []; for (;;) all.push(s + all.length)",
        "new Promise(() => {})",
        "(async () => { for (;;) await 1 })()",
        "eval('['.repeat(5000))",
    ] {
        lines.push(format!("{script}\n    {}", code.failure(script).await?));
    }
    assert_snapshot!(lines.join("\n"), @r"
    for (;;) {}
        fuel: the plugin used up its computing budget
    for (;;) { for (let i = 0; i < 1000; i++) {} }
        fuel: the plugin used up its computing budget
    /(a+)+b/.test('a'.repeat(40))
        fuel: the plugin used up its computing budget
    (function f() { return f() })()
        plugin: RangeError: more than 256 nested calls of functions
    const f = () => [1].map(f); f()
        plugin: RangeError: more than 256 nested calls of functions
    try { (function f() { return f() })() } catch (e) { 'caught' }
        plugin: RangeError: more than 256 nested calls of functions
    const s = 'x'.repeat(1e6), all = []; for (;;) all.push(s + all.length)
        memory: the plugin ran out of memory
    new Promise(() => {})
        plugin: TypeError: the promise of the code never settles
    (async () => { for (;;) await 1 })()
        fuel: the plugin used up its computing budget
    eval('['.repeat(5000))
        trap: the plugin crashed
    ");
    // The next run is in a fresh instance.
    assert_eq!(code.result("typeof f + typeof s").await?, "undefinedundefined");
    // A loop within the limits, and calls up to the limit of child calls.
    assert_eq!(code.result("let s = 0; for (let i = 0; i < 1e5; i++) s += i; s").await?, json!(4_999_950_000_u64));
    let storm = "let n = 0; try { for (;;) { tools.test_echo_run({ any: n }); n++ } } catch (e) { [n, e.code] }";
    assert_eq!(code.result(storm).await?, json!([100, "limit"]));
    Ok(())
}

#[tokio::test]
async fn code_cannot_change_its_surroundings() -> Result<()> {
    let code = Code::start(&["*"]).await?;
    for script in [
        "tools.test_echo_run = () => 'fake'",
        "delete tools.test_echo_run",
        "Object.setPrototypeOf(tools, {})",
        "Object.defineProperty(tools, 'test_echo_run', { value: 1 })",
        "tools.__proto__ = {}",
    ] {
        assert_eq!(code.failure(script).await?, "plugin: TypeError: tools cannot be changed", "{script}");
    }
    let polluted = "Object.prototype.get = Object.prototype.test_echo_run = () => 'fake'; \
                    Object.keys = () => []; JSON.stringify = () => 'fake'; Array.prototype.push = () => 'fake'; \
                    tools.test_echo_open({ repo: 'acme/site' }).params";
    assert_eq!(code.result(polluted).await?, json!({ "repo": "acme/site" }));
    assert_eq!(
        code.result("[tools.toString, tools.then, tools['A-b'], tools[Symbol.iterator]]").await?,
        json!([null, null, null, null])
    );
    // Nothing of the host is there.
    let absent = "['fetch', 'setTimeout', 'process', 'require', 'Deno', 'XMLHttpRequest'].filter(n => n in globalThis)";
    assert_eq!(code.result(absent).await?, json!([]));
    assert!(code.failure("import('fs')").await?.contains("module resolution is disabled"));
    Ok(())
}

#[tokio::test]
async fn results_are_json_within_limits() -> Result<()> {
    let code = Code::start(&["*"]).await?;
    let values =
        "({ a: undefined, b: () => 1, c: NaN, d: new Date(0), e: [undefined, 1.5], f: 2 ** 53 - 1, g: new Map() })";
    let expected = json!({
        "c": null, "d": "1970-01-01T00:00:00.000Z", "e": [null, 1.5], "f": 9_007_199_254_740_991_u64, "g": {}
    });
    assert_eq!(code.result(values).await?, expected);
    assert_eq!(code.result("undefined").await?, Value::Null);
    assert_eq!(code.result("return 1 + 1").await?, 2);
    assert_eq!(code.result("const read = await tools.test_echo_run({ any: 7 }); return read.params.any").await?, 7);
    let mut lines = Vec::new();
    for script in [
        "() => 1",
        "Symbol('s')",
        "10n",
        "const a = {}; a.a = a; a",
        "const o = { toJSON: () => o }; o",
        "'x'.repeat(300000)",
        "let x = ;",
        "tools.test_echo_run(5)",
        "throw { code: 'mine' }",
        "console.log('seen', { a: 1 }); throw new TypeError('oops')",
    ] {
        lines.push(format!("{script}\n    {}", code.failure(script).await?.replace('\n', "\n    ")));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    () => 1
        plugin: TypeError: the result is a function, which is not JSON
    Symbol('s')
        plugin: TypeError: the result is a symbol, which is not JSON
    10n
        plugin: TypeError: JSON has no bigint; convert it with Number() or String()
    const a = {}; a.a = a; a
        plugin: TypeError: a value is deeper than 64 levels or contains itself
    const o = { toJSON: () => o }; o
        plugin: TypeError: a value is deeper than 64 levels or contains itself
    'x'.repeat(300000)
        plugin: RangeError: a value has more than 262144 bytes as JSON
    let x = ;
        plugin: SyntaxError: unexpected token ';', primary expression at line 1, col 9
    tools.test_echo_run(5)
        plugin: TypeError: the parameters of tools.test_echo_run must be an object
    throw { code: 'mine' }
        plugin: {"code":"mine"}
    console.log('seen', { a: 1 }); throw new TypeError('oops')
        plugin: TypeError: oops
        The last lines of the console:
        seen {"a":1}
    "#);
    let answer = code.run("for (let i = 0; i < 1000; i++) console.log('line', i); 1").await?;
    let console = answer["data"]["console"].as_array().map_or(0, Vec::len);
    assert_eq!((console, &answer["data"]["console_dropped"]), (200, &json!(800)), "{answer}");
    Ok(())
}
