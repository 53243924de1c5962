//! The built template: a complete system in which packages can be installed. An operator builds it with a command.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use monstrum_sandbox::SandboxError;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha512};

use super::{BUILT, Template, TemplateError, content, copy};
use crate::programs;

/// The packages in addition to the minimal system. npm is downloaded separately, because its package depends on 400
/// other packages.
const PACKAGES: &str =
    "bash,ca-certificates,curl,git,less,nodejs,procps,python3,python3-pip,python3-venv,unzip,xz-utils";

/// The default mirror and release for hosts with other package sources. The build was tested with them.
const MIRROR_DEFAULT: &str = "http://deb.debian.org/debian";
const SUITE_DEFAULT: &str = "bookworm";
const REGISTRY_DEFAULT: &str = "https://registry.npmjs.org";

/// The folder of a build. Its fixed name lets the next build remove the folder of an interrupted build.
const PARTIAL: &str = "building";

/// A package of the npm registry with its version and hash in hex. Content with another hash is rejected.
struct Pinned {
    package: &'static str,
    version: &'static str,
    sha512: &'static str,
}

const NPM: Pinned = Pinned {
    package: "npm",
    version: "10.9.9",
    sha512: "d60fba8cb42f688b81e33c2f1cbef2ad7b977166700ec0ad057f1b6d60ea6ef2524abf673e20c35931cd8305d1dbb8887134d6eefdc0e7b8435bd458bf65b862",
};

/// The baseline build of bun, which also runs on processors from before 2013.
const BUN_X64: Pinned = Pinned {
    package: "@oven/bun-linux-x64-baseline",
    version: "1.4.5",
    sha512: "b3cc8cc187059e7ac0d7bf208e2d2065b904d965437a3fd38b5c7bef4a0f7e2871c91c5230d846862010357579dda0deada67192c76f295fd101d40109dd2a3c",
};

const BUN_ARM64: Pinned = Pinned {
    package: "@oven/bun-linux-aarch64",
    version: "1.4.5",
    sha512: "e015e6b122a78ceae5196a99578c7fa166bb015a11f81ea509775d3333805c1226dede747ac960f706faea09ad5b501a984435975083be69abbb2b0486a39632",
};

/// The sources of a build; by default the sources of the host.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// The mirror of the system's packages.
    pub mirror: Option<String>,
    /// The release, such as `bookworm`.
    pub suite: Option<String>,
    /// The npm registry.
    pub registry: Option<String>,
    /// Variables such as `https_proxy`, for the programs that download.
    pub proxy: Vec<(String, String)>,
}

/// Builds the template and replaces an existing template, which no running sandbox may use. `progress` receives one line
/// at a time. Mounts stay private to the build, and an interrupted build leaves one folder, which the next build
/// removes. Blocks for minutes.
pub fn build_template(
    dir: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Template, SandboxError> {
    // An operator at a terminal runs the build, so the causes are shown.
    built(dir, options, progress).map_err(|error| match error {
        TemplateError::Host(text) => SandboxError::unavailable(text),
        error => SandboxError::unavailable_because("the template could not be built", error),
    })
}

fn built(dir: &Path, options: &BuildOptions, progress: &mut dyn FnMut(&str)) -> Result<Template, TemplateError> {
    let source = Source::of(Path::new("/"), options)?;
    let tool = |name: &str| {
        let missing =
            || TemplateError::Host(format!("`{name}` is not installed; install it with `apt-get install {name}`"));
        programs::find(name).ok_or_else(missing)
    };
    let (debootstrap, curl, tar) = (tool("debootstrap")?, tool("curl")?, tool("tar")?);
    let unshare = programs::find("unshare").ok_or_else(|| {
        TemplateError::Host("`unshare` is not installed; install it with `apt-get install util-linux`".to_owned())
    })?;
    copy::folder_with_mode(dir, 0o700)?;
    let lock = File::create(dir.join("building.lock")).map_err(TemplateError::at(dir))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| TemplateError::Host("another build of the template is already running".to_owned()))?;
    let partial = dir.join(PARTIAL);
    copy::remove(&partial)?;
    copy::folder_with_mode(&partial, 0o700)?;

    let root = partial.join("root");
    progress(&format!("Installing {} from {}", source.suite, source.mirror));
    bootstrap(&unshare, &debootstrap, &source, &root, options, progress)?;
    let fetch = Fetch { curl, tar, partial: &partial, options };
    progress(&format!("Installing npm {}", NPM.version));
    fetch.npm(&root)?;
    if let Some(bun) = bun_of(std::env::consts::ARCH) {
        progress(&format!("Installing bun {}", bun.version));
        fetch.bun(bun, &root)?;
    }
    finish(&source, &root)?;
    let place = dir.join(BUILT);
    copy::remove(&place)?;
    fs::rename(&partial, &place).map_err(TemplateError::at(&place))?;
    let root = place.join("root");
    Ok(super::described(&root, &root, None))
}

fn bun_of(architecture: &str) -> Option<&'static Pinned> {
    match architecture {
        "x86_64" => Some(&BUN_X64),
        "aarch64" => Some(&BUN_ARM64),
        _ => None,
    }
}

/// Runs debootstrap in namespaces of its own, so that its mounts and processes end with it.
fn bootstrap(
    unshare: &Path,
    debootstrap: &Path,
    source: &Source,
    root: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<(), TemplateError> {
    let mut command = programs::command(unshare);
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]).arg(debootstrap);
    // With this option, debootstrap installs only packages that the distribution has signed.
    command.args(["--force-check-gpg", "--variant=minbase"]).arg(format!("--include={PACKAGES}"));
    command.arg(format!("--components={}", source.components)).arg(&source.suite).arg(root).arg(&source.mirror);
    command.envs(options.proxy.iter().map(|(name, value)| (name, value))).stderr(Stdio::inherit());
    let failed = |message: String| programs::ProgramError::Failed { program: "debootstrap".to_owned(), message };
    let start = |source| programs::ProgramError::Start { program: "debootstrap".to_owned(), source };
    let mut child = command.spawn().map_err(start)?;
    let mut last = String::new();
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        last = line.map_err(start)?;
        progress(&last);
    }
    if child.wait().map_err(start)?.success() { Ok(()) } else { Err(failed(last).into()) }
}

/// Removes caches and the files that debootstrap has copied from the host.
fn finish(source: &Source, root: &Path) -> Result<(), TemplateError> {
    for emptied in ["dev", "var/cache/apt/archives", "var/lib/apt/lists", "var/log", "run"] {
        copy::remove(&root.join(emptied))?;
        copy::folder(&root.join(emptied))?;
    }
    for (path, mode) in [
        ("var/cache/apt/archives/partial", 0o700),
        ("var/lib/apt/lists/partial", 0o700),
        ("var/log/apt", 0o755),
        ("run/lock", 0o1777),
        ("workspace", 0o755),
    ] {
        copy::folder_with_mode(&root.join(path), mode)?;
    }
    copy::file(&root.join("etc/machine-id"), "", 0o644)?;
    copy::file(&root.join("etc/apt/sources.list"), &source.list(), 0o644)?;
    content::shared_files(root)
}

/// The package source of the system.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    mirror: String,
    suite: String,
    components: &'static str,
}

impl Source {
    fn of(host: &Path, options: &BuildOptions) -> Result<Source, TemplateError> {
        let release = fs::read_to_string(host.join("etc/os-release")).unwrap_or_else(|_| String::new());
        let id = release.lines().find_map(|line| line.strip_prefix("ID=")).map(|id| id.trim_matches('"'));
        let (mut mirror, mut suite) = (MIRROR_DEFAULT.to_owned(), SUITE_DEFAULT.to_owned());
        let is_known = matches!(id, Some("debian" | "ubuntu"));
        if let Some(found) = is_known.then(|| of_apt(host)).flatten() {
            (mirror, suite) = found;
        }
        let source = Source {
            mirror: options.mirror.clone().unwrap_or(mirror),
            suite: options.suite.clone().unwrap_or(suite),
            components: if is_known && id == Some("ubuntu") { "main,universe" } else { "main" },
        };
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let is_url = source.mirror.starts_with("http://") || source.mirror.starts_with("https://");
        if !is_url || source.suite.is_empty() || source.suite.starts_with('-') || !is_word(&source.suite) {
            let text = format!("the release `{}` or the mirror `{}` is not valid", source.suite, source.mirror);
            return Err(TemplateError::Host(text));
        }
        Ok(source)
    }

    /// Returns the content of apt's sources.list in the sandbox, including security updates.
    fn list(&self) -> String {
        let Source { mirror, suite, components } = self;
        let components = components.replace(',', " ");
        let mut list = format!("deb {mirror} {suite} {components}\ndeb {mirror} {suite}-updates {components}\n");
        if mirror.ends_with("/debian") {
            list += &format!("deb {mirror}-security {suite}-security {components}\n");
        }
        list
    }
}

/// Returns the first mirror and release of the host's own packages, from either format of apt's sources.
fn of_apt(host: &Path) -> Option<(String, String)> {
    let folder = host.join("etc/apt/sources.list.d");
    let mut files = vec![host.join("etc/apt/sources.list")];
    let listed = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut listed: Vec<PathBuf> =
        listed.filter(|path| path.extension().is_some_and(|end| end == "list" || end == "sources")).collect();
    listed.sort();
    files.extend(listed);
    files
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|text| of_list(&text).or_else(|| of_stanzas(&text)))
}

/// Parses the format with one line for each source: `deb [option=…] URL SUITE COMPONENT…`.
fn of_list(text: &str) -> Option<(String, String)> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "deb").skip(1).peekable();
        if line.trim_start().starts_with('#') {
            return None;
        }
        while words.peek().is_some_and(|word| word.starts_with('[')) {
            words.by_ref().find(|word| word.ends_with(']'));
        }
        usable(words.next()?, words.next()?, words.next())
    })
}

/// Parses the deb822 format with one paragraph for each source.
fn of_stanzas(text: &str) -> Option<(String, String)> {
    text.split("\n\n").find_map(|stanza| {
        let field = |name: &str| {
            let mut lines = stanza.lines().filter(|line| !line.starts_with('#'));
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next())
        };
        if field("Types") != Some("deb") {
            return None;
        }
        usable(field("URIs")?, field("Suites")?, field("Components"))
    })
}

fn usable(mirror: &str, suite: &str, component: Option<&str>) -> Option<(String, String)> {
    let is_release = !suite.contains(['/', '-']) && Path::new("/usr/share/debootstrap/scripts").join(suite).exists();
    let is_open = mirror.starts_with("http") && !mirror.contains('@');
    (component == Some("main") && is_release && is_open)
        .then(|| (mirror.trim_end_matches('/').to_owned(), suite.to_owned()))
}

/// Downloads pinned packages.
struct Fetch<'a> {
    curl: PathBuf,
    tar: PathBuf,
    partial: &'a Path,
    options: &'a BuildOptions,
}

impl Fetch<'_> {
    fn npm(&self, root: &Path) -> Result<(), TemplateError> {
        let place = root.join("usr/local/lib/node_modules");
        copy::folder(&place)?;
        let unpacked = self.unpacked(&NPM)?;
        fs::rename(&unpacked, place.join("npm")).map_err(TemplateError::at(&place))?;
        for program in ["npm", "npx"] {
            let target = format!("../lib/node_modules/npm/bin/{program}-cli.js");
            copy::symlink(Path::new(&target), &root.join("usr/local/bin").join(program))?;
        }
        Ok(())
    }

    fn bun(&self, bun: &Pinned, root: &Path) -> Result<(), TemplateError> {
        let (unpacked, place) = (self.unpacked(bun)?, root.join("usr/local/bin/bun"));
        fs::rename(unpacked.join("bin/bun"), &place).map_err(TemplateError::at(&place))?;
        copy::remove(&unpacked)?;
        copy::symlink(Path::new("bun"), &root.join("usr/local/bin/bunx"))
    }

    /// Downloads a package, checks its hash and unpacks it.
    fn unpacked(&self, pinned: &Pinned) -> Result<PathBuf, TemplateError> {
        let registry = self.options.registry.as_deref().unwrap_or(REGISTRY_DEFAULT).trim_end_matches('/');
        let base = pinned.package.rsplit('/').next().unwrap_or(pinned.package);
        let url = format!("{registry}/{}/-/{base}-{}.tgz", pinned.package, pinned.version);
        let (file, unpacked) = (self.partial.join("package.tgz"), self.partial.join("package"));
        let mut curl = programs::command(&self.curl);
        curl.args([
            "--fail",
            "--silent",
            "--show-error",
            "--location",
            "--max-time",
            "600",
            "--max-filesize",
            "300000000",
        ]);
        curl.args(["--proto", "=http,https", "--output"]).arg(&file).arg("--").arg(&url);
        curl.envs(self.options.proxy.iter().map(|(name, value)| (name, value)));
        programs::run(curl, "")?;
        check(&file, pinned, &url)?;
        let mut tar = programs::command(&self.tar);
        tar.args(["--extract", "--gzip", "--no-same-owner", "--file"]).arg(&file).arg("--directory").arg(self.partial);
        programs::run(tar, "")?;
        Ok(unpacked)
    }
}

fn check(file: &Path, pinned: &Pinned, url: &str) -> Result<(), TemplateError> {
    let mut content = File::open(file).map_err(TemplateError::at(file))?;
    let (mut digest, mut buffer) = (Sha512::new(), vec![0; 1 << 20]);
    loop {
        match content.read(&mut buffer).map_err(TemplateError::at(file))? {
            0 => break,
            read => digest.update(&buffer[..read]),
        }
    }
    if hex::encode(digest.finalize()) == pinned.sha512 {
        return Ok(());
    }
    Err(TemplateError::Host(format!("the content of `{url}` does not have the expected hash")))
}

#[cfg(test)]
mod tests;
