//! Tests that a transport replaces only the network: egress checks requests before it calls the transport and redacts
//! responses afterwards.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use monstrum_egress::{Egress, EgressOptions, Network, Transport};
use monstrum_types::{Failure, FailureCode};

use crate::support::{Call, Names, TOKEN};

/// A transport that echoes the Authorization header.
#[derive(Default)]
struct Echo {
    seen: Mutex<Vec<String>>,
}

impl Transport for Echo {
    fn exchange(&self, request: http::Request<Vec<u8>>) -> BoxFuture<'_, Result<http::Response<Vec<u8>>, Failure>> {
        let authorization = request.headers()["authorization"].to_str().unwrap().to_owned();
        self.seen.lock().unwrap().push(format!("{} {} {authorization}", request.method(), request.uri()));
        let response = http::Response::builder().status(201).header("set-cookie", "a=b").header("x-kind", "echo");
        Box::pin(async move { Ok(response.body(authorization.into_bytes()).unwrap()) })
    }
}

fn call(url: &str) -> Call {
    let mut call = Call::new("https://api.example.com", url);
    call.scope.network = Network::default();
    call.names = Names::new(&[("api.example.com", &[&["192.0.0.9"]]), ("inside.example.com", &[&["10.0.0.1"]])]);
    call
}

fn egress(call: &Call, transport: &Arc<Echo>) -> Egress {
    let transport: Arc<dyn Transport> = transport.clone();
    Egress::new(EgressOptions { resolver: call.names.clone(), transport: Some(transport), ..EgressOptions::default() })
}

#[tokio::test]
async fn requests_are_authenticated_and_responses_redacted() {
    let (mut call, echo) = (call("/items"), Arc::new(Echo::default()));
    let egress = egress(&call, &echo);
    let response = call.send_by(&egress).await.unwrap();
    assert_eq!(*echo.seen.lock().unwrap(), [format!("GET https://api.example.com/items Bearer {TOKEN}")]);
    assert_eq!((response.status, response.body.as_slice()), (201, &b"[redacted]"[..]));
    assert_eq!(response.headers, [("x-kind".to_owned(), "echo".to_owned())]);
}

#[tokio::test]
async fn refused_requests_do_not_reach_it() {
    let echo = Arc::new(Echo::default());
    for (url, code) in [
        ("https://elsewhere.example.com/", FailureCode::Denied),
        ("http://api.example.com/", FailureCode::Denied),
        ("https://inside.example.com/", FailureCode::Denied),
        ("/../items", FailureCode::Invalid),
    ] {
        let mut call = call(url);
        call.scope.egress = vec!["https://inside.example.com".parse().unwrap()];
        let egress = egress(&call, &echo);
        let failure = call.send_by(&egress).await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (code, false), "{url}");
    }
    assert!(echo.seen.lock().unwrap().is_empty());
}
