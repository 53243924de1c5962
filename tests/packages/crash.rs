//! The power is cut at any moment of an install or an update. After the next start, the old version or the new version
//! is complete, or the folder is empty if no old version existed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monstrum_package::SigningKey;
use serde_json::json;
use support::Server;

use super::{Sent, Source, in_place, left, trusted};
use crate::world::World;

/// The number of power cuts. The test makes up to twice as many power cuts if all of them have the same result.
const MOMENTS: usize = 50;
const PLUGIN: &str = "test-echo";

/// Moments from a generator with a fixed seed.
struct Moments(u32);

impl Moments {
    /// Returns a time up to `most`.
    fn next(&mut self, most: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        most.mul_f64(f64::from(self.0 >> 8) / f64::from(1 << 24))
    }
}

struct Versions {
    sources: [Source; 2],
    sent: [Sent; 2],
}

impl Versions {
    fn new(key: &SigningKey) -> Result<Versions> {
        let sources = [Source::of(PLUGIN, "1.0.0")?, Source::of(PLUGIN, "1.0.1")?];
        let sent = [sources[0].packed(key)?, sources[1].packed(key)?];
        Ok(Versions { sources, sent })
    }

    /// Returns the index of the version that is present, complete in the folder and in force. Returns `None` if the
    /// plugin does not exist.
    async fn present(&self, server: &Server) -> Result<Option<usize>> {
        let hidden: Vec<String> = left(server)?.into_iter().filter(|name| name.contains("/.")).collect();
        ensure!(hidden.is_empty(), "the install left hidden files behind: {hidden:?}");
        let (status, entry) = server.api()?.get(&format!("/api/plugins/{PLUGIN}")).await?;
        let files = match status {
            404 => BTreeMap::new(),
            _ => in_place(server, PLUGIN)?,
        };
        let found = self.sources.iter().position(|source| source.files == files);
        match found {
            None => ensure!(
                status == 404 && !server.plugins_dir().join(PLUGIN).exists(),
                "the folder contains no known version, but the plugin is not absent: {status} {entry}"
            ),
            Some(index) => {
                let version = self.sources[index].version.as_str();
                ensure!(entry["version"] == version && entry["status"] == "loaded", "not {version}: {entry}");
            }
        }
        Ok(found)
    }
}

#[tokio::test]
async fn the_power_may_go_at_any_moment_of_an_install_or_update() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let versions = Versions::new(&trusted(&world.api).await?)?;
    // Afterwards, both versions are compiled, and the duration of an install is known.
    let mut took = Duration::ZERO;
    for sent in versions.sent.iter().rev() {
        let began = Instant::now();
        let (status, entry) = sent.with(&world.api, true).await?;
        ensure!(status < 300, "{status} {entry}");
        took = began.elapsed();
    }
    world.grant_all(PLUGIN).await?;
    let mut moments = Moments(0x2545_f491);
    let mut ends = BTreeMap::new();
    let mut present = Some(0);
    for number in 0..2 * MOMENTS {
        if number >= MOMENTS && ends.len() == 2 {
            break;
        }
        // On a busy machine, an install may take longer than the first install.
        let longest = took.mul_f64(if number < MOMENTS { 1.2 } else { 3.0 });
        if number % 2 == 1 && present.is_some() {
            // An operator may do this by hand, because a plugin with bindings cannot be uninstalled.
            std::fs::remove_dir_all(world.server.plugins_dir().join(PLUGIN))?;
            world.api.post(&format!("/api/plugins/{PLUGIN}/reload"), &json!(null)).await?;
            present = None;
        }
        let next = present.map_or(number / 2 % 2, |present| 1 - present);
        let moment = moments.next(longest);
        let api = world.api.clone();
        let sent = versions.sent[next].clone();
        // The power cut breaks most connections.
        let installing = tokio::spawn(async move { sent.with(&api, true).await.is_ok() });
        tokio::time::sleep(moment).await;
        world.server.kill().await?;
        let answered = installing.await?;
        world.server.launch().await?;
        world.api = world.server.api()?;
        let now =
            versions.present(&world.server).await.with_context(|| format!("power cut {number} after {moment:?}"))?;
        ensure!(
            now == present || now == Some(next),
            "power cut {number}: the version is {now:?}, but should be {present:?} or {next}"
        );
        ensure!(
            !answered || now == Some(next),
            "power cut {number}: the install was answered, but the version is missing"
        );
        if now.is_some() {
            let call = world.call("test_echo_run", &json!({})).await?;
            ensure!(call["status"] == "success", "moment {number}: {call}");
        }
        *ends.entry(if now == Some(next) { "new" } else { "old" }).or_insert(0) += 1;
        present = now;
    }
    // If all power cuts happened before the installs, or all of them after the installs, the test would prove nothing.
    assert!(ends.len() == 2, "{ends:?} in {took:?}");
    Ok(())
}

/// The next start removes the remains of an interrupted install or removal, and keeps other hidden files.
#[tokio::test]
async fn leftovers_go_with_the_next_start() -> Result<()> {
    let mut server = Server::prepare(&["test-result"])?;
    for name in [".monstrum-staged-test-echo-0011", ".monstrum-removed-test-echo-0022", ".git"] {
        let folder = server.plugins_dir().join(name);
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("monstrum.yaml"), "name: test-echo\n")?;
    }
    server.launch().await?;
    let (_, list) = server.api()?.get("/api/plugins").await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    let hidden: Vec<String> = left(&server)?.into_iter().filter(|name| name.contains("/.")).collect();
    assert_eq!(hidden, ["plugins/.git", "plugins/.git/monstrum.yaml"]);
    Ok(())
}
