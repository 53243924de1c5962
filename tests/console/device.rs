//! Authorizations with a code: the page of the code, how it ends, and what the pages refuse of persons and of providers.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Build, Server};

use super::browser::{opened, ran};
use super::{Answer, Browser, base};
use crate::oauth::{Authorizing, PLUGIN};
use crate::world::{eventually, text};

/// A text with markup and an invisible character.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}";

/// A resource that can be authorized with a code, and the browser of a person who may do that.
struct Device {
    authorizing: Authorizing,
    browser: Browser,
    /// The path of the resource's page.
    resource: String,
}

impl Device {
    /// Creates the servers. The provider is polled every second.
    async fn open() -> Result<Device> {
        let authorizing = Authorizing::with("by-header").await?;
        let browser = Browser::log_in(&authorizing.world, authorizing.api().key()).await?;
        let resource = authorizing.path("").replace("/api", &base(&authorizing.world).await?);
        let resource = resource.trim_end_matches('/').to_owned();
        let device = Device { authorizing, browser, resource };
        device.script(&json!({})).await?;
        Ok(device)
    }

    /// Sets these members in the answers of the device authorization endpoint.
    async fn script(&self, over: &Value) -> Result<()> {
        let mut over = over.clone();
        over["interval"] = json!(1);
        self.authorizing.oauth.control(&json!({ "device_over": over })).await?;
        Ok(())
    }

    /// Replaces the next answer of the token endpoint.
    async fn answer(&self, body: &Value) -> Result<()> {
        let answer = json!({ "answer": { "status": 400, "body": body }, "answers_left": 1 });
        self.authorizing.oauth.control(&answer).await?;
        Ok(())
    }

    /// Returns the path of the page with the form that starts an authorization.
    fn form(&self) -> String {
        format!("{}/credential?method=oauth2_device_code", self.resource)
    }

    fn action(&self) -> String {
        format!("{}/device", self.resource)
    }

    /// Sends the form that starts an authorization.
    async fn start(&self) -> Result<Answer> {
        self.browser.submit(&self.form(), &self.action(), &[]).await
    }

    /// Starts an authorization, and returns the path of its page.
    async fn started(&self) -> Result<String> {
        let answer = self.start().await?;
        ensure!(answer.status == 303, "{}", answer.text);
        let page = answer.location().to_owned();
        ensure!(page.starts_with(&format!("{}/", self.action())), "{page}");
        Ok(page)
    }

    /// Returns the authorization of a page as the API shows it.
    async fn progress(&self, page: &str) -> Result<Value> {
        let flow = page.rsplit('/').next().context("an id")?;
        let (status, progress) =
            self.authorizing.api().get(&self.authorizing.path(&format!("oauth/device/{flow}"))).await?;
        ensure!(status == 200, "{progress}");
        Ok(progress)
    }

    /// Waits until the authorization of a page is in this state, and returns the page.
    async fn until(&self, page: &str, state: &str) -> Result<String> {
        let path = format!("{page}/state");
        eventually(&format!("the authorization is {state}"), async || {
            let answer = self.browser.get(&path).await?;
            ensure!(answer.status == 200, "{}", answer.text);
            Ok((answer.text == state).then_some(()))
        })
        .await?;
        self.browser.page(page).await
    }
}

#[tokio::test]
async fn a_resource_is_authorized_with_a_code_up_to_a_call_on_try() -> Result<()> {
    let device = Device::open().await?;
    let browser = &device.browser;
    let shown = browser.page(&device.resource).await?;
    assert!(shown.contains(&format!("href=\"{}\"", device.form())), "the resource leads to the form: {shown}");

    let page = device.started().await?;
    let pending = browser.page(&page).await?;
    let progress = device.progress(&page).await?;
    let (code, complete) = (text(&progress["user_code"]), text(&progress["verification_uri_complete"]));
    for told in [
        "every 1 s",
        &format!("<code data-copy><span>{code}</span></code>"),
        &format!("href=\"{}\" target=\"_blank\" rel=\"noopener noreferrer\"", text(&progress["verification_uri"])),
        &format!("href=\"{complete}\""),
        &format!("<time datetime=\"{}\"", text(&progress["expires_at"])),
        &format!("data-wait=\"{page}/state\" data-state=\"pending\""),
        // Without a script, a link reads the page again.
        &format!("<a class=\"button\" href=\"{page}\">Refresh</a>"),
    ] {
        assert!(pending.contains(told), "{told}: {pending}");
    }
    assert!(browser.page(&page).await?.contains(code), "the page can be read again");
    let chinese = browser.send(Method::GET, &page, &[], &[("accept-language", "zh-CN")]).await?;
    assert!(chinese.text.contains("等待输入代码") && chinese.text.contains(code), "{}", chinese.text);

    device.authorizing.oauth.person_at(complete).await?;
    let done = device.until(&page, "authorized").await?;
    assert!(done.contains("behind oauth is authorized") && done.contains("status success"), "{done}");
    assert!(!done.contains(code) && !done.contains("data-wait"), "an authorization that has ended has no code: {done}");
    assert!(browser.page(&device.resource).await?.contains("status success"), "the credential is ready");

    let world = &device.authorizing.world;
    let attempt = format!("{}/bots/{}/tools/test_echo_fetch", base(world).await?, world.bot);
    let run = browser.submit(&attempt, &attempt, &[("p.path", "/me"), ("sure", "on"), ("run", "1")]).await?;
    assert!(run.status == 200 && run.text.contains("status success"), "{}", run.text);
    assert!(run.text.contains("by-header"), "the upstream accepted the token: {}", run.text);
    Ok(())
}

#[tokio::test]
async fn a_slow_provider_and_a_refusal_are_shown() -> Result<()> {
    let device = Device::open().await?;
    device.answer(&json!({ "error": "slow_down" })).await?;
    let page = device.started().await?;
    let slow = device.until(&page, "slow_down").await?;
    assert!(slow.contains("the provider has asked for fewer requests") && slow.contains("every 6 s"), "{slow}");
    assert!(slow.contains(text(&device.progress(&page).await?["user_code"])), "the code is still good: {slow}");

    device.answer(&json!({ "error": "access_denied", "error_description": HOSTILE })).await?;
    let denied = device.until(&page, "denied").await?;
    assert!(denied.contains("has refused the authorization") && denied.contains("&#60;img src=x"), "{denied}");
    assert!(!denied.contains("<img src=x") && !denied.contains('\u{202e}'), "the provider's text is text: {denied}");
    assert!(!denied.contains("data-wait"), "{denied}");
    assert!(!has_credential(&device).await?);

    // The page starts the next authorization.
    let again = device.browser.submit(&page, &device.action(), &[]).await?;
    assert_eq!(again.status, 303, "{}", again.text);
    assert!(again.location().starts_with(&device.action()) && again.location() != page, "{}", again.location());
    Ok(())
}

async fn has_credential(device: &Device) -> Result<bool> {
    let (_, resource) = device.authorizing.api().get(device.authorizing.path("").trim_end_matches('/')).await?;
    Ok(!resource["credential"].is_null())
}

#[tokio::test]
async fn codes_that_expired_or_were_replaced_are_not_shown() -> Result<()> {
    let device = Device::open().await?;
    device.script(&json!({ "expires_in": 1 })).await?;
    let page = device.started().await?;
    let expired = device.until(&page, "expired").await?;
    assert!(expired.contains("was not entered in time") && !expired.contains("usercode"), "{expired}");
    assert!(device.progress(&page).await?.get("user_code").is_none());

    device.script(&json!({})).await?;
    let first = device.started().await?;
    let second = device.started().await?;
    let replaced = device.until(&first, "superseded").await?;
    assert!(replaced.contains("later authorization") && !replaced.contains("usercode"), "{replaced}");
    assert!(device.browser.page(&second).await?.contains("usercode"));
    assert!(!has_credential(&device).await?);
    Ok(())
}

#[tokio::test]
async fn other_keys_and_other_workspaces_do_not_see_the_code() -> Result<()> {
    let device = Device::open().await?;
    let world = &device.authorizing.world;
    let page = device.started().await?;
    let code = device.progress(&page).await?["user_code"].clone();
    let paths = [page.clone(), format!("{page}/state")];

    let operator = Browser::log_in(world, &world.api.new_key("operator", None).await?).await?;
    assert!(
        !operator.page(&device.resource).await?.contains("oauth2_device_code"),
        "a button that the key may not use"
    );
    let refused = operator.submit(&device.form(), &device.action(), &[]).await?;
    assert_eq!(refused.status, 403, "{}", refused.text);
    let approver = Browser::log_in(world, &world.api.new_key("approver", None).await?).await?;
    let foreign = crate::http::workspace(&world.api, "foreign").await?;
    let (_, me) = foreign.get("/api/me").await?;
    let own = format!("/console/w/{}", text(&me["workspace_id"]));
    let foreign = Browser::log_in(world, foreign.key()).await?;
    for path in &paths {
        for (browser, status) in [(&operator, 403), (&approver, 403), (&foreign, 404)] {
            let answer = browser.get(path).await?;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
            assert!(!answer.text.contains(text(&code)), "{}", answer.text);
        }
        let rest = path.split_once("/resources/").context("a page of a resource")?.1;
        assert_eq!(foreign.get(&format!("{own}/resources/{rest}")).await?.status, 404, "{path}");
        let unknown = Browser::open(world)?.get(path).await?;
        assert!(unknown.status == 303 && unknown.location().starts_with("/console/login"), "{}", unknown.location());
    }

    // The code belongs to one resource.
    let other = world.api.resource(PLUGIN, "another", &device.authorizing.oauth.api()).await?;
    let flow = page.rsplit('/').next().context("an id")?;
    let base = base(world).await?;
    for absent in [
        format!("{base}/resources/{other}/device/{flow}"),
        format!("{}/01939d2c-7f6a-7000-8000-000000000001", device.action()),
        format!("{}/unknown", device.action()),
    ] {
        assert_eq!(device.browser.get(&absent).await?.status, 404, "{absent}");
        assert_eq!(device.browser.get(&format!("{absent}/state")).await?.status, 404, "{absent}");
    }

    // A form of another page starts nothing.
    let without_token = device.browser.send(Method::POST, &device.action(), &[], &[]).await?;
    assert_eq!(without_token.status, 403);
    let cross_site = [("sec-fetch-site", "cross-site")];
    assert_eq!(device.browser.send(Method::POST, &device.action(), &[], &cross_site).await?.status, 403);
    assert_eq!(device.browser.get(&format!("{page}/state")).await?.text, "pending", "nothing took its place");
    Ok(())
}

#[tokio::test]
async fn answers_that_could_deceive_a_person_are_refused() -> Result<()> {
    let device = Device::open().await?;
    for hostile in [
        json!({ "verification_uri": "javascript:alert(1)" }),
        json!({ "verification_uri": "data:text/html,<script>x</script>" }),
        json!({ "verification_uri": "http://foreign.example/device" }),
        json!({ "verification_uri": "https://id.example@evil.example/" }),
        json!({ "verification_uri": "//foreign.example/device" }),
        json!({ "verification_uri_complete": "javascript:alert(1)" }),
        json!({ "verification_uri_complete": "http://foreign.example/device" }),
        json!({ "user_code": "WDJB\u{200b}MJHT" }),
        json!({ "user_code": "\u{202e}THJM-BJDW" }),
        json!({ "user_code": "WDJB\nMJHT" }),
        json!({ "user_code": "" }),
        json!({ "user_code": "A".repeat(65) }),
    ] {
        device.script(&hostile).await?;
        let refused = device.start().await?;
        assert_eq!((refused.status, refused.location()), (303, device.resource.as_str()), "{hostile}");
        let page = device.browser.page(&device.resource).await?;
        let told = page.contains("notice error") && page.contains("the provider&#39;s answer cannot be used");
        assert!(told, "{hostile}: {page}");
        for raw in ["javascript:", "data:text", "foreign.example", "evil.example", "THJM", "WDJB"] {
            assert!(!page.contains(raw), "{hostile}: {page}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn markup_in_a_code_is_text_and_a_link_leads_to_one_host() -> Result<()> {
    let device = Device::open().await?;
    device
        .script(&json!({
            "user_code": "<b onclick=alert(1)>1</b>", "verification_uri": "https://id.example/\"><script>x</script>",
            "verification_uri_complete": "https://evil.example/device",
        }))
        .await?;
    let page = device.browser.page(&device.started().await?).await?;
    assert!(page.contains("<span>&#60;b onclick=alert(1)&#62;1&#60;/b&#62;</span>"), "{page}");
    assert!(page.contains("href=\"https://id.example/%22%3E%3Cscript%3Ex%3C/script%3E\""), "{page}");
    assert!(page.contains(">Open id.example<"), "the button names the host: {page}");
    for raw in ["<b onclick", "<script>x", "evil.example"] {
        assert!(!page.contains(raw), "{raw}: {page}");
    }
    Ok(())
}

#[tokio::test]
async fn a_type_without_a_confirmed_app_leads_to_its_form() -> Result<()> {
    let authorizing = Authorizing::without_provider(Server::prepare(&[PLUGIN])?).await?;
    let browser = Browser::log_in(&authorizing.world, authorizing.api().key()).await?;
    let base = base(&authorizing.world).await?;
    let resource = authorizing.path("").replace("/api", &base);
    for (method, action) in [("oauth2_device_code", "device"), ("oauth2_auth_code", "authorize")] {
        let form = format!("{resource}credential?method={method}");
        let action = format!("action=\"{resource}{action}\"");
        let page = browser.page(&form).await?;
        assert!(page.contains(&format!("href=\"{base}/oauth-apps/new?type={PLUGIN}\"")), "{page}");
        assert!(!page.contains(&action), "{page}");
    }
    let provider = authorizing.oauth.provider(PLUGIN, "by-header");
    ensure!(authorizing.api().post("/api/oauth/providers", &provider).await?.0 == 201);
    let page = browser.page(&format!("{resource}credential?method=oauth2_device_code")).await?;
    assert!(page.contains(&format!("action=\"{resource}device\"")) && !page.contains("/oauth-apps/new"), "{page}");
    // A client that gets a token of its own needs no person.
    let page = browser.page(&format!("{resource}credential?method=oauth2_client_creds")).await?;
    assert!(page.contains(&format!("action=\"{resource}credential?method=oauth2_client_creds\"")), "{page}");
    Ok(())
}

/// The page of a code follows the authorization by its script, in Chromium.
#[tokio::test]
async fn the_device_flow_goes_through_in_the_browser() -> Result<()> {
    let device = Device::open().await?;
    let world = &device.authorizing.world;
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(), "form": device.form(),
        "person": format!("{}/person", device.authorizing.oauth.url()),
        "attempt": format!("{}/bots/{}/tools/test_echo_fetch", base(world).await?, world.bot), "answer": "by-header",
    });
    let report = ran("device.mjs", &plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    Ok(())
}

/// Like the other pages, these pages are opened in Chromium.
#[tokio::test]
async fn the_pages_of_a_code_are_accessible_and_fit_their_window() -> Result<()> {
    let device = Device::open().await?;
    let replaced = device.started().await?;
    device.script(&json!({ "user_code": "A".repeat(64) })).await?;
    let pending = device.started().await?;
    device.until(&replaced, "superseded").await?;
    let pages = [
        ("device-form", device.form()),
        ("device-pending", pending),
        ("device-replaced", replaced),
        ("device-resource", device.resource.clone()),
    ];
    let looks = [("en-US", "light", 1280), ("zh-CN", "dark", 360)];
    let world = &device.authorizing.world;
    let plan = json!({
        "url": world.server.url().context("the server is not running")?, "key": world.api.key(),
        "pages": pages.iter().map(|(name, path)| json!({ "name": name, "path": path })).collect::<Vec<_>>(),
        "looks": looks.map(|(language, theme, width)| json!({ "language": language, "theme": theme, "width": width })),
        "pictures": Build::current()?.target()?.join("console"),
    });
    let report = opened(&plan).await?;
    assert_eq!(report["problems"], json!([]), "{report:#}");
    assert_eq!(report["opened"], json!(looks.len() * (pages.len() + 1)));
    Ok(())
}
