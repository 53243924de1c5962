//! Settings: the only place that reads the environment and files of settings.
//!
//! A flag wins over its `MONSTRUM_…` variable, that over `monstrum.toml`, that over the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use monstrum_types::Secret;
use serde::Deserialize;

/// The flags of `monstrum serve`.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeFlags {
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, env = "MONSTRUM_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// Folder of the database, the keys and the audit heads [default: ./data]
    #[arg(long, env = "MONSTRUM_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Folder of the plugins, one folder each [default: DATA/plugins]
    #[arg(long, env = "MONSTRUM_PLUGINS_DIR", value_name = "DIR")]
    pub plugins_dir: Option<PathBuf>,

    /// Database, as postgres://USER:PASSWORD@HOST:PORT/DATABASE or sqlite:PATH; with a password better given as
    /// MONSTRUM_DATABASE_URL than as an argument [default: DATA/monstrum.db]
    #[arg(long, env = "MONSTRUM_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<DatabaseUrl>,

    /// The URL under which others reach this server
    #[arg(long, env = "MONSTRUM_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,

    /// Seconds that calls in flight may take to finish at shutdown [default: 30]
    #[arg(long, env = "MONSTRUM_SHUTDOWN_GRACE_S", value_name = "SECONDS")]
    pub shutdown_grace_s: Option<u64>,

    /// Serve /metrics, /docs and the API description without a key
    #[arg(long, env = "MONSTRUM_PUBLIC_DOCS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub public_docs: Option<bool>,

    /// Lines of log: text or json [default: text]
    #[arg(long, env = "MONSTRUM_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged, as in RUST_LOG [default: info]
    #[arg(long, env = "MONSTRUM_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// The shape of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The address of a database, which may hold a password.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(Secret);

impl DatabaseUrl {
    /// The whole address.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        DatabaseUrl(Secret::new(url))
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("DatabaseUrl")
    }
}

/// Every setting, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub data_dir: PathBuf,
    pub plugins_dir: PathBuf,
    pub database_url: Option<DatabaseUrl>,
    pub public_url: Option<String>,
    pub shutdown_grace: Duration,
    pub public_docs: bool,
    pub log_format: LogFormat,
    pub log: String,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {}", path.display(), source.message())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
}

/// The file of settings, looked for in the working directory.
pub const FILE: &str = "monstrum.toml";

impl Settings {
    /// Resolves `flags` (which hold the environment already) over `monstrum.toml` in `directory`.
    pub fn resolve(flags: ServeFlags, directory: &Path) -> Result<Settings, SettingsError> {
        let file = read_file(&directory.join(FILE))?;
        let data_dir = flags.data_dir.or(file.data_dir).unwrap_or_else(|| PathBuf::from("data"));
        let plugins_dir = flags.plugins_dir.or(file.plugins_dir).unwrap_or_else(|| data_dir.join("plugins"));
        let shutdown_grace_s = flags.shutdown_grace_s.or(file.shutdown_grace_s).unwrap_or(30);
        Ok(Settings {
            listen: flags.listen.or(file.listen).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080))),
            data_dir,
            plugins_dir,
            database_url: flags.database_url.or(file.database_url),
            public_url: flags.public_url.or(file.public_url),
            shutdown_grace: Duration::from_secs(shutdown_grace_s),
            public_docs: flags.public_docs.or(file.public_docs).unwrap_or(false),
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            log: flags.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
        })
    }
}

fn read_file(path: &Path) -> Result<ServeFlags, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ServeFlags::default()),
        Err(source) => return Err(SettingsError::Read { path: path.to_owned(), source }),
    };
    toml::from_str(&text).map_err(|source| SettingsError::Parse { path: path.to_owned(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "listen = \"127.0.0.1:1\"\ndata_dir = \"/srv/m\"\n").unwrap();
        let flags = ServeFlags { listen: Some("127.0.0.1:2".parse().unwrap()), ..ServeFlags::default() };
        let settings = Settings::resolve(flags, folder.path()).unwrap();
        assert_eq!(settings.listen.port(), 2);
        assert_eq!(settings.data_dir, Path::new("/srv/m"));
        assert_eq!(settings.plugins_dir, Path::new("/srv/m/plugins"));
        assert_eq!(settings.shutdown_grace, Duration::from_secs(30));
    }

    #[test]
    fn the_address_of_the_database_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "database_url = \"postgres://user:secret@host/db\"\n").unwrap();
        let settings = Settings::resolve(ServeFlags::default(), folder.path()).unwrap();
        assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        assert_eq!(settings.database_url.unwrap().expose(), "postgres://user:secret@host/db");
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "lisen = \"127.0.0.1:1\"\n").unwrap();
        let error = Settings::resolve(ServeFlags::default(), folder.path()).unwrap_err().to_string();
        assert!(error.contains("monstrum.toml") && error.contains("lisen"), "{error}");
    }
}
