//! `monstrum serve`: the start, the end, and the messages of a failed start.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use insta::assert_snapshot;
use support::Server;

use crate::cli::{run, told};
use crate::locked::Locked;

#[tokio::test]
async fn the_first_start_leaves_a_root_key_and_later_ones_keep_it() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let url = server.url().unwrap_or_default().to_owned();
    assert!(server.output().contains(&format!("listening on {url}\n")) && !url.ends_with(":0"), "{}", server.output());
    let key = fs::read_to_string(server.key_file())?;
    for file in ["admin.key", "master.key", "monstrum.db"] {
        let mode = fs::metadata(server.data_dir().join(file))?.permissions().mode();
        assert_eq!(mode & 0o077, 0, "users other than the owner can access {file}: {mode:o}");
    }
    assert_eq!(fs::metadata(server.data_dir())?.permissions().mode() & 0o077, 0);
    assert_eq!(server.api()?.get("/api/keys").await?.0, 200);
    assert_eq!(server.stop().await?.code(), Some(0), "the server exited with an error after the signal to stop");
    fs::write(server.data_dir().join("notes.txt"), "other files may lie here")?;
    server.launch().await?;
    assert_eq!(fs::read_to_string(server.key_file())?, key);
    assert_eq!(server.output().matches("the root key is in").count(), 1);
    assert!(!server.output().contains(key.trim()), "the key was shown although the output is not a terminal");
    assert_eq!(server.api()?.get("/api/keys").await?.1["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

/// Starts the server with the address in the file only. Then starts it with the address also in the environment and as
/// a flag, and with another setting in the environment only.
#[tokio::test]
async fn settings_come_from_flags_then_the_environment_then_the_file() -> Result<()> {
    let busy = TcpListener::bind("127.0.0.1:0")?;
    let taken = busy.local_addr()?.to_string();
    let server = Server::prepare(&[])?;
    fs::write(server.home().join("monstrum.toml"), format!("listen = \"{taken}\"\n"))?;
    let by_file = told(&server, &["serve"]).await?;
    assert!(by_file.contains("error: cannot listen on"), "{by_file}");
    let mut server = server.variable("MONSTRUM_LISTEN", &taken).variable("MONSTRUM_PUBLIC_DOCS", "true");
    server.launch().await?;
    assert_ne!(server.url(), Some(format!("http://{taken}").as_str()), "the flag --listen did not take precedence");
    assert_eq!(
        server.api()?.with_key("").get("/api/openapi.json").await?.0,
        200,
        "the environment variable had no effect"
    );
    Ok(())
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
async fn what_it_cannot_start_with_is_explained() -> Result<()> {
    let server = Server::prepare(&[])?;
    let busy = TcpListener::bind("127.0.0.1:0")?;
    let taken = busy.local_addr()?.to_string();
    fs::write(server.home().join("file"), "")?;
    fs::create_dir(server.home().join("open"))?;
    fs::set_permissions(server.home().join("open"), fs::Permissions::from_mode(0o777))?;
    let damaged = server.home().join("damaged");
    fs::create_dir(&damaged)?;
    fs::write(damaged.join("monstrum.db"), "this is not a database, and longer than a header would be".repeat(20))?;
    let mut answers = Vec::new();
    for arguments in [
        &["--listen", &taken][..],
        &["--listen", "8080"],
        &["--listen", "127.0.0.1:0", "--data-dir", "file"],
        &["--listen", "127.0.0.1:0", "--data-dir", "file/below"],
        &["--listen", "127.0.0.1:0", "--data-dir", "damaged"],
        &["--listen", "127.0.0.1:0", "--plugins-dir", "open"],
        &["--listen", "127.0.0.1:0", "--plugins-dir", "file"],
        &["--listen", "127.0.0.1:0", "--database-url", "mysql://me:secret@db.example/monstrum"],
        &["--listen", "127.0.0.1:0", "--database-url", "postgres://me:sec/ret@db.example/monstrum"],
        &["--listen", "127.0.0.1:0", "--database-url", "postgres://me:secret@127.0.0.1:1/monstrum"],
        &["--listen", "127.0.0.1:0", "--log", "loud=="],
        &["--lisen", "127.0.0.1:0"],
        &["extra"],
    ] {
        let answer = told(&server, &[&["serve"], arguments].concat()).await?;
        answers.push(format!("$ {}\n{answer}", arguments.join(" ").replace(&taken, "[taken]")));
    }
    fs::write(server.home().join("monstrum.toml"), "listen = \"127.0.0.1:0\"\nlisen = 1\n")?;
    answers.push(format!("$ unknown setting\n{}", told(&server, &["serve"]).await?));
    fs::write(server.home().join("monstrum.toml"), "listen = 8080\n")?;
    answers.push(format!("$ setting of another type\n{}", told(&server, &["serve"]).await?));
    fs::write(server.home().join("monstrum.toml"), "listen = [\n")?;
    answers.push(format!("$ no TOML\n{}", told(&server, &["serve"]).await?));
    assert_snapshot!(answers.join("\n").replace(&taken, "[taken]"), @r#"
    $ --listen [taken]
    [stderr]
    error: cannot listen on [upstream]
      Address already in use (os error 98)
    hint: set --listen to another address; port 0 selects a free port
    [exit 1]
    $ --listen 8080
    [stderr]
    error: invalid value '8080' for '--listen <ADDR:PORT>': invalid socket address syntax
    hint: `monstrum serve --help` shows usage and examples
    [exit 2]
    $ --listen 127.0.0.1:0 --data-dir file
    [stderr]
    error: cannot use the data folder file
      File exists (os error 17)
    hint: check that the server's user owns file and that its disk has free space, or use --data-dir
    [exit 1]
    $ --listen 127.0.0.1:0 --data-dir file/below
    [stderr]
    error: cannot use the data folder file/below
      Not a directory (os error 20)
    hint: check that the server's user owns file/below and that its disk has free space, or use --data-dir
    [exit 1]
    $ --listen 127.0.0.1:0 --data-dir damaged
    [stderr]
    error: the database cannot be used
      the database is corrupt: `[home]/damaged/monstrum.db`: the file is not an SQLite database
    hint: restore the database from a backup, or use another data folder with --data-dir
    [exit 1]
    $ --listen 127.0.0.1:0 --plugins-dir open
    [stderr]
    error: the plugins folder cannot be used
      open is writable by group or others (mode 777); run: chmod go-w open
    hint: check the plugins folder open, or set --plugins-dir
    [exit 1]
    $ --listen 127.0.0.1:0 --plugins-dir file
    [stderr]
    error: cannot create the plugins folder file
      File exists (os error 17)
    hint: check the plugins folder file, or set --plugins-dir
    [exit 1]
    $ --listen 127.0.0.1:0 --database-url mysql://me:secret@db.example/monstrum
    [stderr]
    error: the database cannot be used
      cannot use `mysql` as a database: expected postgres://…, sqlite:PATH or a path
    hint: omit --database-url to use the database in [home]/data
    [exit 1]
    $ --listen 127.0.0.1:0 --database-url postgres://me:sec/ret@db.example/monstrum
    [stderr]
    error: the database cannot be used
      cannot use the database address: it is not a URL (special characters in the password must be percent-encoded); expected postgres://USER:PASSWORD@HOST:PORT/DATABASE
    hint: omit --database-url to use the database in [home]/data
    [exit 1]
    $ --listen 127.0.0.1:0 --database-url postgres://me:secret@127.0.0.1:1/monstrum
    [stderr]
    error: the database cannot be used
      database `postgres://me@[upstream]/monstrum`: the database cannot be reached
      error communicating with database: Connection refused (os error 111)
    hint: check that the database of --database-url is running and reachable, and that its user may log in
    [exit 1]
    $ --listen 127.0.0.1:0 --log loud==
    [stderr]
    error: invalid log filter `loud==`
      error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
    hint: set --log to a filter such as info or monstrum=debug,info
    [exit 1]
    $ --lisen 127.0.0.1:0
    [stderr]
    error: unexpected argument '--lisen' found

      tip: a similar argument exists: '--listen'

    Usage: monstrum serve --listen <ADDR:PORT>
    hint: `monstrum serve --help` shows usage and examples
    [exit 2]
    $ extra
    [stderr]
    error: unexpected argument 'extra' found

    Usage: monstrum serve [OPTIONS]
    hint: `monstrum serve --help` shows usage and examples
    [exit 2]
    $ unknown setting
    [stderr]
    error: monstrum.toml: unknown field `lisen`, expected one of `listen`, `max_connections`, `max_connections_per_address`, `data_dir`, `audit_keep`, `keep_tasks_days`, `keep_events_days`, `keep_runs_days`, `plugins_dir`, `watch_plugins`, `database_url`, `master_key_file`, `public_url`, `approval_url`, `console`, `console_hosts`, `mcp_hosts`, `mcp_origins`, `mcp_issuer`, `mcp_issuer_allow`, `mcp_issuer_http`, `mcp_issuer_client_id`, `mcp_issuer_client_secret`, `mcp_issuer_client_secret_file`, `oauth_return_origins`, `registry`, `registry_allow_addresses`, `max_fuel`, `max_memory_mib`, `max_timeout_s`, `max_calls`, `max_calls_per_plugin`, `max_calls_per_bot`, `max_llm_calls`, `workspace_patterns_mib`, `sandbox`, `sandbox_idle_s`, `sandbox_sweep_s`, `sandbox_memory_mib`, `sandbox_cpus`, `sandbox_disk_mib`, `sandbox_processes`, `sandbox_max`, `sandbox_share_workspace`, `sandbox_share_bot`, `sandbox_kept_max`, `sandbox_kept_gib`, `sandbox_keep_outputs`, `sandbox_total_memory_mib`, `sandbox_total_processes`, `sandbox_template`, `sandbox_network`, `sandbox_resolvers`, `shutdown_grace_s`, `public_docs`, `log_format`, `log`, `otlp_endpoint`
      TOML parse error at line 2, column 1
        |
      2 | lisen = 1
        | ^^^^^
    hint: `monstrum serve --help` describes every setting and its values
    [exit 1]
    $ setting of another type
    [stderr]
    error: monstrum.toml: listen: invalid type: integer `8080`, expected socket address
      TOML parse error at line 1, column 10
        |
      1 | listen = 8080
        |          ^^^^
    hint: `monstrum serve --help` describes every setting and its values
    [exit 1]
    $ no TOML
    [stderr]
    error: monstrum.toml: unclosed array, expected `]`
      TOML parse error at line 1, column 11
        |
      1 | listen = [
        |           ^
    hint: `monstrum serve --help` describes every setting and its values
    [exit 1]
    "#);
    Ok(())
}

#[tokio::test]
async fn a_folder_that_is_not_its_own_is_refused() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let mut answers = vec![format!("$ a second server\n{}", told(&server, &serve).await?)];
    assert_eq!(server.api()?.get("/api/keys").await?.0, 200, "the first server no longer serves");
    server.stop().await?;

    let locked = Locked::hold_alone(&server.data_dir().join("monstrum.db")).await?;
    answers.push(format!("$ a locked database\n{}", told(&server, &serve).await?));
    locked.release().await?;

    let (master, away) = (server.data_dir().join("master.key"), server.data_dir().join("away.key"));
    fs::rename(&master, &away)?;
    answers.push(format!("$ no master key\n{}", told(&server, &serve).await?));
    assert!(!master.exists(), "a new key was created, which would hide the loss of the old key");
    fs::write(&master, "short")?;
    fs::set_permissions(&master, fs::Permissions::from_mode(0o600))?;
    answers.push(format!("$ a broken master key\n{}", told(&server, &serve).await?));
    fs::rename(&away, &master)?;
    fs::set_permissions(&master, fs::Permissions::from_mode(0o644))?;
    answers.push(format!("$ a master key that others read\n{}", told(&server, &serve).await?));
    fs::set_permissions(&master, fs::Permissions::from_mode(0o600))?;
    assert_snapshot!(answers.join("\n"), @r#"
    $ a second server
    [stderr]
    error: another monstrum process uses the data folder [home]/data
    hint: stop the other server first, or use another data folder with --data-dir
    [exit 1]
    $ a locked database
    [stderr]
    error: the database cannot be used
      database `[home]/data/monstrum.db`: the database is locked by another process or connection
      (code: 5) database is locked
    hint: check that no other program uses the database in [home]/data and that the disk has free space
    [exit 1]
    $ no master key
    [stderr]
    error: [home]/data/master.key is missing, but the database contains records encrypted with this key; restore the file from a backup
    hint: a server cannot read its secrets without its master key: restore the file from a backup
    [exit 1]
    $ a broken master key
    [stderr]
    error: the master key cannot be used
      key file `[home]/data/master.key` is malformed at line 1: expected a version number of at least 1, a space and 64 hex digits
    hint: a server cannot read its secrets without its master key: restore the file from a backup
    [exit 1]
    $ a master key that others read
    [stderr]
    error: the master key cannot be used
      key file `[home]/data/master.key` is accessible to other users (mode 0644): run chmod 600 on it
    hint: other users may have read the keys: if so, rotate the master key and replace all credentials
    [exit 1]
    "#);
    server.launch().await?;
    assert_eq!(server.api()?.verify_audit().await?["valid"], true, "the audit is not valid after the failed starts");
    Ok(())
}

#[tokio::test]
async fn lines_of_log_can_be_json() -> Result<()> {
    let mut server = Server::prepare(&[])?.argument("--log-format").argument("json");
    server.launch().await?;
    server.stop().await?;
    let log: Vec<String> = server.output().lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect();
    assert!(log.iter().any(|line| line.contains("ready")), "{}", server.output());
    for line in log {
        let value: serde_json::Value = serde_json::from_str(&line)?;
        assert!(value["timestamp"].is_string() && value["level"].is_string(), "{line}");
    }
    let help = run(&server, &["serve", "--help"]).await?;
    assert!(String::from_utf8(help.stdout)?.contains("--log-format"));
    Ok(())
}
