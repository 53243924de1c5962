//! Tests of pages of the console that depend on the state of the server.

use super::*;

#[tokio::test]
async fn a_page_that_is_read_while_the_server_starts_reads_itself_again() {
    let server = Server::start(false).await;
    // After this request, the start-up scan is complete.
    server.ask(&server.root, Method::GET, "/api/workspaces", None).await;
    server.app().scanned.send_replace(false);
    for path in ["/console", "/console/login", "/console/w/default/bots"] {
        let answer = server.ask("", Method::GET, path, None).await;
        assert_eq!(
            (answer.status, &answer.headers[header::REFRESH]),
            (StatusCode::SERVICE_UNAVAILABLE, &"2".parse().unwrap())
        );
        assert!(answer.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"), "{answer:?}");
        assert!(answer.body.as_str().unwrap().contains("The server is starting"), "{answer:?}");
    }
    // A form is not sent again.
    let form = [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")];
    let answer = server.ask_with("", Method::POST, "/console/login", None, &form).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!answer.headers.contains_key(header::REFRESH), "{answer:?}");
    server.app().scanned.send_replace(true);
    let answer = server.ask("", Method::GET, "/console/login", None).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(!answer.headers.contains_key(header::REFRESH));
}
