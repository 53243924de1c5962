use monstrum_manifest::BasicRule;

use super::*;

fn credential(inject: Vec<InjectRule>) -> Credential {
    let fields = [("user", "me"), ("colon", "m:e"), ("token", "s3cr3t/t0ken"), ("bad", "s3cr3t\r\nX: y")];
    Credential {
        fields: fields.iter().map(|(name, value)| ((*name).to_owned(), Secret::new((*value).to_owned()))).collect(),
        plain_fields: Default::default(),
        inject,
        audience: Vec::new(),
        refreshable: false,
        expires_at: None,
    }
}

fn outgoing(url: &str, body: Option<&str>) -> Outgoing {
    Outgoing {
        method: Method::POST,
        url: Url::parse(url).unwrap(),
        headers: HeaderMap::new(),
        body: body.map(|body| body.as_bytes().to_vec()),
    }
}

fn injected(rule: InjectRule, url: &str, body: Option<&str>) -> Result<Outgoing, FailureCode> {
    inject(outgoing(url, body), &credential(vec![rule])).map_err(|failure| failure.code)
}

fn header(name: &str, value: &str) -> InjectRule {
    InjectRule::Header(HeaderRule { header: name.to_owned(), value: value.to_owned() })
}

fn basic(username: &str) -> InjectRule {
    let basic = BasicPair { username: username.to_owned(), password: "{token}".to_owned() };
    InjectRule::Basic(BasicRule { basic })
}

fn query(name: &str) -> InjectRule {
    InjectRule::Query(QueryRule { query: name.to_owned(), value: "{token}".to_owned() })
}

fn body(pointer: &str) -> InjectRule {
    InjectRule::Body(BodyRule { body: pointer.to_owned(), value: "{token}".to_owned() })
}

fn path() -> InjectRule {
    InjectRule::Path(PathRule { path: "{token}".to_owned(), value: "{token}".to_owned() })
}

#[test]
fn headers_are_added_and_marked_as_sensitive() {
    let sent = injected(header("Authorization", "Bearer {token}"), "https://a.example/", None).unwrap();
    assert_eq!(sent.headers[AUTHORIZATION], "Bearer s3cr3t/t0ken");
    assert!(sent.headers[AUTHORIZATION].is_sensitive());
    let sent = injected(basic("{user}"), "https://a.example/", None).unwrap();
    assert_eq!(sent.headers[AUTHORIZATION], "Basic bWU6czNjcjN0L3Qwa2Vu");
    assert!(sent.headers[AUTHORIZATION].is_sensitive());
}

#[test]
fn a_credential_that_does_not_fit_is_not_sent() {
    for rule in
        [header("X", "{missing}"), header("X", "{bad}"), header("a b", "{token}"), basic("{colon}"), basic("{missing}")]
    {
        assert_eq!(injected(rule, "https://a.example/", None).err(), Some(FailureCode::Unauthenticated));
    }
}

#[test]
fn an_existing_header_is_denied() {
    let mut there = outgoing("https://a.example/", None);
    there.headers.insert("x-api-key", HeaderValue::from_static("of the plugin"));
    let failure = inject(there, &credential(vec![header("X-API-Key", "{token}")])).err();
    assert_eq!(failure.map(|failure| failure.code), Some(FailureCode::Denied));
}

#[test]
fn query_parameters_are_encoded_and_unique() {
    let url = |url: &str| injected(query("api_key"), url, None).map(|sent| String::from(sent.url));
    assert_eq!(url("https://a.example/x"), Ok("https://a.example/x?api_key=s3cr3t%2Ft0ken".to_owned()));
    assert_eq!(url("https://a.example/x?b=c%2Fd"), Ok("https://a.example/x?b=c%2Fd&api_key=s3cr3t%2Ft0ken".to_owned()));
    assert_eq!(url("https://a.example/x?api_key=mine"), Err(FailureCode::Denied));
    assert_eq!(url("https://a.example/x?api%5Fkey=mine"), Err(FailureCode::Denied));
}

#[test]
fn the_body_gets_an_absent_leaf() {
    let sent = |text: Option<&str>| {
        injected(body("/auth/key"), "https://a.example/", text)
            .map(|sent| String::from_utf8(sent.body.unwrap()).unwrap())
    };
    let alone = Ok(r#"{"auth":{"key":"s3cr3t/t0ken"}}"#.to_owned());
    assert_eq!(sent(None), alone);
    assert_eq!(sent(Some("{}")), alone);
    assert_eq!(sent(Some(r#"{"auth":{}}"#)), alone);
    assert_eq!(sent(Some(r#"{"b":1,"a":2}"#)), Ok(r#"{"b":1,"a":2,"auth":{"key":"s3cr3t/t0ken"}}"#.to_owned()));
    assert_eq!(sent(Some(r#"{"auth":{"key":null}}"#)), Err(FailureCode::Denied));
    for unfit in ["[]", "1", "null", r#"{"auth":1}"#, r#"{"auth":[]}"#, "not JSON", "{"] {
        assert_eq!(sent(Some(unfit)), Err(FailureCode::Invalid), "{unfit}");
    }
    for (pointer, expected) in [
        ("/a~1b", r#"{"a/b":"s3cr3t/t0ken"}"#),
        ("/a~0b", r#"{"a~b":"s3cr3t/t0ken"}"#),
        // An escaped escape is decoded only once.
        ("/a~01b", r#"{"a~1b":"s3cr3t/t0ken"}"#),
        ("/a~0~1b", r#"{"a~/b":"s3cr3t/t0ken"}"#),
        ("/0/1", r#"{"0":{"1":"s3cr3t/t0ken"}}"#),
    ] {
        let sent = injected(body(pointer), "https://a.example/", None).unwrap();
        assert_eq!(String::from_utf8(sent.body.unwrap()).unwrap(), expected, "{pointer}");
        assert_eq!(sent.headers[CONTENT_TYPE], "application/json");
    }
}

#[test]
fn a_leaf_may_be_in_a_list_item_but_not_be_one() {
    let sent = |pointer: &str, text: &str| {
        injected(body(pointer), "https://a.example/", Some(text))
            .map(|sent| String::from_utf8(sent.body.unwrap()).unwrap())
    };
    let second = r#"{"list":[{},{"key":"s3cr3t/t0ken"}]}"#;
    assert_eq!(sent("/list/1/key", r#"{"list":[{},{}]}"#), Ok(second.to_owned()));
    assert_eq!(sent("/0/0/key", "[[{}]]"), Ok(r#"[[{"key":"s3cr3t/t0ken"}]]"#.to_owned()));
    for (pointer, text) in [
        ("/list/2/key", r#"{"list":[{},{}]}"#),
        ("/list/01/key", r#"{"list":[{},{}]}"#),
        ("/list/+1/key", r#"{"list":[{},{}]}"#),
        ("/list/-/key", r#"{"list":[{},{}]}"#),
        ("/list/x/key", r#"{"list":[{},{}]}"#),
        ("/list/0", r#"{"list":[]}"#),
        ("/list/0", r#"{"list":[1]}"#),
        ("/list/key", r#"{"list":[]}"#),
        ("/list/0/key", r#"{"list":["text"]}"#),
    ] {
        assert_eq!(sent(pointer, text), Err(FailureCode::Invalid), "{pointer} in {text}");
    }
}

#[test]
fn duplicate_members_of_a_body_are_not_sent() {
    let sent = |text: &str| injected(body("/auth/key"), "https://a.example/", Some(text));
    // If a member occurs twice, the parser uses the last one, so the first one is not sent.
    let last = sent(r#"{"auth":{"key":"mine"},"auth":{}}"#).unwrap().body.unwrap();
    assert_eq!(String::from_utf8(last).unwrap(), r#"{"auth":{"key":"s3cr3t/t0ken"}}"#);
    assert_eq!(sent(r#"{"auth":{},"auth":{"key":"mine"}}"#).err(), Some(FailureCode::Denied));
    assert_eq!(sent(&"[".repeat(100_000)).err(), Some(FailureCode::Invalid));
}

#[test]
fn several_rules_are_applied_together_or_not_at_all() {
    let all = vec![header("X-Key", "k={token}"), basic("{user}"), query("q"), body("/t"), path()];
    let sent = inject(outgoing("https://a.example/{token}/x?y", Some("{}")), &credential(all.clone())).unwrap();
    assert_eq!(sent.url.as_str(), "https://a.example/s3cr3t%2Ft0ken/x?y&q=s3cr3t%2Ft0ken");
    assert_eq!(sent.headers["x-key"], "k=s3cr3t/t0ken");
    assert_eq!(sent.headers[AUTHORIZATION], "Basic bWU6czNjcjN0L3Qwa2Vu");
    assert_eq!(sent.body.unwrap(), br#"{"t":"s3cr3t/t0ken"}"#);
    for (url, text) in
        [("https://a.example/x", "{}"), ("https://a.example/{token}?q=1", "{}"), ("https://a.example/{token}", "[]")]
    {
        assert!(inject(outgoing(url, Some(text)), &credential(all.clone())).is_err(), "{url} {text}");
    }
    // A second header of the same name would be a second credential.
    let twice = vec![header("Authorization", "Bearer {token}"), basic("{user}")];
    let failure = inject(outgoing("https://a.example/", None), &credential(twice)).err().unwrap();
    assert_eq!(failure.code, FailureCode::Denied);
}

#[test]
fn the_path_must_have_exactly_one_placeholder() {
    let url = |url: &str| injected(path(), url, None).map(|sent| String::from(sent.url));
    for (text, expected) in [
        ("https://a.example/bot{token}/send", "https://a.example/bots3cr3t%2Ft0ken/send"),
        ("https://a.example/%7btoken%7d/a%2Fb", "https://a.example/s3cr3t%2Ft0ken/a%2Fb"),
        ("https://a.example/%7Bt%6Fken%7D", "https://a.example/s3cr3t%2Ft0ken"),
        ("https://a.example/{{token}}", "https://a.example/%7Bs3cr3t%2Ft0ken%7D"),
        // A placeholder in the query is not replaced, and all other characters of the URL remain unchanged.
        ("https://a.example/a:b+c%ff%2f{token};x?{token}", "https://a.example/a:b+c%ff%2fs3cr3t%2Ft0ken;x?{token}"),
        ("https://a.example/%25{token}%25", "https://a.example/%25s3cr3t%2Ft0ken%25"),
    ] {
        assert_eq!(url(text), Ok(expected.to_owned()), "{text}");
    }
    for none_or_more in [
        "https://a.example/",
        "https://a.example/?x={token}",
        "https://a.example/{token}/{token}",
        "https://a.example/{token}{token}",
        "https://a.example/{token}/%7btoken%7d",
        "https://a.example/{Token}",
        "https://a.example/{token",
        "https://a.example/%257Btoken%257D",
        "https://token.example/",
    ] {
        assert_eq!(url(none_or_more), Err(FailureCode::Invalid), "{none_or_more}");
    }
}

#[test]
fn a_value_in_the_path_is_never_resolved() {
    let mut there = credential(vec![InjectRule::Path(PathRule { path: "{token}".into(), value: "{dots}".into() })]);
    there.fields.insert("dots".to_owned(), Secret::new("../../..".to_owned()));
    let sent = inject(outgoing("https://a.example/x/{token}", None), &there).unwrap();
    assert_eq!(sent.url.as_str(), "https://a.example/x/..%2F..%2F..");
    there.fields.insert("dots".to_owned(), Secret::new("..".to_owned()));
    assert!(inject(outgoing("https://a.example/x/{token}", None), &there).is_err());
}
