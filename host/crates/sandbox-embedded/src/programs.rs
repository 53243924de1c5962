//! Runs programs of the host with a clean environment.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folders of system programs. Programs in other folders, such as home folders, are not run as root.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The environment of every program. It selects messages in English and sets the search path.
const ENVIRONMENT: [(&str, &str); 2] = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C")];

/// Returns the path of a program, if the system has it.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let mut places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    places.find(|path| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0))
}

/// Creates a command with a clean environment and no input.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(ENVIRONMENT).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The reason why a program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("failed to run `{program}`")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("`{program}` failed: {message}")]
    Failed { program: String, message: String },
}

/// Runs a program with an input and returns its output.
pub(crate) fn run(mut command: Command, input: &str) -> Result<String, ProgramError> {
    let program = || command_name(&command);
    let (name, start) = (program(), |program| move |source| ProgramError::Start { program, source });
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().map_err(start(name.clone()))?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(start(name.clone()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().chars().take(1000).collect();
        return Err(ProgramError::Failed { program: name, message });
    }
    written.map_err(start(name))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command_name(command: &Command) -> String {
    let path = Path::new(command.get_program());
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
