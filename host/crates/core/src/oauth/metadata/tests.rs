use super::*;

const RESOURCE: &str = "https://mcp.example/mcp";
const ISSUER: &str = "https://id.example/tenant";

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        other => panic!("{other} is not an object"),
    }
}

fn protected() -> ProtectedResource {
    ProtectedResource {
        resource: RESOURCE.to_owned(),
        issuer: ISSUER.to_owned(),
        scopes: vec!["read".to_owned(), "write".to_owned()],
    }
}

/// Returns metadata of an authorization server, with these members in addition.
fn server(more: Value) -> Map<String, Value> {
    let mut document = object(json!({
        "issuer": ISSUER,
        "authorization_endpoint": "https://id.example/authorize",
        "token_endpoint": "https://id.example/token",
        "code_challenge_methods_supported": ["plain", "S256"],
    }));
    document.extend(object(more));
    document
}

fn proposed(more: Value, challenged: &[String], has_client_document: bool) -> Result<Proposal, String> {
    let wanted = Wanted { resource: &protected(), challenged, allow_http: false, has_client_document };
    wanted.propose(&server(more))
}

#[test]
fn the_resource_must_be_the_url_of_the_server() {
    let read = |resource: &str, url: &str| {
        let document = json!({"resource": resource, "authorization_servers": [ISSUER, "https://other.example"]});
        ProtectedResource::read(&object(document), url).map(|read| (read.resource, read.issuer))
    };
    assert_eq!(read(RESOURCE, RESOURCE), Ok((RESOURCE.to_owned(), ISSUER.to_owned())));
    // The text of the metadata is the one that is sent.
    let origin = "https://mcp.example";
    assert_eq!(read(origin, "https://MCP.example:443/"), Ok((origin.to_owned(), ISSUER.to_owned())));
    for other in [origin, "https://mcp.example/mcp/", "https://mcp.example/mcp?a=b", "https://mcp.example/mcp#a", "mcp"]
    {
        assert!(read(other, RESOURCE).is_err(), "{other}");
    }
    for document in [json!({"resource": RESOURCE}), json!({"resource": RESOURCE, "authorization_servers": []})] {
        assert!(ProtectedResource::read(&object(document.clone()), RESOURCE).is_err(), "{document}");
    }
}

#[test]
fn metadata_of_another_issuer_or_without_s256_are_refused() {
    let refused = |more: Value| proposed(more, &[], false).unwrap_err();
    assert_eq!(refused(json!({"issuer": "https://id.example/tenant/"})), format!("its `issuer` is not `{ISSUER}`"));
    let without = "it does not list `S256` in `code_challenge_methods_supported`";
    assert_eq!(refused(json!({"code_challenge_methods_supported": ["plain"]})), without);
    assert_eq!(refused(json!({"code_challenge_methods_supported": null})), without);
    for more in [
        json!({"token_endpoint": null}),
        json!({"token_endpoint": "http://id.example/token"}),
        json!({"token_endpoint": "http://127.0.0.1/token"}),
        json!({"authorization_endpoint": "javascript:alert(1)"}),
        json!({"registration_endpoint": "https://user:pass@id.example/register"}),
        json!({"authorization_endpoint": format!("https://id.example/{}", "x".repeat(3000))}),
        json!({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}),
    ] {
        assert!(proposed(more.clone(), &[], true).is_err(), "{more}");
    }
}

#[test]
fn the_registration_depends_on_what_the_server_supports() {
    let registered = |more: Value, has_client_document: bool| {
        let proposal = proposed(more, &[], has_client_document).unwrap();
        (proposal.registration, proposal.token_auth)
    };
    let document = json!({
        "client_id_metadata_document_supported": true, "registration_endpoint": "https://id.example/register",
        "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
    });
    assert_eq!(registered(document.clone(), true), (ClientRegistration::ClientIdMetadata, TokenAuth::None));
    assert_eq!(registered(document, false), (ClientRegistration::Dynamic, TokenAuth::ClientSecretPost));
    assert_eq!(registered(json!({}), true), (ClientRegistration::Given, TokenAuth::ClientSecretBasic));
    // A client with a document has no secret.
    let confidential = json!({"client_id_metadata_document_supported": true});
    assert_eq!(registered(confidential, true), (ClientRegistration::Given, TokenAuth::ClientSecretBasic));
}

#[test]
fn the_scopes_are_those_of_the_challenge_or_of_the_resource() {
    let offline = json!({"scopes_supported": ["openid", "offline_access"]});
    let scopes = |more: &Value, challenged: &[&str]| {
        let challenged: Vec<String> = challenged.iter().map(|scope| (*scope).to_owned()).collect();
        proposed(more.clone(), &challenged, false).unwrap().scopes
    };
    assert_eq!(scopes(&json!({}), &["files"]), ["files"]);
    assert_eq!(scopes(&json!({}), &[]), ["read", "write"]);
    assert_eq!(scopes(&offline, &["files"]), ["files", "offline_access"]);
    assert_eq!(scopes(&offline, &["offline_access"]), ["offline_access"]);
}

#[test]
fn every_member_changes_the_digest() {
    let whole = proposed(json!({}), &[], false).unwrap();
    for other in [
        Proposal { resource: "https://mcp.example/".to_owned(), ..whole.clone() },
        Proposal { issuer: "https://evil.example".to_owned(), ..whole.clone() },
        Proposal { authorization_url: "https://evil.example/a".to_owned(), ..whole.clone() },
        Proposal { token_url: "https://evil.example/t".to_owned(), ..whole.clone() },
        Proposal { registration_url: Some("https://evil.example/r".to_owned()), ..whole.clone() },
        Proposal { token_auth: TokenAuth::None, ..whole.clone() },
        Proposal { token_auths: Vec::new(), ..whole.clone() },
        Proposal { scopes: vec!["admin".to_owned()], ..whole.clone() },
        Proposal { registration: ClientRegistration::Dynamic, ..whole.clone() },
        Proposal { requires_iss: true, ..whole.clone() },
        Proposal { grant_types: Vec::new(), ..whole.clone() },
    ] {
        assert_ne!(other.digest(), whole.digest(), "{other:?}");
    }
}

#[test]
fn metadata_are_at_the_well_known_places() {
    let texts = |urls: Vec<Url>| urls.into_iter().map(String::from).collect::<Vec<_>>();
    let at = |url: &str| texts(protected_resource_urls(&Url::parse(url).unwrap()));
    let place = "https://mcp.example/.well-known/oauth-protected-resource";
    assert_eq!(at("https://mcp.example/"), [place]);
    assert_eq!(at("https://mcp.example/mcp?a=b"), [format!("{place}/mcp?a=b"), place.to_owned()]);
    let at = |issuer: &str| texts(server_urls(&Url::parse(issuer).unwrap()));
    let well_known = "https://id.example/.well-known";
    assert_eq!(
        at("https://id.example"),
        [format!("{well_known}/oauth-authorization-server"), format!("{well_known}/openid-configuration")]
    );
    assert_eq!(
        at("https://id.example/a/"),
        [
            format!("{well_known}/oauth-authorization-server/a"),
            format!("{well_known}/openid-configuration/a"),
            "https://id.example/a/.well-known/openid-configuration".to_owned(),
        ]
    );
}
