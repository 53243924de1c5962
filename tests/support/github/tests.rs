use super::*;
use crate::install_tls;
use serde_json::json;

async fn ask(github: &FakeGithub, method: reqwest::Method, path: &str, body: Option<Value>) -> (u16, String, Value) {
    install_tls();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let mut request = client.request(method, format!("{}{path}", github.url())).bearer_auth(github.token());
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let link = response.headers().get("link").map_or("", |link| link.to_str().unwrap()).to_owned();
    (response.status().as_u16(), link, response.json().await.unwrap())
}

#[tokio::test]
async fn comments_come_in_pages_that_lead_to_the_next() {
    let github = FakeGithub::start_with_token("token").await.unwrap();
    github.add_comments("acme/site", 1, 120, 16);
    let path = "/repos/acme/site/issues/1/comments";
    let (status, link, first) = ask(&github, reqwest::Method::GET, &format!("{path}?per_page=100"), None).await;
    assert_eq!((status, first.as_array().unwrap().len()), (200, 100));
    assert!(link.contains(&format!("<{}{path}?per_page=100&page=2>; rel=\"next\"", github.url())), "{link}");
    let (_, link, second) = ask(&github, reqwest::Method::GET, &format!("{path}?per_page=100&page=2"), None).await;
    assert_eq!((link.as_str(), second.as_array().unwrap().len()), ("", 20));
}

#[tokio::test]
async fn issues_and_labels_are_kept() {
    let github = FakeGithub::start_with_token("token").await.unwrap();
    let (status, _, made) =
        ask(&github, reqwest::Method::POST, "/repos/acme/api/issues", Some(json!({ "title": "t" }))).await;
    assert_eq!((status, &made["number"], &made["state"]), (201, &json!(1), &json!("open")));
    let path = "/repos/acme/site/issues/3/labels/good%20first%20issue";
    let (status, _, left) = ask(&github, reqwest::Method::DELETE, path, None).await;
    assert_eq!((status, left), (200, json!([{ "name": "feature" }])));
    let (status, _, _) = ask(&github, reqwest::Method::DELETE, path, None).await;
    assert_eq!(status, 404);
    let (_, _, found) =
        ask(&github, reqwest::Method::GET, "/repos/acme/site/issues?labels=feature&state=all", None).await;
    assert_eq!(found.as_array().unwrap().len(), 1);
    let methods: Vec<String> = github.take_requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["POST", "DELETE", "DELETE", "GET"]);
}

#[tokio::test]
async fn a_wrong_token_or_an_unknown_repository_is_refused() {
    let github = FakeGithub::start_with_token("token").await.unwrap();
    let (status, _, body) = ask(&github, reqwest::Method::GET, "/repos/acme/none", None).await;
    assert_eq!((status, &body["message"]), (404, &json!("Not Found")));
    github.shared.world().token = "another".to_owned();
    install_tls();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let response = client.get(format!("{}/repos/acme/site", github.url())).bearer_auth("token").send().await.unwrap();
    assert_eq!(response.status().as_u16(), 401);
    assert_eq!(response.json::<Value>().await.unwrap()["message"], "Bad credentials");
}
