//! A server in the process of a command, on a free port of the loopback interface. The server is the one that `monstrum
//! serve` runs, but its data and plugins are in the folders of [`Home`].

use std::path::{Path, PathBuf};

use monstrum_egress::EgressOptions;
use monstrum_types::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::Options;
use super::super::client::Client;
use super::super::failure::Failure;
use super::source::make_dir;
use crate::boot::{self, ADMIN_KEY_FILE, Outside, Running};
use crate::config::{ServeFlags, Settings};

/// The folders of the server.
pub(super) struct Home {
    path: PathBuf,
    /// The temporary folder, which is deleted when this value is dropped. `None` means that the user keeps the folder.
    _temporary: Option<TempDir>,
}

impl Home {
    /// Creates a temporary folder.
    pub(super) fn temporary() -> Result<Home, Failure> {
        let folder = tempfile::Builder::new().prefix("monstrum-").tempdir();
        let folder = folder.map_err(|error| {
            Failure::of("cannot create a temporary folder", &error, "check the free disk space, or set TMPDIR")
        })?;
        Ok(Home { path: folder.path().to_owned(), _temporary: Some(folder) })
    }

    /// Uses a folder that is not deleted.
    pub(super) fn kept(path: &Path) -> Home {
        Home { path: path.to_owned(), _temporary: None }
    }

    /// Returns the server's plugins folder.
    pub(super) fn plugins_dir(&self) -> PathBuf {
        self.path.join("plugins")
    }

    /// Returns the path of the root key, which exists after a server has started with these folders.
    pub(super) fn key_file(&self) -> PathBuf {
        self.path.join("data").join(ADMIN_KEY_FILE)
    }
}

/// A running server and a client with its root key.
pub(super) struct Workbench {
    running: Running,
    client: Client,
}

impl Workbench {
    /// Starts a server whose egress has the options `egress`.
    pub(super) async fn start(home: &Home, egress: EgressOptions) -> Result<Workbench, Failure> {
        make_dir(&home.plugins_dir())?;
        let flags = ServeFlags {
            listen: Some(([127, 0, 0, 1], 0).into()),
            data_dir: Some(home.path.join("data")),
            plugins_dir: Some(home.plugins_dir()),
            // The command requests each reload itself.
            watch_plugins: Some(false),
            ..ServeFlags::default()
        };
        let hint = "check the free space in the temporary folder, and that this user may open ports on 127.0.0.1";
        let failed = |error: &dyn std::error::Error| Failure::of("cannot start a server for the plugin", error, hint);
        let settings = Settings::resolve(flags, &home.path).map_err(|error| failed(&error))?;
        let outside = Outside { egress, ..Outside::default() };
        let running = boot::start_with(settings, outside).await.map_err(|error| failed(&error))?;
        let key = match &running.admin_key {
            Some(key) => key.clone(),
            None => {
                let text = std::fs::read_to_string(home.key_file()).map_err(|error| failed(&error))?;
                Secret::new(text.trim().to_owned())
            }
        };
        let url = Some(format!("http://{}", running.address));
        let options = Options { url, key: Some(key), workspace: None, data_dir: None, json: false };
        Ok(Workbench { client: Client::new(&options)?, running })
    }

    /// Returns the URL of the server.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.running.address)
    }

    /// Returns the client of the server's API, which uses the root key.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Stops the server in the same way as Ctrl-C.
    pub(super) async fn stop(self) {
        self.running.stop_handle().cancel();
        self.running.stopped().await;
    }

    /// Sends `body` by POST to `path` and returns the id of the created object.
    pub(super) async fn made(&self, path: &[&str], body: &Value) -> Result<String, Failure> {
        let made = self.client.post(path, Some(body)).await?;
        Ok(made["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Creates a bot with this name, bound to `resource` by `binding`.
    pub(super) async fn bot(&self, name: &str, resource: &str, mut binding: Value) -> Result<String, Failure> {
        let bot = self.made(&["api", "bots"], &json!({ "name": name })).await?;
        binding["resource_id"] = resource.into();
        self.made(&["api", "bots", &bot, "resources"], &binding).await?;
        Ok(bot)
    }
}
