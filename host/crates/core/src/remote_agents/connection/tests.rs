use futures::FutureExt as _;
use monstrum_types::JsonText;
use serde_json::Value;

use super::super::protocol::Offered;
use super::*;

const DIGEST: ToolDigest = [7; 32];

fn connection(concurrency: u32) -> Connection {
    let hello = Hello {
        name: "lab".to_owned(),
        version: "1".to_owned(),
        instance: "i".to_owned(),
        concurrency,
        replace: false,
        offered: Offered::default(),
    };
    let place = (WorkspaceId::new(), ResourceId::new());
    let connection = Connection::new("c".to_owned(), place, &hello, Instant::now());
    connection.set_tools(HashMap::from([("sum".to_owned(), DIGEST)]));
    connection
}

fn call(id: usize, params: String) -> OutgoingCall {
    OutgoingCall {
        id: id.to_string(),
        tool: "sum".to_owned(),
        params,
        bot_id: String::new(),
        bot_name: String::new(),
        task_id: String::new(),
        chat: Value::Null,
        locale: String::new(),
        deadline_ms: 1,
        listener: None,
    }
}

fn start(connection: &Connection, id: usize) -> Result<oneshot::Receiver<Answer>, NotTaken> {
    connection.start(&call(id, "{}".to_owned()), &DIGEST, &mut None, Instant::now())
}

fn next(connection: &Connection) -> Option<Outgoing> {
    connection.next().now_or_never().flatten()
}

/// Returns the types of the frames that the connection would send now.
fn types(connection: &Connection) -> Vec<String> {
    let frames = std::iter::from_fn(|| next(connection));
    frames
        .map(|frame| match frame {
            Outgoing::Text(text) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                format!("{} {}", frame["type"].as_str().unwrap(), frame["id"].as_str().unwrap_or_default())
            }
            other => format!("{other:?}"),
        })
        .collect()
}

fn success() -> Ended {
    Ended::Success(JsonText::from(&Value::Null))
}

#[tokio::test(start_paused = true)]
async fn a_call_has_one_answer() {
    let connection = connection(8);
    let mut answer = start(&connection, 1).unwrap();
    assert!(!connection.finish("1", success()), "the agent cannot know a call that was not sent");
    assert_eq!(types(&connection), ["call 1"]);
    assert!(!connection.finish("2", success()), "a foreign id");
    assert!(connection.finish("1", Ended::Error("first".to_owned())));
    assert!(!connection.finish("1", success()), "a second result");
    assert_eq!(answer.try_recv(), Ok(Answer::Ended(Ended::Error("first".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn a_connection_takes_as_many_calls_as_the_agent_announced_and_only_for_its_tools() {
    let connection = connection(2);
    let _calls = [start(&connection, 1).unwrap(), start(&connection, 2).unwrap()];
    assert_eq!(start(&connection, 3).err(), Some(NotTaken::Full));
    types(&connection);
    assert!(connection.finish("1", success()));
    assert!(start(&connection, 3).is_ok());
    assert!(connection.finish("2", success()));
    assert_eq!(connection.takes("sum", &[8; 32]), Err(NotTaken::OtherTools), "another definition");
    assert_eq!(connection.takes("other", &DIGEST), Err(NotTaken::OtherTools));
    connection.set_tools(HashMap::new());
    assert_eq!(connection.takes("sum", &DIGEST), Err(NotTaken::OtherTools), "the tools were replaced");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_told_only_if_it_was_sent() {
    let connection = connection(8);
    drop(start(&connection, 1).unwrap());
    connection.cancel("1", "cancelled", Instant::now());
    assert_eq!(types(&connection), Vec::<String>::new());
    drop(start(&connection, 2).unwrap());
    assert_eq!(types(&connection), ["call 2"]);
    connection.cancel("2", "cancelled", Instant::now());
    connection.cancel("2", "cancelled", Instant::now());
    assert_eq!(types(&connection), ["cancel 2"]);
    assert!(connection.finish("2", success()), "the result was under way");
    assert!(!connection.finish("2", success()));
}

#[tokio::test(start_paused = true)]
async fn the_end_answers_all_calls_and_closes_the_socket() {
    let connection = connection(8);
    let mut sent = start(&connection, 1).unwrap();
    assert_eq!(types(&connection), ["call 1"]);
    let mut unsent = start(&connection, 2).unwrap();
    connection.send("{\"type\":\"error\"}".to_owned(), Instant::now());
    connection.end(Close::Revoked);
    connection.end(Close::NotJson);
    assert_eq!((sent.try_recv(), unsent.try_recv()), (Ok(Answer::Lost), Ok(Answer::NotSent)));
    assert_eq!(start(&connection, 3).err(), Some(NotTaken::Closing));
    assert_eq!(connection.ended().await, Close::Revoked);
    assert_eq!(types(&connection), ["error ", "Close(Revoked)"], "the unsent call is not sent");
    assert_eq!(next(&connection), None);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_leaves_finishes_its_calls() {
    let leaving = connection(8);
    let _call = start(&leaving, 1).unwrap();
    leaving.leave(1_000, Instant::now());
    leaving.leave(1_000, Instant::now());
    assert_eq!(types(&leaving), ["call 1", "bye "]);
    assert_eq!(start(&leaving, 2).err(), Some(NotTaken::Closing));
    assert!(leaving.finish("1", success()));
    assert!(leaving.ended().now_or_never().is_none(), "the host closes it");

    let retired = connection(8);
    let _call = start(&retired, 1).unwrap();
    types(&retired);
    retired.retire();
    assert_eq!(start(&retired, 2).err(), Some(NotTaken::Closing));
    assert!(retired.ended().now_or_never().is_none());
    assert!(retired.finish("1", success()));
    assert!(matches!(retired.ended().now_or_never(), Some(Close::Conflict(_))));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends() {
    let connection = connection(8);
    tokio::time::advance(SILENCE_MAX - Duration::from_millis(1)).await;
    assert_eq!(connection.overdue(Instant::now()), None);
    connection.heard(Instant::now());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(connection.overdue(Instant::now()), None);
    tokio::time::advance(SILENCE_MAX).await;
    assert_eq!(connection.overdue(Instant::now()), Some(Close::Lost));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_takes_no_calls_and_ends() {
    let connection = connection(64);
    // The agent reads the first frame only in part, so it is still being written.
    let large = format!("{{\"s\":\"{}\"}}", "x".repeat(1 << 20));
    let mut calls = Vec::new();
    while let Ok(answer) = connection.start(&call(calls.len(), large.clone()), &DIGEST, &mut None, Instant::now()) {
        calls.push(answer);
        if calls.len() == 1 {
            assert!(matches!(next(&connection), Some(Outgoing::Text(_))));
        }
    }
    assert_eq!(calls.len(), 4, "4 MiB are unsent");
    tokio::time::advance(CROWDED_MAX - Duration::from_millis(1)).await;
    connection.heard(Instant::now());
    assert_eq!(connection.overdue(Instant::now()), None);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(matches!(connection.overdue(Instant::now()), Some(Close::TryLater(_))));
    // The agent reads again in time.
    assert!(matches!(next(&connection), Some(Outgoing::Text(_))));
    assert_eq!(connection.overdue(Instant::now()), None);
    assert!(start(&connection, 100).is_ok());
}

#[tokio::test(start_paused = true)]
async fn many_small_unsent_frames_are_a_slow_reader_too() {
    let connection = connection(64);
    for _ in 0..UNSENT_FRAMES_MAX {
        assert_eq!(connection.takes("sum", &DIGEST), Ok(()));
        connection.send("{}".to_owned(), Instant::now());
    }
    assert_eq!(connection.takes("sum", &DIGEST), Err(NotTaken::Full));
    tokio::time::advance(CROWDED_MAX).await;
    assert!(matches!(connection.overdue(Instant::now()), Some(Close::TryLater(_))));
}

#[tokio::test(start_paused = true)]
async fn a_flood_ends_the_connection() {
    let connection = connection(8);
    for _ in 0..2 {
        for _ in 0..FRAMES_PER_SECOND_MAX {
            assert_eq!(connection.count(Instant::now()), Ok(()));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    for _ in 0..FRAMES_PER_SECOND_MAX {
        assert_eq!(connection.count(Instant::now()), Ok(()));
    }
    assert!(matches!(connection.count(Instant::now()), Err(Close::Violation(_))));
}

#[tokio::test(start_paused = true)]
async fn progress_of_a_running_call_is_passed_on_once_a_second() {
    let connection = connection(8);
    let (listener, mut told) = mpsc::channel(2);
    let call = OutgoingCall { listener: Some(listener), ..call(1, "{}".to_owned()) };
    let _answer = connection.start(&call, &DIGEST, &mut None, Instant::now()).unwrap();
    let progress = |id: &str, message: &str| connection.progress(id, message.to_owned(), Instant::now());
    assert!(!progress("1", "early"), "the call was not sent yet");
    types(&connection);
    assert!(!progress("2", "foreign"));
    assert!(progress("1", "first"));
    assert!(!progress("1", "too soon"));
    tokio::time::advance(PROGRESS_INTERVAL).await;
    assert!(progress("1", "second"));
    tokio::time::advance(PROGRESS_INTERVAL).await;
    assert!(progress("1", "third"), "a listener that does not read misses messages");
    assert_eq!((told.try_recv(), told.try_recv()), (Ok("first".to_owned()), Ok("second".to_owned())));
    assert!(told.try_recv().is_err());
    assert!(connection.finish("1", success()));
    assert!(!progress("1", "after the result"));
}
