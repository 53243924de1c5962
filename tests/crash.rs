//! Servers that end by a power cut during a thousand calls or by a signal, and starts that must be rejected.

mod moments;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use insta::assert_snapshot;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};
use support::{Api, FakeGithub, Recorded, Server};
use tokio::sync::watch;

use crate::stable::stable;
use crate::world::{World, text};

const BOTS: usize = 48;
const CALLS: usize = 1_000;
/// The number of answers before the power cut.
const ANSWERS: usize = 250;
/// The limit of open files. It is sufficient for both ends of a thousand connections, and for the other files of a
/// test.
const OPEN_FILES: u64 = 4_096;

/// A call that was answered before the server ended.
struct Answered {
    request_id: String,
    status: String,
}

/// Returns the tool and the parameters of a call. They contain a unique text that is sent to the upstream.
fn call_of(number: usize) -> (&'static str, Value) {
    let marker = format!("marker-{number:04}");
    match number % 3 {
        0 => ("github_create_issue", json!({ "repo": "acme/site", "title": marker })),
        1 => ("github_list_issues", json!({ "repo": "acme/site", "since": marker })),
        _ => ("test_echo_fetch", json!({ "path": format!("/echo?marker={marker}") })),
    }
}

/// Returns the marker in a text.
fn marker(text: &str) -> Option<String> {
    const DIGITS: usize = 4;
    let start = text.find("marker-")?;
    text.get(start..start + "marker-".len() + DIGITS).map(str::to_owned)
}

fn marker_of(request: &Recorded) -> Option<String> {
    marker(&request.query).or_else(|| marker(&String::from_utf8_lossy(&request.body)))
}

/// Delays each answer of the upstream by 50 to 200 ms. The delays come from a generator with a fixed seed.
async fn vary_delay(github: &FakeGithub) {
    let mut state = 0x2545_f491_u32;
    loop {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        github.set_delay(Duration::from_millis(50 + u64::from(state >> 16) % 150));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Creates bots that may use every tool of one GitHub resource and of one echo resource.
async fn bots(api: &Api, github: &FakeGithub) -> Result<Vec<String>> {
    let role = api.role("all", &["*"]).await?;
    let mut resources = Vec::new();
    for resource_type in ["github", "test-echo"] {
        let resource = api.resource(resource_type, resource_type, &github.url()).await?;
        api.token(&resource, &github.token()).await?;
        resources.push(resource);
    }
    let mut bots = Vec::new();
    for number in 0..BOTS {
        let bot = api.bot(&format!("bot {number}")).await?;
        for resource in &resources {
            api.bind(&bot, resource, &role, &json!({})).await?;
        }
        bots.push(bot);
    }
    Ok(bots)
}

/// Makes all calls at once, and simulates a power cut when enough calls are answered.
async fn cut_the_power(world: &mut World, bots: &[String]) -> Result<BTreeMap<String, Answered>> {
    let (answered, mut answers) = watch::channel(0_usize);
    let api = world.api.clone();
    let calls = (0..CALLS).map(|number| {
        let (tool, params) = call_of(number);
        let (api, bot, answered) = (api.clone(), &bots[number % bots.len()], answered.clone());
        async move {
            // The power cut breaks most of the connections, so an error is expected.
            let answer = api.call(bot, tool, &params).await.ok()?;
            answered.send_modify(|count| *count += 1);
            let part = |name: &str| text(&answer[name]).to_owned();
            Some((marker(&params.to_string())?, Answered { request_id: part("request_id"), status: part("status") }))
        }
    });
    let calls = join_all(calls);
    let (server, github) = (&mut world.server, &world.github);
    let killed = async {
        answers.wait_for(|count| *count >= ANSWERS).await?;
        server.kill().await
    };
    let (answered, status) = tokio::select! {
        () = vary_delay(github) => unreachable!("it goes on until it is dropped"),
        (answered, status) = async { tokio::join!(calls, killed) } => (answered, status?),
    };
    ensure!(!status.success(), "the server was not killed: it ended with {status}");
    Ok(answered.into_iter().flatten().collect())
}

/// Returns every call of the audit, by its marker.
async fn recorded(api: &Api) -> Result<BTreeMap<String, Value>> {
    let (status, export) = api.get("/api/audit/export").await?;
    ensure!(status == 200, "{export}");
    let lines = export.as_str().context("the export is not JSON Lines")?.lines();
    let calls = lines.map(|line| {
        let call: Value = serde_json::from_str(line)?;
        let marker =
            marker(&call["params"].to_string()).with_context(|| format!("the call contains no marker: {call}"))?;
        Ok((marker, call))
    });
    calls.collect()
}

#[tokio::test]
async fn a_power_cut_in_the_middle_of_a_thousand_calls_loses_none_that_counts() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let files = OPEN_FILES.max(limit.current.unwrap_or(OPEN_FILES));
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(files), maximum: limit.maximum })?;
    let mut world = World::with(&["github", "test-echo"]).await?;
    let bots = bots(&world.api, &world.github).await?;
    drop(world.github.take_requests());
    let answered = cut_the_power(&mut world, &bots).await?;
    let reached: BTreeSet<String> = world.github.requests().iter().filter_map(marker_of).collect();
    ensure!(answered.len() >= ANSWERS && answered.len() < CALLS, "{} were answered", answered.len());

    world.server.launch().await?;
    let api = world.server.api()?;
    let report = api.verify_audit().await?;
    assert_eq!(report["valid"], true, "{report}");
    let recorded = recorded(&api).await?;
    for (marker, answer) in &answered {
        let call = recorded
            .get(marker)
            .with_context(|| format!("{marker} was answered, but the audit does not contain it"))?;
        assert_eq!(
            [text(&call["request_id"]), text(&call["status"])],
            [&answer.request_id, &answer.status],
            "{marker}"
        );
    }
    let mut interrupted = 0;
    for marker in &reached {
        let call = recorded
            .get(marker)
            .with_context(|| format!("{marker} reached the upstream, but the audit does not contain it"))?;
        let events = api.audit(text(&call["request_id"])).await?;
        let kinds: Vec<&str> =
            events["events"].as_array().into_iter().flatten().map(|event| text(&event["kind"])).collect();
        match text(&call["status"]) {
            "interrupted" => {
                interrupted += 1;
                assert_eq!(kinds, ["started", "interrupted"], "{marker}");
            }
            _ => assert_eq!(kinds, ["started", "finished"], "{marker}"),
        }
    }
    assert!(interrupted > 0, "no call was running when the power was cut");
    assert!(recorded.values().all(|call| call["status"] != "running"), "a call of the previous run is still running");
    let served = answered.values().filter(|answer| answer.status == "success").count();
    assert!(served > ANSWERS / 2, "only {served} of {} answers were successful", answered.len());
    Ok(())
}

/// Starts a server and makes `calls` that the upstream receives and does not answer.
async fn in_flight(
    grace_s: &str,
    calls: usize,
    then: impl AsyncFnOnce(&mut Server, &FakeGithub) -> Result<()>,
) -> Result<(World, Vec<Result<Value>>)> {
    let server = Server::prepare(&["github"])?.argument("--shutdown-grace-s").argument(grace_s);
    let mut world = World::on(server).await?;
    world.grant_all("github").await?;
    world.github.hold();
    let (api, bot) = (world.api.clone(), world.bot.clone());
    let answers =
        join_all((0..calls).map(|number| {
            let (api, bot) = (api.clone(), bot.clone());
            async move {
                api.call(&bot, "github_list_issues", &json!({ "repo": "acme/site", "per_page": number + 1 })).await
            }
        }));
    let ended = async {
        world.reached(calls).await?;
        then(&mut world.server, &world.github).await
    };
    let (answers, ended) = tokio::join!(answers, ended);
    ended?;
    Ok((world, answers))
}

/// Restarts the server and counts the calls of the audit by status, code and message.
async fn ends(world: &mut World) -> Result<BTreeMap<String, usize>> {
    world.server.launch().await?;
    let api = world.server.api()?;
    assert_eq!(api.verify_audit().await?["valid"], true);
    let (_, list) = api.get("/api/audit?limit=1000").await?;
    let mut ends = BTreeMap::new();
    for call in list["items"].as_array().context("the list has no items")? {
        *ends
            .entry(format!("{} {} {}", text(&call["status"]), text(&call["code"]), text(&call["message"])))
            .or_default() += 1;
    }
    Ok(ends)
}

#[tokio::test]
async fn calls_in_flight_finish_within_the_grace() -> Result<()> {
    let (mut world, answers) = in_flight("60", 10, async |server, github| {
        server.signal(Signal::TERM)?;
        // After the signal, the server accepts no new calls, but still waits for the running calls.
        let url = server.url().context("it runs")?.to_owned();
        crate::world::eventually("the server accepts no new calls", async || {
            Ok(tokio::net::TcpStream::connect(url.trim_start_matches("http://")).await.is_err().then_some(()))
        })
        .await?;
        github.release();
        let status = server.ended().await?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    })
    .await?;
    for answer in answers {
        assert_eq!(answer?["status"], "success");
    }
    assert_eq!(ends(&mut world).await?, BTreeMap::from([("success  ".to_owned(), 10)]));
    Ok(())
}

#[tokio::test]
async fn calls_that_outlast_the_grace_are_told_and_recorded_as_interrupted() -> Result<()> {
    for grace_s in ["0", "1"] {
        let (mut world, answers) = in_flight(grace_s, 5, async |server, _| {
            let asked = Instant::now();
            let status = server.stop().await?;
            ensure!(status.success(), "the server ended with {status}");
            ensure!(asked.elapsed() < Duration::from_secs(30), "it took {:?}", asked.elapsed());
            Ok(())
        })
        .await?;
        let told: BTreeSet<String> = answers
            .into_iter()
            .map(|answer| {
                let answer = answer?;
                Ok(json!([answer["status"], answer["code"], answer["message"]]).to_string())
            })
            .collect::<Result<_>>()?;
        assert_eq!(
            told.into_iter().collect::<Vec<_>>(),
            [r#"["error","interrupted","the server was shut down before the call was finished"]"#]
        );
        let ended = ends(&mut world).await?;
        assert_eq!(ended.values().sum::<usize>(), 5, "{ended:?}");
        assert!(ended.keys().all(|end| end.contains(" interrupted ")), "{ended:?}");
    }
    Ok(())
}

/// Returns the error output of a rejected start, with the values that differ between runs replaced. The start must fail
/// and leave no new files behind.
async fn refused(server: &Server, arguments: &[&str]) -> Result<String> {
    let arguments: Vec<&str> = ["serve", "--listen", "127.0.0.1:0"].iter().chain(arguments).copied().collect();
    let output = server.command(&arguments).await?;
    ensure!(output.status.code() == Some(1), "the server ended with {}", output.status);
    ensure!(output.stdout.is_empty(), "the server printed {}", String::from_utf8_lossy(&output.stdout));
    Ok(text(&stable(&json!(String::from_utf8_lossy(&output.stderr)))).to_owned())
}

#[tokio::test]
async fn a_second_server_on_the_same_data_folder_is_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    assert_snapshot!(refused(&world.server, &[]).await?, @r#"
    error: another monstrum process uses the data folder [home]/data
    hint: stop the other server first, or use another data folder with --data-dir
    "#);
    // The first server is not affected.
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_used_is_named() -> Result<()> {
    let server = Server::prepare(&[])?;
    let file = server.home().join("a file");
    std::fs::write(&file, "not a folder")?;
    let file = file.to_str().context("the name of the temporary folder is not UTF-8")?;
    // Even an administrator cannot create a folder in /proc.
    let told = [
        refused(&server, &["--data-dir", file]).await?,
        refused(&server, &["--data-dir", &format!("{file}/data")]).await?,
        refused(&server, &["--data-dir", "/proc/monstrum"]).await?,
    ];
    assert_snapshot!(told.join("\n"), @r#"
    error: cannot use the data folder [home]/a file
      File exists (os error 17)
    hint: check that the server's user owns [home]/a file and that its disk has free space, or use --data-dir

    error: cannot use the data folder [home]/a file/data
      Not a directory (os error 20)
    hint: check that the server's user owns [home]/a file/data and that its disk has free space, or use --data-dir

    error: cannot use the data folder /proc/monstrum
      No such file or directory (os error 2)
    hint: check that the server's user owns /proc/monstrum and that its disk has free space, or use --data-dir
    "#);
    assert_eq!(std::fs::read_to_string(file)?, "not a folder");
    Ok(())
}

#[tokio::test]
async fn a_database_that_is_none_is_left_alone() -> Result<()> {
    let server = Server::prepare(&[])?;
    std::fs::create_dir(server.data_dir())?;
    let database = server.data_dir().join("monstrum.db");
    let content = "this is somebody's diary\n".repeat(100);
    std::fs::write(&database, &content)?;
    assert_snapshot!(refused(&server, &[]).await?, @r#"
    error: the database cannot be used
      the database is corrupt: `[home]/data/monstrum.db`: the file is not an SQLite database
    hint: restore the database from a backup, or use another data folder with --data-dir
    "#);
    assert_eq!(std::fs::read_to_string(&database)?, content);
    Ok(())
}

#[tokio::test]
async fn secrets_of_the_data_folder_are_for_its_owner_only() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let folder = world.server.data_dir();
    let mode = |path: &std::path::Path| anyhow::Ok(std::fs::metadata(path)?.permissions().mode() & 0o777);
    assert_eq!(mode(&folder)?, 0o700);
    for name in ["admin.key", "master.key", "node.id", "audit-heads.log"] {
        assert_eq!(mode(&folder.join(name))?, 0o600, "{name}");
    }
    // The key is created once, and still grants access.
    let key = std::fs::read_to_string(world.server.key_file())?;
    world.server.restart().await?;
    assert_eq!(std::fs::read_to_string(world.server.key_file())?, key);
    assert_eq!(world.server.api()?.get("/api/bots").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn without_its_master_key_a_server_does_not_begin_anew() -> Result<()> {
    let mut world = World::with(&[]).await?;
    world.server.stop().await?;
    let key = world.server.data_dir().join("master.key");
    let kept = std::fs::read(&key)?;
    std::fs::remove_file(&key)?;
    assert_snapshot!(refused(&world.server, &[]).await?, @r#"
    error: [home]/data/master.key is missing, but the database contains records encrypted with this key; restore the file from a backup
    hint: a server cannot read its secrets without its master key: restore the file from a backup
    "#);
    assert!(!key.exists(), "a new key was created in place of the lost key");
    // A wrong key has the same effect as a missing key.
    std::fs::write(&key, format!("1 {}\n", "5".repeat(64)))?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    assert_snapshot!(refused(&world.server, &[]).await?, @r#"
    error: [home]/data/master.key: master key version 1 is not the key that encrypted the secrets of this database
    hint: nothing was changed; use the master keys of this database, or the database that belongs to these keys
    "#);
    std::fs::write(&key, kept)?;
    world.server.launch().await?;
    assert_eq!(world.server.api()?.get("/api/bots").await?.1["items"][0]["name"], "tester");
    Ok(())
}

#[tokio::test]
async fn what_a_crash_left_open_is_interrupted_at_the_next_start() -> Result<()> {
    let (mut world, answers) = in_flight("60", 3, async |server, _| {
        server.kill().await?;
        Ok(())
    })
    .await?;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let ended = ends(&mut world).await?;
    assert_eq!(
        ended,
        BTreeMap::from([("interrupted interrupted the server ended before the call was finished".to_owned(), 3)])
    );
    Ok(())
}
