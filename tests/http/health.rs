//! `/healthz` and `/readyz` need no key. They reveal only whether the server runs and is ready.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use support::{Api, Server};

use crate::http::{Answers, send};
use crate::world::eventually;

#[tokio::test]
async fn health_is_open_and_a_broken_plugin_does_not_stop_readiness() -> Result<()> {
    let mut server = Server::prepare(&["test-wrong-world"])?;
    let url = server.launch_unready().await?;
    let nobody = Api::new(&url, "")?;
    assert_eq!(nobody.get("/healthz").await?.0, 200, "the server does not answer before it is ready");
    eventually("the server is ready", async || Ok((nobody.get("/readyz").await?.0 == 200).then_some(()))).await?;
    let mut answers = Answers::default();
    for path in ["/healthz", "/readyz", "/healthz/", "/readyz?verbose"] {
        for key in ["", "mk_unknown"] {
            let (status, headers, body) = send(nobody.with_key(key).request(Method::GET, path)).await?;
            let kind = headers["content-type"].to_str().context("the header is not text")?.to_owned();
            answers.add(&format!("{path} {key} {kind}"), (status, body.get("detail").unwrap_or(&body).clone()));
        }
    }
    answers.add("POST /healthz", nobody.post("/healthz", &serde_json::json!({})).await?);
    assert_snapshot!(answers, @r#"
    /healthz  text/plain; charset=utf-8: 200 "ok"
    /healthz mk_unknown text/plain; charset=utf-8: 200 "ok"
    /readyz  text/plain; charset=utf-8: 200 "ok"
    /readyz mk_unknown text/plain; charset=utf-8: 200 "ok"
    /healthz/  application/problem+json: 404 "no such route"
    /healthz/ mk_unknown application/problem+json: 404 "no such route"
    /readyz?verbose  application/problem+json: 422 "verbose: unknown query parameter (this route supports no query parameters)"
    /readyz?verbose mk_unknown application/problem+json: 422 "verbose: unknown query parameter (this route supports no query parameters)"
    POST /healthz: 405 {"type":"urn:monstrum:error:method_not_allowed","title":"Method not allowed","status":405,"detail":"this route does not support this method","request_id":"[id 1]"}
    "#);
    Ok(())
}
