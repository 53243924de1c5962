use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Duration;

use monstrum_types::Secret;

use super::*;
use crate::redact::Redactor;

/// A size that exceeds the maximum for searches in place.
const LARGE: usize = INLINE_SEARCH_BYTES_MAX + 1;

/// A time-out that no test reaches on any machine.
const AT_MOST: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_search_ends_with_its_call() {
    let (queue, budget) = (SearchQueue::new(1), Arc::default());
    let (tell, told) = mpsc::channel();
    let (turns_of_call, budget_of_call) = (Arc::clone(&queue), Arc::clone(&budget));
    let call = tokio::spawn(async move {
        let search = run_in(&turns_of_call, LARGE, &budget_of_call, move |watch| {
            tell.send("begun").unwrap();
            while watch.may_look_at(0) {
                std::thread::yield_now();
            }
            tell.send("ended").unwrap();
            watch.check()
        });
        search.await
    });
    let told = tokio::task::spawn_blocking(move || {
        assert_eq!(told.recv_timeout(AT_MOST), Ok("begun"));
        told
    });
    let told = told.await.unwrap();
    call.abort();
    assert_eq!(tokio::task::spawn_blocking(move || told.recv_timeout(AT_MOST)).await.unwrap(), Ok("ended"));
    // The permit is available for another call.
    assert_eq!(run_in(&queue, LARGE, &budget, |_| Ok(())).await, Ok(()));
}

#[test]
fn a_cancelled_search_has_no_result() {
    let redactor = Redactor::new([Secret::new("s3cr3t-t0ken".to_owned())]);
    let watch = Watch::new(Arc::default());
    assert_eq!(redactor.contains_watched(b"a s3cr3t-t0ken", &watch), Ok(true));
    watch.cancelled.store(true, Ordering::Relaxed);
    assert_eq!(redactor.contains_watched(b"a s3cr3t-t0ken", &watch), Err(SearchError::Cancelled));
    assert_eq!(redactor.redact_watched(b"a s3cr3t-t0ken".to_vec(), &watch), Err(SearchError::Cancelled));
}

#[test]
fn a_search_over_its_budget_has_no_result() {
    let redactor = Redactor::new([Secret::new("s3cr3t-t0ken".to_owned())]);
    let budget = Arc::new(SearchBudget::of_fuel(30));
    let watch = Watch::new(Arc::clone(&budget));
    assert_eq!(redactor.contains_watched(&[b'x'; 40], &watch), Ok(false));
    assert_eq!(budget.fuel_used(), 20);
    assert_eq!(redactor.contains_watched(&[b'x'; 40], &watch), Err(SearchError::Budget));
    let failure = SearchError::Budget.failure();
    assert_eq!((failure.code, failure.sent), (FailureCode::Limit, false));
}

#[tokio::test]
async fn concurrent_searches_are_limited() {
    const QUEUE: usize = 3;
    let (queue, budget) = (SearchQueue::new(QUEUE), Arc::default());
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let searches = (0..40).map(|_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        run_in(&queue, LARGE, &budget, move |_| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..100 {
                std::thread::yield_now();
            }
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    });
    assert!(futures::future::join_all(searches).await.iter().all(Result::is_ok));
    let most = most.load(Ordering::SeqCst);
    assert!((1..=QUEUE).contains(&most), "{most} searches ran at once");
    assert_eq!(queue.state.lock().free, QUEUE);
}

#[tokio::test]
async fn the_call_with_the_fewest_searched_bytes_is_next() {
    let queue = SearchQueue::new(1);
    let held = queue.take(0).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = 0;
    for (name, searched) in [("much", 9), ("none", 0), ("some", 4), ("none, but later", 0), ("gone", 1)] {
        let (wanted, tell) = (Arc::clone(&queue), tell.clone());
        let task = tokio::spawn(async move {
            let _permit = wanted.take(searched).await;
            tell.send(name).unwrap();
        });
        waiting += 1;
        while queue.state.lock().waiting.len() < waiting {
            tokio::task::yield_now().await;
        }
        if name == "gone" {
            task.abort();
            let _ = task.await;
        }
    }
    drop((held, tell));
    let mut order = Vec::new();
    while let Some(name) = told.recv().await {
        order.push(name);
    }
    assert_eq!(order, ["none", "none, but later", "some", "much"]);
    assert_eq!(queue.state.lock().free, 1);
}

/// For every text, the total size of its views is at most `TIMES_MAX` times the length of the text.
#[test]
fn the_size_of_views_is_proportional_to_the_text() {
    const LENGTH: usize = 64 << 10;
    /// The maximum ratio of the views' total size to the length of the text. The worst case is text that is base64 of
    /// base64 at each alignment: decoding a text at the four alignments gives four views, each with 3/4 of its length.
    const TIMES_MAX: u64 = 14;
    let repeated = |part: &str| part.bytes().cycle().take(LENGTH).collect::<Vec<u8>>();
    let texts = [
        "\\", "\\\\a", "\\u005c", "\\x5c", "%", "%5c", "%25", "&", "&amp;", "&amp", "&#38", "&lt", "\0", "\\\0", "V",
        "A", "0", "\n",
    ];
    for secret in ["s3cr3t-t0ken", "\\%&s3cr3t-t0ken", "pässwörd"] {
        let redactor = Redactor::new([Secret::new(secret.to_owned())]);
        for text in texts {
            let budget = Arc::new(SearchBudget::default());
            redactor.contains_watched(&repeated(text), &Watch::new(Arc::clone(&budget))).unwrap();
            let times = budget.bytes.load(Ordering::Relaxed) / LENGTH as u64;
            assert!(times <= TIMES_MAX, "the views of {text:?} have {times} times its length (secret {secret:?})");
        }
    }
}
