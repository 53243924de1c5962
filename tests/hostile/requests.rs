//! Requests that violate a limit or a policy, through both interfaces for outgoing requests: the contract's own and
//! `wasi:http`. Both use the same egress, so each case runs on both interfaces and must have the same result.

use std::fs;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Canned, FakeGithub, Server, TOKEN};

use crate::canary::encodings::{Search, encodings};
use crate::stable::lines;
use crate::world::{World, text};

/// For each interface, a plugin that sends the requested HTTP request, and its tool.
const WAYS: [(&str, &str); 2] = [("test-echo", "test_echo_fetch"), ("test-wasi-http", "test_wasi_http_fetch")];

/// Starts a world with a plugin for each interface, and a bot that may use both.
async fn world() -> Result<World> {
    with_both_ways(Server::prepare(&WAYS.map(|(plugin, _)| plugin))?).await
}

async fn with_both_ways(server: Server) -> Result<World> {
    let world = World::on(server).await?;
    for (plugin, _) in WAYS {
        world.grant_all(plugin).await?;
    }
    Ok(world)
}

/// Returns the outcome of the request that the plugin received: the status of the response, or the code of the failure.
fn told(answer: &Value) -> Result<String> {
    let failure = &answer["data"]["failure"];
    ensure!(answer["status"] == "success", "{answer}");
    Ok(if failure.is_null() { answer["data"]["status"].to_string() } else { text(&failure["code"]).to_owned() })
}

/// Sends the same request through both interfaces.
async fn by_both_ways(world: &World, params: &Value) -> Result<[Value; 2]> {
    let [own, wasi] = WAYS.map(|(_, tool)| world.call(tool, params));
    Ok([own.await?, wasi.await?])
}

#[tokio::test]
async fn both_ways_lead_to_the_same_request() -> Result<()> {
    let world = world().await?;
    let params = json!({
        "path": "/echo/a%2Fb", "query": { "q": "ä b" }, "method": "PUT", "headers": { "X-Kept": "kept" }, "body": "{\"a\":1}",
    });
    let answers = by_both_ways(&world, &params).await?;
    let requests = world.github.requests();
    assert_eq!(lines(&requests, TOKEN), [r#"PUT /echo/a%2Fb?q=%C3%A4%20b (Bearer TOKEN) {"a":1}"#; 2]);
    let headers = |index: usize| {
        let mut headers = requests[index].headers.clone();
        headers.sort();
        headers
    };
    assert_eq!(headers(0), headers(1));
    let [own, wasi] = answers.map(|answer| (answer["data"]["status"].clone(), answer["data"]["body"].clone()));
    assert_eq!(own, wasi);
    Ok(())
}

#[tokio::test]
async fn a_request_that_oversteps_does_not_leave() -> Result<()> {
    let world = world().await?;
    let header = |name: &str, value: &str| json!({ "headers": { name: value } });
    let to = |url: &str| json!({ "path": url });
    let cases = [
        ("the header of the credential", header("Authorization", "Bearer forged"), "denied"),
        ("in other case", header("aUTHORIZATION", "Bearer forged"), "denied"),
        (
            "without asking for the credential",
            json!({ "headers": { "Authorization": "Bearer forged" }, "authenticate": false }),
            "denied",
        ),
        ("another host", header("Host", "other.example"), "denied"),
        ("a proxy", header("Proxy-Authorization", "x"), "denied"),
        ("chunks of its own", header("Transfer-Encoding", "chunked"), "denied"),
        ("an encoding of its own", header("Accept-Encoding", "br"), "denied"),
        ("an upgrade", header("Upgrade", "websocket"), "denied"),
        ("a cookie beside the credential", header("Cookie", "a=b"), "denied"),
        ("a part of the answer", header("Range", "bytes=0-9"), "denied"),
        ("a second header in one", header("X-A", "a\r\nAuthorization: Bearer forged"), "invalid"),
        ("a second header by line feed", header("X-A", "a\nAuthorization: Bearer forged"), "invalid"),
        ("a name of two lines", header("X-A: b\r\nAuthorization", "Bearer forged"), "invalid"),
        ("the secret in a header", header("X-A", TOKEN), "denied"),
        ("the secret in the query", json!({ "query": { "a": TOKEN } }), "denied"),
        ("the secret in the body", json!({ "method": "POST", "body": format!("[{}]", json!(TOKEN)) }), "denied"),
        ("an origin that is not declared", to("http://127.0.0.2:1/"), "denied"),
        ("another port", to("http://127.0.0.1:1/"), "denied"),
        ("another host with the scheme that is open", to("http://example.com/"), "denied"),
        ("the metadata service", to("http://169.254.169.254/latest"), "denied"),
        ("this host by name", to("http://localhost:1/"), "denied"),
        ("another scheme", to("file:///etc/passwd"), "invalid"),
        ("a user in the URL", to("http://a:b@127.0.0.1/"), "invalid"),
        ("an address in another spelling", to("http://2130706433/"), "invalid"),
        ("a way up", to("/a/../b"), "invalid"),
        ("an encoded way up", to("/a/%2e%2e/b"), "invalid"),
        ("an encoded line feed", to("/a%0d%0ab"), "invalid"),
        ("a method of its own", json!({ "method": "TRACE" }), "invalid"),
        ("the method of a proxy", json!({ "method": "CONNECT" }), "invalid"),
    ];
    let mut wrong = Vec::new();
    for (name, request, code) in &cases {
        let mut params = json!({ "path": "/echo" });
        params.as_object_mut().context("an object")?.extend(request.as_object().context("an object")?.clone());
        for ((way, _), answer) in WAYS.iter().zip(by_both_ways(&world, &params).await?) {
            let events = world.audit_of(&answer).await?["events"].as_array().map(Vec::len);
            // A request that is rejected before a byte is sent has only one audit row.
            if told(&answer)? != *code || events != Some(1) {
                wrong.push(format!("{name}, by {way}: {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(lines(&world.github.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// Hosts that a resource cannot reach unless its operator allows their addresses, in the spellings that a URL may have.
const PRIVATE: &[&str] = &[
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2001::1]",
    "[2001:db8::1]",
    "[2002:7f00:1::1]",
    "[fc00::1]",
    "[fe80::1]",
    "[ff02::1]",
    "localhost",
    "localhost.",
    "a.localhost",
];

#[tokio::test]
async fn no_private_address_is_reached_unless_it_was_opened() -> Result<()> {
    let world = World::with(&WAYS.map(|(plugin, _)| plugin)).await?;
    let mut wrong = Vec::new();
    for (number, host) in PRIVATE.iter().enumerate() {
        let bot = world.api.bot(&format!("bot-{number}")).await?;
        for (plugin, tool) in WAYS {
            let body = json!({
                "resource_type": plugin, "name": format!("{plugin}-{number}"), "network": { "allow_http": true },
                "config": { "api_base": format!("http://{host}:8000") },
            });
            let (status, resource) = world.api.post("/api/resources", &body).await?;
            ensure!(status == 201, "{host}: {status} {resource}");
            let role = world.api.role(&format!("{plugin}-{number}"), &["*"]).await?;
            world.api.bind(&bot, text(&resource["id"]), &role, &json!({})).await?;
            let answer = world.api.call(&bot, tool, &json!({ "path": "/" })).await?;
            if told(&answer)? != "denied" {
                wrong.push(format!("{host}, by {plugin}: {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The plugin sees the redirect, and the host does not send the credential to its target.
#[tokio::test]
async fn a_redirect_is_not_followed_unasked() -> Result<()> {
    let world = world().await?;
    let thief = FakeGithub::start_with_token("none").await?;
    world.github.answer("/away", Canned::new(302, "").header("Location", &format!("{}/collect", thief.url())));
    for answer in by_both_ways(&world, &json!({ "path": "/away" })).await? {
        assert_eq!(told(&answer)?, "302");
    }
    assert_eq!(lines(&thief.requests(), TOKEN), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_redirect_that_is_followed_passes_the_same_checks() -> Result<()> {
    let server = Server::prepare(&WAYS.map(|(plugin, _)| plugin))?;
    for (plugin, _) in WAYS {
        let path = server.plugins_dir().join(plugin).join("monstrum.yaml");
        let manifest = fs::read_to_string(&path)?;
        fs::write(&path, format!("{manifest}\nexecutor: {{ follow_redirects: 2 }}\n"))?;
    }
    let world = with_both_ways(server).await?;
    let thief = FakeGithub::start_with_token("none").await?;
    let mut ends = Vec::new();
    for (name, location) in [
        ("to the same origin", "/echo?moved".to_owned()),
        ("to another origin", format!("{}/collect", thief.url())),
        ("to the metadata service", "http://169.254.169.254/latest".to_owned()),
        ("to this host by name", "http://localhost:1/".to_owned()),
        ("to a file", "file:///etc/passwd".to_owned()),
        ("to a user in a URL", "http://a:b@127.0.0.1/".to_owned()),
        ("to itself", "/away".to_owned()),
    ] {
        world.github.answer("/away", Canned::new(302, "").header("Location", &location));
        let [own, wasi] = by_both_ways(&world, &json!({ "path": "/away" })).await?;
        ends.push(format!("{name}: {} {}", told(&own)?, told(&wasi)?));
    }
    assert_snapshot!(ends.join("\n"), @r"
    to the same origin: 200 200
    to another origin: denied denied
    to the metadata service: denied denied
    to this host by name: denied denied
    to a file: invalid invalid
    to a user in a URL: invalid invalid
    to itself: 302 302
    ");
    assert_eq!(lines(&thief.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// The upstream returns the token in every encoding, but the plugin receives the token in no encoding.
#[tokio::test]
async fn what_an_upstream_echoes_is_redacted_in_every_encoding() -> Result<()> {
    let world = world().await?;
    let search = Search::of(TOKEN);
    for (name, form) in encodings(TOKEN) {
        let body = [b"before ", form.as_slice(), b" after"].concat();
        world.github.answer("/leak", Canned::new(200, body).header("X-Kept", "kept"));
        for answer in by_both_ways(&world, &json!({ "path": "/leak" })).await? {
            let got = answer["data"]["body"].as_str().with_context(|| format!("{name}: no body in {answer}"))?;
            assert!(got.contains("[redacted]") && search.find(got.as_bytes()).is_none(), "{name}: {got}");
            assert_eq!(answer["data"]["status"], 200, "{name}");
        }
    }
    Ok(())
}

/// The host rejects responses that it cannot decode, because it cannot redact them.
#[tokio::test]
async fn an_encoding_that_the_host_does_not_undo_is_refused() -> Result<()> {
    let world = world().await?;
    for encoding in ["br", "zstd", "deflate", "gzip, gzip", "br, gzip"] {
        world.github.answer("/leak", Canned::new(200, TOKEN).header("Content-Encoding", encoding));
        for answer in by_both_ways(&world, &json!({ "path": "/leak" })).await? {
            assert_eq!(told(&answer)?, "protocol", "{encoding}: {answer}");
            assert!(Search::of(TOKEN).find(answer.to_string().as_bytes()).is_none(), "{encoding}: {answer}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_transfer_encoding_other_than_chunked_is_refused() -> Result<()> {
    let world = world().await?;
    let coded = |encoding: &str| Canned::new(200, "ab").header("Transfer-Encoding", encoding);
    for (canned, expected) in
        [(coded("gzip, chunked"), "protocol"), (coded("gzip"), "protocol"), (Canned::new(200, "ab"), "200")]
    {
        world.github.answer("/coded", canned);
        for answer in by_both_ways(&world, &json!({ "path": "/coded" })).await? {
            assert_eq!(told(&answer)?, expected, "{answer}");
        }
    }
    Ok(())
}

/// Requests and responses that exceed a limit, and requests and responses of exactly the maximum size.
#[tokio::test]
async fn what_is_too_large_is_a_failure_in_the_plugin() -> Result<()> {
    let world = world().await?;
    world.github.answer("/large", Canned::new(200, vec![b'x'; (10 << 20) + 1]));
    world.github.answer("/taken", Canned::new(201, ""));
    world.github.answer("/just", Canned::new(200, vec![b'x'; 10 << 20]));
    let headers = |count: usize| -> Value {
        (0..count).map(|number| (format!("X-{number}"), json!("1"))).collect::<serde_json::Map<_, _>>().into()
    };
    let mut ends = Vec::new();
    for (name, params) in [
        ("an answer of 10 MiB", json!({ "path": "/just" })),
        ("an answer of more", json!({ "path": "/large" })),
        ("a body of 10 MiB", json!({ "path": "/taken", "method": "POST", "body_bytes": 10 << 20 })),
        ("a body of more", json!({ "path": "/echo", "method": "POST", "body_bytes": (10 << 20) + 1 })),
        ("many headers", json!({ "path": "/taken", "headers": headers(80) })),
        ("100 headers and one", json!({ "path": "/echo", "headers": headers(101) })),
        ("33 KiB of headers", json!({ "path": "/echo", "headers": { "X-Large": "x".repeat(33 << 10) } })),
        ("a URL of more than 8 KiB", json!({ "path": format!("/{}", "x".repeat(8 << 10)) })),
    ] {
        let answers = by_both_ways(&world, &params).await?;
        let message = |answer: &Value| text(&answer["data"]["failure"]["message"]).to_owned();
        let [own, wasi] = answers.each_ref().map(|answer| anyhow::Ok((told(answer)?, message(answer))));
        ends.push(format!("{name}: {:?} {:?}", own?, wasi?));
    }
    assert_snapshot!(ends.join("\n"), @r#"
    an answer of 10 MiB: ("200", "") ("200", "")
    an answer of more: ("too_large", "the response is larger than 10 MiB") ("too_large", "ErrorCode::HttpResponseBodySize(None)")
    a body of 10 MiB: ("201", "") ("201", "")
    a body of more: ("invalid", "the body is larger than 10 MiB") ("invalid", "ErrorCode::HttpRequestBodySize(Some(10485761))")
    many headers: ("201", "") ("201", "")
    100 headers and one: ("invalid", "the request has more than 100 headers") ("invalid", "ErrorCode::HttpRequestHeaderSectionSize(Some(496))")
    33 KiB of headers: ("invalid", "the headers are larger than 32 KiB") ("invalid", "ErrorCode::HttpRequestHeaderSectionSize(Some(33799))")
    a URL of more than 8 KiB: ("invalid", "the URL is longer than 8 KiB") ("invalid", "ErrorCode::HttpRequestUriTooLong")
    "#);
    Ok(())
}

/// Both interfaces request the credential, but the host does not send it to an origin outside the audience.
#[tokio::test]
async fn an_origin_outside_of_the_audience_is_reached_without_the_credential() -> Result<()> {
    let other = FakeGithub::start_with_token("none").await?;
    let server = Server::prepare(&WAYS.map(|(plugin, _)| plugin))?;
    for (plugin, _) in WAYS {
        let path = server.plugins_dir().join(plugin).join("monstrum.yaml");
        let manifest = fs::read_to_string(&path)?;
        fs::write(&path, format!("{manifest}\nexecutor: {{ egress: [\"{}\"] }}\n", other.url()))?;
    }
    let world = with_both_ways(server).await?;
    let params = json!({ "path": format!("{}/echo", other.url()), "authenticate": true });
    for answer in by_both_ways(&world, &params).await? {
        assert_eq!(told(&answer)?, "200");
    }
    assert_eq!(lines(&other.requests(), TOKEN), ["GET /echo (no authorization)"; 2]);
    assert_eq!(lines(&world.github.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// A guest may set a time-out shorter than the remaining time of its call, but cannot extend that time.
#[tokio::test]
async fn a_guests_own_time_out_only_shortens() -> Result<()> {
    let world = World::with(&WAYS.map(|(plugin, _)| plugin)).await?;
    world.github.hold();
    for (plugin, tool) in WAYS {
        let bound = world.grant_all(plugin).await?;
        let answer = world.call(tool, &json!({ "path": "/echo", "timeout_ms": 200 })).await?;
        assert_eq!(told(&answer)?, "timeout", "{answer}");
        world.rebind(&bound, &json!({ "limits": { "timeout_s": 1 } })).await?;
        let answer = world.call(tool, &json!({ "path": "/echo", "timeout_ms": 60_000 })).await?;
        assert_eq!(answer["message"], "the call took longer than 1 s", "{answer}");
    }
    Ok(())
}

/// `wasi:http` supports trailers, but the contract does not.
#[tokio::test]
async fn a_trailer_is_refused_and_nothing_of_its_request_sent() -> Result<()> {
    let world = world().await?;
    for trailer in ["X-Checksum", "Authorization"] {
        let params = json!({ "path": "/echo", "method": "POST", "body": "x", "trailer": trailer });
        let answer = world.call("test_wasi_http_fetch", &params).await?;
        assert_eq!(told(&answer)?, "invalid", "{answer}");
    }
    assert_eq!(lines(&world.github.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// A correct Content-Length set by a library of the guest is accepted; a wrong Content-Length is rejected.
#[tokio::test]
async fn a_length_is_the_hosts_to_write() -> Result<()> {
    let world = world().await?;
    for (length, end) in [("3", "200"), ("2", "invalid"), ("4", "invalid")] {
        let params =
            json!({ "path": "/echo", "method": "POST", "body": "abc", "headers": { "Content-Length": length } });
        let [own, wasi] = by_both_ways(&world, &params).await?;
        assert_eq!((told(&own)?.as_str(), told(&wasi)?.as_str()), ("denied", end), "{length}: {wasi}");
    }
    let requests = world.github.requests();
    assert_eq!(requests.iter().map(|request| request.header("content-length")).collect::<Vec<_>>(), [Some("3")]);
    Ok(())
}
