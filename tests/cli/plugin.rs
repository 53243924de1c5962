//! `monstrum plugin`, as a client of a server.

mod validate;

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use support::Server;

use crate::cli::{parsed, told};
use crate::stable::stable;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
async fn plugins_are_listed_shown_and_reloaded() -> Result<()> {
    let server = Server::start(&["github", "test-wrong-world"]).await?;
    assert_snapshot!(told(&server, &["plugin", "list"]).await?, @r#"
     NAME              VERSION  STATUS  TOOLS  AUTHOR    ERROR
     github            1.0.0    loaded  8      Monstrum
     test-wrong-world           failed  0                the component of plugin `test-wrong-world` does not export `monstrum:plugin/executor@0.1.0`: it was built for a different WIT world
    [exit 0]
    "#);
    assert_snapshot!(told(&server, &["plugin", "info", "github"]).await?, @r#"
    name           github
    version        1.0.0
    digest         [digest]
    status         loaded
    description    GitHub integration plugin — issues, comments, labels, and repository info
    author         Monstrum
    license        MIT
    tags           scm
                   github
                   issues
    repository     https://github.com/MonstrumAI/monstrum
    imports        monstrum:plugin/types@0.1.0
                   monstrum:plugin/http@0.1.0
                   monstrum:plugin/log@0.1.0
                   wasi:io/poll@0.2.6
                   wasi:io/error@0.2.6
                   wasi:io/streams@0.2.6
                   wasi:cli/environment@0.2.6
                   wasi:cli/exit@0.2.6
                   wasi:cli/stdin@0.2.6
                   wasi:cli/stdout@0.2.6
                   wasi:cli/stderr@0.2.6
                   wasi:cli/terminal-input@0.2.6
                   wasi:cli/terminal-output@0.2.6
                   wasi:cli/terminal-stdin@0.2.6
                   wasi:cli/terminal-stdout@0.2.6
                   wasi:cli/terminal-stderr@0.2.6
                   wasi:random/insecure-seed@0.2.6
    capabilities   http
    resource_type  github
    tools          github_list_issues
                   github_create_issue
                   github_update_issue
                   github_add_labels
                   github_remove_labels
                   github_add_comment
                   github_list_comments
                   github_get_repo
    [exit 0]
    "#);
    assert_snapshot!(told(&server, &["plugin", "info", "absent"]).await?, @r#"
    [stderr]
    error: Not found (404)
      no such plugin
      request [id 1]
    hint: check the name or id with `list`; also check --workspace
    [exit 1]
    "#);
    assert_snapshot!(told(&server, &["plugin", "reload", "test-wrong-world"]).await?, @r#"
    name    test-wrong-world
    status  failed
    error   the component of plugin `test-wrong-world` does not export `monstrum:plugin/executor@0.1.0`: it was built for a different WIT world
    [stderr]
    error: plugin `test-wrong-world` was not loaded
    hint: run `monstrum plugin validate DIR` on the server's machine to see each error with its line
    [exit 1]
    "#);
    let (code, shown) = parsed(&server, &["plugin", "reload", "github"]).await?;
    assert_eq!((code, &shown), (Some(0), &server.api()?.get("/api/plugins/github").await?.1));
    assert_eq!(parsed(&server, &["plugin", "info", "github"]).await?, (Some(0), shown));
    assert_eq!(parsed(&server, &["plugin", "list"]).await?, (Some(0), server.api()?.get("/api/plugins").await?.1));
    let (code, error) = parsed(&server, &["plugin", "info", "absent"]).await?;
    assert_eq!(code, Some(1));
    assert_json_snapshot!(stable(&error), @r#"
    {
      "error": {
        "message": "Not found (404)",
        "causes": [
          "no such plugin",
          "request [id 1]"
        ],
        "hint": "check the name or id with `list`; also check --workspace"
      }
    }
    "#);
    let operator = server.api()?.new_key("operator", None).await?;
    assert_snapshot!(told(&server, &["plugin", "reload", "github", "--key", &operator]).await?, @r#"
    [stderr]
    error: This key has no permission for this action (403)
      a root key is required
      request [id 1]
    hint: use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds
    [exit 1]
    "#);
    assert_snapshot!(told(&server, &["plugin", "list", "--key", "mk_unknown"]).await?, @r#"
    [stderr]
    error: A valid API key is required (401)
      unknown API key
      request [id 1]
    hint: check that the key in --key, MONSTRUM_KEY or DATA/admin.key belongs to this server
    [exit 1]
    "#);
    assert_snapshot!(told(&server, &["plugin", "list", "--workspace", "nowhere"]).await?, @r#"
    [stderr]
    error: Not found (404)
      no such workspace
      request [id 1]
    hint: check the name or id with `list`; also check --workspace
    [exit 1]
    "#);
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_explained() -> Result<()> {
    let server = Server::prepare(&[])?;
    let mut answers = Vec::new();
    for arguments in [
        &["plugin", "list"][..],
        &["plugin", "list", "--key", "mk_x", "--url", "http://127.0.0.1:1"],
        &["plugin", "list", "--key", "mk_x", "--url", "127.0.0.1:8080"],
        &["plugin", "list", "--key", "mk_x", "--url", "http://me:secret@127.0.0.1:1"],
        &["plugin", "list", "--key", "mk\n_x"],
        &["plugin", "list", "--colour"],
        &["plugin", "lst", "x"],
        &["plugin", "info"],
    ] {
        answers.push(format!("$ {}\n{}", arguments.join(" ").escape_debug(), told(&server, arguments).await?));
    }
    assert_snapshot!(answers.join("\n"), @r#"
    $ plugin list
    [stderr]
    error: no API key is set, and cannot read [home]/data/admin.key
      No such file or directory (os error 2)
    hint: start a server with `monstrum serve`, or set --key, MONSTRUM_KEY, or --data-dir to its folder
    [exit 1]
    $ plugin list --key mk_x --url http://127.0.0.1:1
    [stderr]
    error: cannot reach a server at http://[upstream]
      client error (Connect)
      tcp connect error
      Connection refused (os error 111)
    hint: start a server with `monstrum serve`, or set --url or MONSTRUM_URL; to verify the audit of a stopped server, run `monstrum audit verify --data-dir DIR`
    [exit 1]
    $ plugin list --key mk_x --url 127.0.0.1:8080
    [stderr]
    error: the server's URL is invalid
      relative URL without a base
    hint: set --url or MONSTRUM_URL to a URL such as http://[upstream]
    [exit 1]
    $ plugin list --key mk_x --url http://me:secret@127.0.0.1:1
    [stderr]
    error: the server's URL is invalid
      it contains a user or password
    hint: set --url or MONSTRUM_URL to a URL such as http://[upstream]
    [exit 1]
    $ plugin list --key mk\n_x
    [stderr]
    error: the API key contains invalid characters
    hint: API keys have the form mk_…
    [exit 1]
    $ plugin list --colour
    [stderr]
    error: unexpected argument '--colour' found

    Usage: monstrum plugin list [OPTIONS]
    hint: `monstrum plugin list --help` shows usage and examples
    [exit 2]
    $ plugin lst x
    [stderr]
    error: unrecognized subcommand 'lst'

      tip: some similar subcommands exist: 'test', 'list'

    Usage: monstrum plugin [OPTIONS] <COMMAND>
    hint: `monstrum plugin --help` shows usage and examples
    [exit 2]
    $ plugin info
    [stderr]
    error: the following required arguments were not provided:
      <NAME>

    Usage: monstrum plugin info --data-dir <DIR> <NAME>
    hint: `monstrum plugin info --help` shows usage and examples
    [exit 2]
    "#);
    Ok(())
}
