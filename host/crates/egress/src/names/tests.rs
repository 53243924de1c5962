use std::sync::atomic::{AtomicUsize, Ordering};

use monstrum_types::FailureCode;
use tokio::sync::Notify;
use tokio::time::{advance, timeout};

use super::*;

/// A name server that counts its look-ups and answers with the address that has the number of the look-up as its last
/// part.
#[derive(Default)]
struct Server {
    asked: Arc<AtomicUsize>,
}

impl Server {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns the last part of the address that `names` returns for `key`.
    async fn ask(&self, names: &Names, key: Key) -> Result<u8, FailureCode> {
        let number = self.asked() + 1;
        let counter = Arc::clone(&self.asked);
        let answer = names.answer(key, |_| async move {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(addresses(number))
        });
        answer.await.map(|addresses| last(&addresses)).map_err(|failure| failure.code)
    }
}

fn addresses(last: usize) -> Arc<[IpAddr]> {
    [IpAddr::from([192, 0, 2, u8::try_from(last).unwrap_or(u8::MAX)])].into()
}

fn last(addresses: &[IpAddr]) -> u8 {
    match addresses {
        [IpAddr::V4(address)] => address.octets()[3],
        other => panic!("{other:?}"),
    }
}

fn key(name: &str, opened: &[&str]) -> Key {
    let allow_addresses = opened.iter().map(|range| range.parse().unwrap()).collect();
    Key { name: name.to_owned(), network: Network { allow_addresses, allow_http: false } }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_30_s() {
    let (names, server) = (Names::default(), Server::default());
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
    advance(KEPT_MAX - Duration::from_millis(1)).await;
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
    advance(Duration::from_millis(1)).await;
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn the_age_of_an_answer_includes_its_look_up() {
    let (names, server) = (Names::default(), Server::default());
    let slow = names.answer(key("a.example", &[]), |_| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(addresses(9))
    });
    assert_eq!(last(&slow.await.unwrap()), 9);
    advance(Duration::from_secs(9)).await;
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(9));
    advance(Duration::from_secs(1)).await;
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_serves_only_the_rules_by_which_it_was_checked() {
    let (names, server) = (Names::default(), Server::default());
    let insecure = key("a.example", &[]);
    let insecure = Key { network: Network { allow_http: true, ..insecure.network }, ..insecure };
    let keys = [key("a.example", &[]), key("a.example", &["10.0.0.0/8"]), insecure, key("b.example", &[])];
    for _ in 0..2 {
        for (number, key) in (1..).zip(&keys) {
            assert_eq!(server.ask(&names, key.clone()).await, Ok(number));
        }
    }
    assert_eq!((server.asked(), names.count()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn failures_are_not_kept() {
    let (names, server) = (Names::default(), Server::default());
    for code in [FailureCode::Denied, FailureCode::Dns] {
        let failing = names.answer(key("a.example", &[]), |_| async move { Err(Failure::unsent(code, "no")) });
        assert_eq!(failing.await.unwrap_err().code, code);
        assert_eq!(names.count(), 0);
    }
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
}

/// Checks that a name that was allowed earlier is refused after its answer has expired and has become forbidden, and
/// that the earlier answer does not return.
#[tokio::test(start_paused = true)]
async fn a_refusal_replaces_an_expired_answer() {
    let (names, server) = (Names::default(), Server::default());
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
    advance(KEPT_MAX).await;
    for _ in 0..2 {
        let refusal = Err(Failure::unsent(FailureCode::Denied, "no"));
        let refused = names.answer(key("a.example", &[]), |_| async move { refusal });
        assert_eq!(refused.await.unwrap_err().code, FailureCode::Denied);
    }
    assert_eq!(names.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_entry_is_evicted() {
    let (names, server) = (Names::default(), Server::default());
    for number in 0..NAMES_MAX + 10 {
        server.ask(&names, key(&format!("{number}.example"), &[])).await.unwrap();
        assert!(names.count() <= NAMES_MAX);
    }
    assert_eq!(names.count(), NAMES_MAX);
    let before = server.asked();
    server.ask(&names, key(&format!("{}.example", NAMES_MAX + 9), &[])).await.unwrap();
    assert_eq!(server.asked(), before, "the newest entry is kept");
    server.ask(&names, key("9.example", &[])).await.unwrap();
    assert_eq!(server.asked(), before + 1, "the oldest entries were evicted");
}

/// A look-up that answers after `release` was called.
#[derive(Clone, Default)]
struct Gate {
    asked: Arc<AtomicUsize>,
    gate: Arc<Notify>,
}

impl Gate {
    async fn ask(self, names: Arc<Names>, answer: Answer) -> Answer {
        let Gate { asked, gate } = self;
        let look_up = |_| async move {
            asked.fetch_add(1, Ordering::SeqCst);
            gate.notified().await;
            answer
        };
        names.answer(key("a.example", &[]), look_up).await
    }
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_look_up() {
    let denied = Err(Failure::unsent(FailureCode::Denied, "no"));
    for (answer, kept) in [(Ok(addresses(7)), 1), (denied, 0)] {
        let (names, gate) = (Arc::new(Names::default()), Gate::default());
        let ask = |_| tokio::spawn(gate.clone().ask(Arc::clone(&names), answer.clone()));
        let asking: Vec<_> = (0..20).map(ask).collect();
        settle().await;
        gate.gate.notify_one();
        for asked in asking {
            assert_eq!(asked.await.unwrap(), answer);
        }
        assert_eq!((gate.asked.load(Ordering::SeqCst), names.count()), (1, kept));
    }
}

/// Checks that the end of the request that began a look-up does not end the look-up for other requests.
#[tokio::test(start_paused = true)]
async fn a_look_up_outlives_the_request_that_began_it() {
    let (names, gate) = (Arc::new(Names::default()), Gate::default());
    let first = tokio::spawn(gate.clone().ask(Arc::clone(&names), Ok(addresses(7))));
    settle().await;
    let second = tokio::spawn(gate.clone().ask(Arc::clone(&names), Ok(addresses(8))));
    settle().await;
    first.abort();
    settle().await;
    gate.gate.notify_one();
    assert_eq!(last(&second.await.unwrap().unwrap()), 7);
    assert_eq!(gate.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_look_up_is_not_joined() {
    let names = Arc::new(Names::default());
    let abandoned = Gate::default().ask(Arc::clone(&names), Ok(addresses(7)));
    let abandoned = timeout(Duration::from_secs(1), abandoned).await;
    assert!(abandoned.is_err());
    let server = Server::default();
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
}

/// Checks that a look-up that never ends delays later requests for at most the lifetime of an answer.
#[tokio::test(start_paused = true)]
async fn a_stuck_look_up_is_not_joined_for_ever() {
    let (names, gate) = (Arc::new(Names::default()), Gate::default());
    let stuck = tokio::spawn(gate.clone().ask(Arc::clone(&names), Ok(addresses(7))));
    settle().await;
    advance(KEPT_MAX).await;
    let server = Server::default();
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
    // The late answer of the stuck look-up does not replace the newer answer.
    gate.gate.notify_one();
    assert_eq!(last(&stuck.await.unwrap().unwrap()), 7);
    assert_eq!(server.ask(&names, key("a.example", &[])).await, Ok(1));
}
