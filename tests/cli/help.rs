//! Tests of `--help` and `--version`.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use support::Server;

use crate::cli::{run, told};

/// The commands with a help text of their own.
const COMMANDS: &str = "
    serve
    bot create
    bot list
    bot show
    bot edit
    bot delete
    resource create
    resource list
    resource types
    resource show
    resource edit
    resource delete
    credential set
    credential show
    credential test
    credential confirm
    credential delete
    oauth authorize
    oauth refresh
    role create
    role list
    role show
    role edit
    role delete
    binding create
    binding list
    binding show
    binding edit
    binding delete
    budget set
    budget list
    budget show
    budget delete
    usage
    workspace create
    workspace list
    workspace show
    workspace edit
    workspace delete
    export
    apply
    call
    plugin list
    platform call
    plugin info
    plugin reload
    plugin validate
    plugin pack
    plugin install
    plugin uninstall
    plugin update
    plugin search
    trust add
    trust list
    trust remove
    registry index
    sandbox list
    sandbox show
    sandbox exec
    sandbox files
    sandbox download
    sandbox delete
    plugin new
    plugin test
    plugin dev
    plugin schema
    audit list
    audit show
    audit changes
    audit export
    logs
    audit verify
    key create
    key list
    key rotate
    key recover
    key delete
    console
    vault rotate
    sandbox doctor
    sandbox template build
    why
    task run
    task list
    task show
    task cancel
    schedule add
    schedule list
    schedule show
    schedule enable
    schedule disable
    schedule delete
    schedule fire
    schedule preview
    event emit
    event list
    event show
    event tail
    subscription create
    subscription list
    subscription show
    subscription edit
    subscription confirm
    subscription delete
    delivery list
    delivery retry
    webhook create
    webhook list
    webhook show
    webhook edit
    webhook rotate
    webhook delete
    workflow validate
    workflow apply
    workflow list
    workflow show
    workflow versions
    workflow enable
    workflow disable
    workflow delete
    workflow run
    workflow runs
    workflow watch
    workflow cancel
    workflow pause
    workflow resume
    workflow retry
    workflow resolve
    workflow trigger add
    workflow trigger list
    workflow trigger enable
    workflow trigger disable
    workflow trigger delete
    session list
    session show
    session delete
    completions
";

/// The help of every command describes the command, with examples.
#[tokio::test]
async fn every_command_helps() -> Result<()> {
    let server = Server::prepare(&[])?;
    assert_snapshot!(told(&server, &["--help"]).await?, @"
    Governed tools for bots: plugins run sandboxed, secrets stay with the host, every call is audited

    Usage: monstrum [OPTIONS] <COMMAND>

    Commands:
      serve         Run the server
      bot           Create, list, show, edit and delete bots
      resource      Create, list, show, edit and delete resources
      credential    Set, show, test, confirm and delete the credentials of resources
      oauth         Authorize resources by OAuth
      role          Create, list, show, edit and delete roles
      binding       Create, list, show, edit and delete bindings, which give bots the use of resources
      budget        Set, show, list and delete the monthly budgets of the workspace, its bots and its users
      usage         Show what bots, users, tasks and models have cost in a month
      workspace     Create, list, show, edit and delete workspaces
      export        Print the configuration of a workspace as YAML
      apply         Change the configuration of a workspace to that of YAML files
      call          Call a tool as a bot and print the result
      why           Explain whether a bot may call a tool [alias: check]
      plugin        Create, test, pack, install, list, show, reload and check plugins
      trust         Manage the keys that may sign packages
      registry      Create a registry of packages
      task          Let bots work on instructions
      schedule      Start tasks of bots and runs of workflows at certain times
      event         Make, list, show and follow events
      subscription  Give bots tasks when events happen
      delivery      List the deliveries of events, and repeat those that are dead
      webhook       Let systems outside make events
      workflow      Check, save, run and follow workflows: documents with steps that bots run
      session       List, show and delete the conversations of bots
      approval      Decide about calls and steps of workflows that wait for a person
      mcp           Decide about tools of MCP servers and remote agents
      audit         Read and verify the audit
      logs          Print the newest calls, and follow calls as they end
      sandbox       Manage the sandboxes of conversations
      key           Create, list, rotate, delete and recover API keys
      console       Open the console in a browser
      vault         Manage the master key and the seals of the database
      platform      Call platform functions of plugins
      doctor        Find weak settings and broken parts
      completions   Print a shell completion script

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Global options:
          --url <URL>         The server's URL [default: http://[upstream]] [env: MONSTRUM_URL=]
          --key <KEY>         The API key; prefer MONSTRUM_KEY, because other users can see arguments [default: the key in DATA/admin.key] [env: MONSTRUM_KEY]
          --workspace <NAME>  The workspace in which a root key acts [env: MONSTRUM_WORKSPACE=]
          --data-dir <DIR>    The server's data folder, which contains the root key [default: ./data] [env: MONSTRUM_DATA_DIR=[home]/data]
          --json              Print JSON

    Examples:
      monstrum serve                                  run a server from ./data
      monstrum bot create helper                      create a bot
      monstrum binding create helper tracker --role reader   give the bot a resource
      monstrum call helper github_list_issues '{…}'   call a tool as the bot
      monstrum task run helper 'Triage the issues' --watch   let the bot work on an instruction
      monstrum export > configuration.yaml            write the configuration to a file
      monstrum plugin new weather                     create a new plugin
      monstrum plugin validate plugins/github         check a plugin before you install it
      monstrum plugin install github-1.0.0.mst        install a signed package
      monstrum plugin list                            list the plugins of the server
      monstrum audit list --status permission_denied  list denied calls
      monstrum logs --follow                          show each call as it ends
      monstrum why helper github_list_issues          explain whether a bot may call a tool
      monstrum doctor                                 find weak settings and broken parts
      monstrum sandbox doctor                         check whether sandboxes can run on this machine
      monstrum vault rotate                           encrypt every secret with a new master key
      monstrum key create --name ci --kind operator   create an API key
      monstrum console                                open the console in a browser
    [exit 0]
    ");
    for command in COMMANDS.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let command: Vec<&str> = command.split(' ').collect();
        let output = run(&server, &[&command[..], &["--help"]].concat()).await?;
        let text = String::from_utf8(output.stdout)?;
        let example = format!("monstrum {}", command.join(" "));
        let (_, examples) = text.split_once("Examples:").with_context(|| format!("{example} shows no examples"))?;
        assert!(output.status.success() && examples.contains(&example) && text.contains("--json"), "{text}");
    }
    let version = run(&server, &["--version"]).await?;
    assert_eq!(String::from_utf8(version.stdout)?, format!("monstrum {}\n", env!("CARGO_PKG_VERSION")));
    assert!(!server.data_dir().exists(), "`--help` created the data folder");
    Ok(())
}

/// Names are completed from the server, and without a server nothing is printed.
#[tokio::test]
async fn shells_complete_names_of_objects() -> Result<()> {
    let mut server = Server::prepare(&["test-echo"])?;
    let names = async |server: &Server, words: &[&str]| -> Result<String> {
        let output = run(server, &[&["names", "--"][..], words].concat()).await?;
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    assert_eq!(names(&server, &["bot", "show", ""]).await?, "", "the server does not run");
    server.launch().await?;
    let api = server.api()?;
    let bot = api.bot("two words").await?;
    api.bot("hidden\u{202e}text").await?;
    api.role("reader", &["*"]).await?;
    api.resource("test-echo", "tracker", "http://127.0.0.1:9").await?;
    let acme = crate::http::workspace(&api, "acme").await?;
    acme.bot("theirs").await?;
    for (words, expected) in [
        (&["bot", "show", ""][..], "two words\n"),
        (&["bot", "show", "x"], ""),
        (&["bot", "show", "two\\ wo"], "two words\n"),
        (&["bot", "list", ""], ""),
        (&["binding", "create", &bot, "tr"], "tracker\n"),
        (&["binding", "create", &bot, "tracker", "--role", ""], "reader\n"),
        (&["workspace", "show", "a"], "acme\n"),
        (&["bot", "show", "--workspace", "acme", ""], "theirs\n"),
        (&["plugin", "info", "test"], "test-echo\n"),
        (&["bot", "show", "--url", "http://127.0.0.1:1", ""], ""),
        (&["bot", "show", "--key", "mk_wrong", ""], ""),
        (&[], ""),
    ] {
        assert_eq!(names(&server, words).await?, expected, "{words:?}");
    }
    let script = run(&server, &["completions", "bash"]).await?.stdout;
    std::fs::write(server.home().join("monstrum.bash"), script)?;
    let command = server.prepared_command::<&str>(&[])?;
    let program = command.as_std().get_program().to_str().context("the path of the program is not text")?;
    let ask = format!(
        "source monstrum.bash; COMP_WORDS=('{program}' bot show t); COMP_CWORD=3; _monstrum '{program}' t show; \
         echo \"${{COMPREPLY[@]}}\""
    );
    let mut bash = tokio::process::Command::new("bash");
    let url = server.url().context("the server is not running")?;
    bash.args(["--norc", "-c", &ask]).current_dir(server.home()).env("MONSTRUM_URL", url);
    let bash = bash.env("MONSTRUM_DATA_DIR", server.data_dir()).output().await?;
    assert_eq!(String::from_utf8(bash.stdout)?.trim(), "two\\ words");
    Ok(())
}

/// The completion script of every shell names every command. bash also loads its script.
#[tokio::test]
async fn shells_complete_every_command() -> Result<()> {
    let server = Server::prepare(&[])?;
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&server, &["completions", shell]).await?;
        let script = String::from_utf8(output.stdout)?;
        assert!(output.status.success(), "{shell}");
        for word in ["serve", "plugin", "validate", "reload", "completions", "data-dir"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        if shell == "bash" {
            let file = server.home().join("monstrum.bash");
            std::fs::write(&file, &script)?;
            let ask = "source monstrum.bash; COMP_WORDS=(monstrum plugin val); COMP_CWORD=2; _monstrum monstrum val plugin; echo \"${COMPREPLY[@]}\"";
            let bash =
                tokio::process::Command::new("bash").args(["--norc", "-c", ask]).current_dir(server.home()).output();
            assert_eq!(String::from_utf8(bash.await?.stdout)?.trim(), "validate");
        }
    }
    let refused = told(&server, &["completions", "tcsh"]).await?;
    assert!(
        refused.contains("[possible values: bash, zsh, fish]")
            && refused.contains("\nhint: `monstrum completions --help`"),
        "{refused}"
    );
    Ok(())
}
