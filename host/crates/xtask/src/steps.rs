//! Reports numbered steps on standard error, and runs their programs.

#![expect(clippy::print_stderr, reason = "a task reports its progress to the user")]

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The steps of a task.
pub(crate) struct Steps {
    count: usize,
    done: usize,
}

impl Steps {
    pub(crate) fn new(count: usize) -> Self {
        Steps { count, done: 0 }
    }

    /// Announces the next step.
    pub(crate) fn begin(&mut self, title: &str) {
        self.done += 1;
        eprintln!("[{}/{}] {title}", self.done, self.count);
    }

    /// Announces the next step, runs it, and reports its duration.
    pub(crate) fn step<T>(&mut self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.begin(title);
        let began = Instant::now();
        let result = work().with_context(|| format!("step {} of {} ({title}) failed", self.done, self.count))?;
        eprintln!("[{}/{}] {title}: {:.1} s", self.done, self.count, began.elapsed().as_secs_f64());
        Ok(result)
    }
}

/// Prints a message about a step.
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

/// Runs a program and waits for its end. The program inherits standard output and standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", name(command)))?;
    if !status.success() {
        bail!("`{}` failed with {status}", name(command));
    }
    Ok(())
}

/// Runs a program, waits for its end, and returns its standard output. The program inherits standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run `{}`", name(command)))?;
    if !output.status.success() {
        bail!("`{}` failed with {}", name(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{}` is not valid UTF-8", name(command)))
}

/// Runs a program without showing its output and returns its standard output. Returns `None` if the program is missing
/// or fails.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
