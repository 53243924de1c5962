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
fn a_header_that_is_there_already_is_the_hosts() {
    let mut there = outgoing("https://a.example/", None);
    there.headers.insert("x-api-key", HeaderValue::from_static("of the plugin"));
    let failure = inject(there, &credential(vec![header("X-API-Key", "{token}")])).err();
    assert_eq!(failure.map(|failure| failure.code), Some(FailureCode::Denied));
}

#[test]
fn query_parameters_are_encoded_and_only_once() {
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
    let sent = injected(body("/a~1b"), "https://a.example/", None).unwrap();
    assert_eq!(sent.body.unwrap(), br#"{"a/b":"s3cr3t/t0ken"}"#);
    assert_eq!(sent.headers[CONTENT_TYPE], "application/json");
}

#[test]
fn the_path_has_exactly_one_placeholder() {
    let url = |url: &str| injected(path(), url, None).map(|sent| String::from(sent.url));
    assert_eq!(url("https://a.example/bot{token}/send"), Ok("https://a.example/bots3cr3t%2Ft0ken/send".to_owned()));
    assert_eq!(url("https://a.example/%7btoken%7d/a%2Fb"), Ok("https://a.example/s3cr3t%2Ft0ken/a%2Fb".to_owned()));
    for none_or_more in ["https://a.example/", "https://a.example/?x={token}", "https://a.example/{token}/{token}"] {
        assert_eq!(url(none_or_more), Err(FailureCode::Invalid), "{none_or_more}");
    }
}
