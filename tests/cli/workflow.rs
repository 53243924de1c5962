//! `monstrum workflow validate`, which needs no server.

use std::fs;

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use support::Server;

use crate::cli::{parsed, told};

const VALIDATE: [&str; 3] = ["workflow", "validate", "w.yaml"];

/// Prepares a folder with a definition.
fn with(text: &str) -> Result<Server> {
    let server = Server::prepare(&[])?;
    fs::write(server.plugins_dir().with_file_name("w.yaml"), text)?;
    Ok(server)
}

#[tokio::test]
async fn a_good_definition_is_valid() -> Result<()> {
    let server = with(
        "workflow: hello\nbot: helper\nsteps:\n  - { id: greet, tool: greet }\n  - { id: rest, wait: { for: 5m } }\n",
    )?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @r"
    hello is valid: 2 steps
    [exit 0]
    ");
    let (code, answer) = parsed(&server, &VALIDATE).await?;
    assert_eq!(code, Some(0));
    assert_json_snapshot!(answer, @r#"
    {
      "valid": true,
      "workflow": "hello",
      "steps": 2,
      "errors": [],
      "warnings": []
    }
    "#);
    assert!(!server.data_dir().exists(), "the command created the data folder");
    Ok(())
}

#[tokio::test]
async fn each_fault_is_shown_with_its_line() -> Result<()> {
    let server = with(
        "workflow: hello\nbot: helper\nsteps:\n  - id: greet\n    toll: greet\n  - { id: rest, wait: { for: soon } }\n",
    )?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @r"
    [stderr]
    w.yaml:4:5: /steps/0: the step does not say what it does
     4 |   - id: greet
       |     ^
     hint: did you mean `tool`?
    w.yaml:6:30: /steps/1/wait/for: `soon` is not a duration
     6 |   - { id: rest, wait: { for: soon } }
       |                              ^
     hint: write a number with a unit: 10s, 5m, 2h or 3d
    error: w.yaml is not a valid workflow: 2 errors
    hint: correct the errors above and run this command again
    [exit 1]
    ");
    let (code, answer) = parsed(&server, &VALIDATE).await?;
    assert_eq!((code, &answer["valid"]), (Some(1), &false.into()));
    assert_eq!(
        (&answer["errors"][1]["path"], &answer["errors"][1]["column"]),
        (&"/steps/1/wait/for".into(), &30.into())
    );
    Ok(())
}

#[tokio::test]
async fn a_missing_file_is_refused() -> Result<()> {
    let server = Server::prepare(&[])?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @r"
    [stderr]
    error: cannot read w.yaml
      No such file or directory (os error 2)
    hint: give the path of a file in YAML or JSON
    [exit 1]
    ");
    Ok(())
}
