//! `monstrum plugin new`: creates the folder of a plugin, which builds and passes its tests without changes.

mod files;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use monstrum_types::PluginName;

use super::super::failure::Failure;
use super::super::output;
use super::source::{make_dir, write};
use monstrum_core::plugins::folder::MANIFEST;

const EXAMPLES: &str = "\
Examples:
  monstrum plugin new weather                     create ./weather
  monstrum plugin new weather --dir ~/plugins     create ~/plugins/weather
  monstrum plugin new weather --sdk ../sdk-guest  use the SDK of a checkout, for work on the SDK itself

The folder contains the SDK's source and the contract in wit/, so the build needs only cargo and its registry.
README.md has the commands that build and test the plugin.";

const HINT_NAME: &str = "choose a name such as weather or acme-tickets";

/// The README line about the copy of the SDK.
const VENDORED: &str =
    "| `sdk/`, `wit/` | the SDK and the contract with the host, from the `monstrum` that created this folder |\n";

/// Names that cargo or rustc reserve: keywords, and the crates that every plugin depends on.
const TAKEN: [&str; 41] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "monstrum-sdk",
    "move",
    "mut",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "std",
    "test",
    "try",
    "use",
];

/// Create the folder of a new plugin
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in super::super) struct New {
    /// The plugin's name: lower-case letters, digits and hyphens
    name: String,
    /// The parent folder of the plugin's folder [default: the working directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The folder of the crate monstrum-sdk in a checkout, used instead of a copy of the SDK
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

impl New {
    pub(super) fn run(self, json: bool) -> Result<ExitCode, Failure> {
        let name: PluginName =
            self.name.parse().map_err(|error: monstrum_types::InvalidId| Failure::from_error(&error, HINT_NAME))?;
        let sdk = self.sdk.as_deref().map(checkout).transpose()?;
        let files = files(&name, sdk.as_deref())?;
        let parent = self.dir.unwrap_or_default();
        let folder = parent.join(name.as_str());
        place(&parent, &folder, &files)?;
        let shown = folder.display().to_string();
        if json {
            let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
            output::json(&serde_json::json!({ "name": name, "folder": shown, "files": paths }))?;
        } else {
            output::line(output::plain(&format!("created the plugin {name} in {shown}")))?;
            output::note(&format!("to build the plugin, run `cd {}` and follow README.md", output::plain(&shown)));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the absolute path of the SDK's folder. Fails if the folder is not the crate monstrum-sdk.
fn checkout(sdk: &Path) -> Result<String, Failure> {
    let hint = "set --sdk to the folder sdk-guest of a Monstrum checkout";
    let fail = |error: &dyn std::error::Error| {
        Failure::of(format!("{} is not the crate monstrum-sdk", sdk.display()), error, hint)
    };
    let manifest = std::fs::read_to_string(sdk.join("Cargo.toml")).map_err(|error| fail(&error))?;
    let whole = sdk.canonicalize().map_err(|error| fail(&error))?;
    let is_named = manifest.lines().any(|line| line.trim() == "name = \"monstrum-sdk\"");
    // The path becomes part of a TOML string, so it must not need escapes.
    match whole.to_str().filter(|path| is_named && !path.contains(['"', '\\', '\n'])) {
        Some(path) => Ok(path.to_owned()),
        None => Err(Failure::new(format!("{} is not the crate monstrum-sdk", sdk.display()), hint)),
    }
}

/// Returns every file with its text. Fails if a server would reject the manifest with this name.
fn files(name: &PluginName, sdk: Option<&str>) -> Result<Vec<(String, String)>, Failure> {
    if TAKEN.contains(&name.as_str()) {
        return Err(Failure::new(
            format!("`{name}` is reserved by Rust or the SDK and cannot be the name of a plugin"),
            HINT_NAME,
        ));
    }
    let snake = name.as_str().replace('-', "_");
    let mut title = name.as_str().replace('-', " ");
    title[..1].make_ascii_uppercase();
    let wit = sdk.map_or_else(|| "wit/0.1.0".to_owned(), |sdk| format!("{sdk}/../wit/0.1.0"));
    let file = format!("{snake}.wasm");
    let fill = |text: &str| {
        [
            ("name", name.as_str()),
            ("snake", &snake),
            ("title", &title),
            ("file", &file),
            ("sdk", sdk.unwrap_or("sdk")),
            ("wit", &wit),
            ("vendored", if sdk.is_none() { VENDORED } else { "" }),
            ("version", env!("CARGO_PKG_VERSION")),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (key, value)| text.replace(&format!("{{{{{key}}}}}"), value))
    };
    let mut all: Vec<(String, String)> =
        files::PLUGIN.iter().map(|(path, text)| ((*path).to_owned(), fill(text))).collect();
    all.push(("monstrum.schema.json".to_owned(), monstrum_manifest::json_schema_text()));
    if sdk.is_none() {
        all.extend(files::SDK_PACKAGE.iter().map(|(path, text)| ((*path).to_owned(), fill(text))));
        all.extend(files::CONTRACT.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        all.extend(files::sdk_sources().into_iter().map(|(path, text)| (path, text.to_owned())));
    }
    let manifest = all.iter().find(|(path, _)| path == MANIFEST).map(|(_, text)| text.as_str()).unwrap_or_default();
    // The parser rejects reserved names, and names whose tools would have a prefix that is reserved for the platform.
    match monstrum_manifest::parse(MANIFEST, manifest) {
        Ok(_) => Ok(all),
        Err(errors) => Err(errors
            .0
            .iter()
            .fold(Failure::new(format!("`{name}` cannot be the name of a plugin"), HINT_NAME), |failure, error| {
                failure.because(&error.message)
            })),
    }
}

/// Writes the files into a temporary folder in `parent` and renames it to `folder` when all files are written.
fn place(parent: &Path, folder: &Path, files: &[(String, String)]) -> Result<(), Failure> {
    make_dir(parent)?;
    let hint = "choose another name, or another folder with --dir";
    let fail = |error: &dyn std::error::Error| Failure::of(format!("cannot create {}", folder.display()), error, hint);
    let beside = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let staging = tempfile::Builder::new().prefix(".monstrum-new-").tempdir_in(beside).map_err(|error| fail(&error))?;
    let new = staging.path().join("new");
    for (path, text) in files {
        write(&new.join(path), text.as_bytes())?;
    }
    // A rename replaces an empty folder and fails if anything else exists.
    match std::fs::rename(&new, folder) {
        Ok(()) => Ok(()),
        Err(_) if folder.symlink_metadata().is_ok() => {
            Err(Failure::new(format!("{} already exists", folder.display()), hint))
        }
        Err(error) => Err(fail(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str) -> Result<Vec<(String, String)>, Failure> {
        files(&name.parse().unwrap(), None)
    }

    #[test]
    fn everything_is_filled_in() {
        for (path, text) in made("acme-tickets").ok().unwrap() {
            let is_verbatim = path.starts_with("sdk/src") || path.starts_with("wit") || path.starts_with("sdk/LICENSE");
            assert!(is_verbatim || !text.contains("{{"), "{path}");
        }
    }

    #[test]
    fn names_that_cannot_work_are_refused() {
        for name in ["web-search", "sandbox", "bot-x", "monstrum", "monstrum-sdk", "core", "match", &"a".repeat(64)] {
            let failure = made(name).err().unwrap_or_else(|| panic!("{name} is taken"));
            assert!(failure.sentence().contains(name), "{}", failure.sentence());
        }
        for name in ["a", "acme-tickets", "a1--b-"] {
            assert!(made(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_manifest_has_no_warnings() {
        let files = made("weather").ok().unwrap();
        let text = |wanted: &str| files.iter().find(|(path, _)| path == wanted).unwrap().1.clone();
        let manifest = monstrum_manifest::parse(MANIFEST, &text(MANIFEST)).unwrap();
        assert!(monstrum_manifest::warnings(&manifest, monstrum_guardian::match_glob).is_empty());
        let locales = monstrum_manifest::Locales::load([("en".to_owned(), text("locales/en.json"))].into()).unwrap();
        assert_eq!(locales.warnings(&manifest), Vec::<String>::new());
    }
}
