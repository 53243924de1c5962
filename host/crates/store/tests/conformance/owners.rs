//! Tests of the owners of resource types and tool names.

use monstrum_store::{OwnedKind, OwnedName, OwnerRow, PluginRow, PluginVersionRow, Store};
use monstrum_types::{Digest, PluginName};
use serde_json::json;

use crate::rows::NOW;

fn digest(byte: &str) -> Digest {
    format!("sha256:{}", byte.repeat(32)).parse().unwrap()
}

/// Stores a version of a plugin, and returns the row that activates it.
async fn version(store: &Store, plugin: &str, version: &str) -> PluginRow {
    let component = if version.starts_with('1') { "0a" } else { "0b" };
    let stored = PluginVersionRow {
        plugin: plugin.parse().unwrap(),
        version: version.to_owned(),
        manifest_digest: digest("01"),
        component_digest: digest(component),
        manifest: format!("name: {plugin}\n"),
        component: vec![0],
        locales: json!({}),
        created_at: NOW,
    };
    store.insert_plugin_version(&stored).await.unwrap();
    PluginRow {
        name: stored.plugin,
        version: stored.version,
        manifest_digest: stored.manifest_digest,
        component_digest: stored.component_digest,
        updated_at: NOW,
    }
}

fn name(text: &str) -> OwnedName {
    let (kind, name) = text.split_once(' ').unwrap();
    let kind = if kind == "type" { OwnedKind::Type } else { OwnedKind::Tool };
    OwnedName { kind, name: name.to_owned() }
}

fn names(texts: &[&str]) -> Vec<OwnedName> {
    texts.iter().copied().map(name).collect()
}

fn owner(text: &str, plugin: &str) -> OwnerRow {
    OwnerRow { name: name(text), plugin: plugin.parse().unwrap(), legacy_plugin: None, created_at: NOW }
}

async fn owned(store: &Store) -> Vec<String> {
    let rows = store.owners().await.unwrap();
    rows.iter().map(|row| format!("{} {}: {}", row.name.kind.as_str(), row.name.name, row.plugin)).collect()
}

pub(crate) async fn a_plugin_owns_the_names_of_its_active_version(store: &Store) {
    assert_eq!(owned(store).await, [""; 0]);
    let first = version(store, "github", "1.0.0").await;
    let generation = store.generation().await.unwrap();
    let wanted = names(&["type github", "tool github_list", "tool github_read"]);
    assert_eq!(store.serve_plugin(&first, &wanted, &[]).await.unwrap(), []);
    assert_eq!(owned(store).await, ["tool github_list: github", "tool github_read: github", "type github: github"]);
    assert_eq!(store.generation().await.unwrap(), generation + 1);
    assert_eq!(store.snapshot().await.unwrap().owners, store.owners().await.unwrap());
    // Activating the same version again causes no conflict.
    assert_eq!(store.serve_plugin(&first, &wanted, &[]).await.unwrap(), []);

    // If the next version does not list a tool name, the name becomes free. A resource type keeps its owner.
    let second = version(store, "github", "2.0.0").await;
    let wanted = names(&["type git", "tool github_list", "tool github_new"]);
    assert_eq!(store.serve_plugin(&second, &wanted, &[]).await.unwrap(), []);
    let owners = ["tool github_list: github", "tool github_new: github", "type git: github", "type github: github"];
    assert_eq!(owned(store).await, owners);
    let other = version(store, "other", "1.0.0").await;
    assert_eq!(store.serve_plugin(&other, &names(&["tool github_read"]), &[]).await.unwrap(), []);
    assert_eq!(store.plugins().await.unwrap(), [second, other]);
}

pub(crate) async fn a_name_of_another_plugin_is_rejected_and_nothing_is_written(store: &Store) {
    let github = version(store, "github", "1.0.0").await;
    store.serve_plugin(&github, &names(&["type github", "tool github_list"]), &[]).await.unwrap();
    let other = version(store, "other", "1.0.0").await;
    let (before, generation) = (owned(store).await, store.generation().await.unwrap());
    let wanted = names(&["type github", "tool other_list", "tool github_list"]);
    let refused = store.serve_plugin(&other, &wanted, &[]).await.unwrap();
    assert_eq!(refused, [owner("type github", "github"), owner("tool github_list", "github")]);
    // The failed activation changes nothing. A tool and a type with the same text are different names.
    assert_eq!(owned(store).await, before);
    assert_eq!(store.plugin(&other.name).await.unwrap(), None);
    assert_eq!(store.generation().await.unwrap(), generation);
    assert_eq!(store.serve_plugin(&other, &names(&["tool github"]), &[]).await.unwrap(), []);
}

pub(crate) async fn an_approval_transfers_exactly_the_names_it_lists(store: &Store) {
    let github = version(store, "github", "1.0.0").await;
    store.serve_plugin(&github, &names(&["type github", "tool github_list"]), &[]).await.unwrap();
    let other = version(store, "other", "1.0.0").await;
    let wanted = names(&["type github", "tool github_list"]);
    // An approval that lists only some of the names, or names that now belong to a third plugin, transfers nothing.
    for takes in [vec![owner("type github", "github")], vec![owner("type github", "third")]] {
        let refused = store.serve_plugin(&other, &wanted, &takes).await.unwrap();
        assert_eq!(refused.last().unwrap(), &owner("tool github_list", "github"), "{takes:?}");
        assert_eq!(owned(store).await, ["tool github_list: github", "type github: github"]);
    }
    // Approved names that the plugin does not request are not transferred.
    let takes = [owner("type github", "github"), owner("tool github_list", "github")];
    assert_eq!(store.serve_plugin(&other, &names(&["type github"]), &takes).await.unwrap(), []);
    assert_eq!(owned(store).await, ["tool github_list: github", "type github: other"]);
    assert_eq!(store.serve_plugin(&other, &wanted, &takes).await.unwrap(), []);
    assert_eq!(owned(store).await, ["tool github_list: other", "type github: other"]);
    // The previous owner can regain the names only through another approval.
    assert_eq!(store.serve_plugin(&github, &wanted, &[]).await.unwrap().len(), 2);
}

pub(crate) async fn of_concurrent_plugins_one_owns_a_name(store: &Store) {
    let mut plugins = Vec::new();
    for plugin in ["one", "two", "three"] {
        plugins.push(version(store, plugin, "1.0.0").await);
    }
    for round in 0..8 {
        let (type_name, tool) = (format!("type t{round}"), format!("tool x{round}"));
        // The plugins list their names in different orders.
        let orders = [names(&[&type_name, &tool]), names(&[&tool, &type_name]), names(&[&type_name, &tool])];
        let [a, b, c] = &orders;
        let [one, two, three] = plugins.as_slice() else { unreachable!("there are three plugins") };
        let (a, b, c) = tokio::join!(
            store.serve_plugin(one, a, &[]),
            store.serve_plugin(two, b, &[]),
            store.serve_plugin(three, c, &[]),
        );
        let results = [a.unwrap(), b.unwrap(), c.unwrap()];
        assert_eq!(results.iter().filter(|refused| refused.is_empty()).count(), 1, "{results:?}");
        assert_eq!(results.iter().filter(|refused| refused.len() == 2).count(), 2, "{results:?}");
    }
}

pub(crate) async fn a_new_database_has_no_owners_to_fill(store: &Store) {
    assert!(!store.owners_are_due().await.unwrap());
    assert!(!store.fill_owners(&[owner("type github", "github")]).await.unwrap());
    assert_eq!(owned(store).await, [""; 0]);
}

/// SQL that inserts rows into a schema without the `owners` table. The statements are valid in both SQLite and
/// PostgreSQL.
pub(crate) const OLDER_ROWS: &str = "
    insert into plugin_versions (plugin, version, manifest_digest, component_digest, manifest, component, locales, created_at)
    values ('github', '1.0.0',
        'sha256:813b2c01e2c1560bd2684c173beb346e9c3595a3a1d2b4a2f6a086bc943282f1', 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', 'name: github', '', '{}', 7);
    insert into plugins (name, version, manifest_digest, component_digest, updated_at)
    values ('github', '1.0.0',
        'sha256:813b2c01e2c1560bd2684c173beb346e9c3595a3a1d2b4a2f6a086bc943282f1', 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', 7);
    insert into trust (id, public_key, name_glob, created_at)
    values ('01936a5e-0000-7000-8000-000000000001', 'ed25519:a', 'acme-*', 7);";

/// Checks the rows of `OLDER_ROWS` after the migration.
pub(crate) async fn owners_are_filled_once(store: &Store) {
    let trust = store.trust_of_key("ed25519:a").await.unwrap();
    assert_eq!(trust.iter().map(|row| row.type_glob.as_str()).collect::<Vec<_>>(), ["*"]);

    assert!(store.owners_are_due().await.unwrap());
    let legacy: PluginName = "github".parse().unwrap();
    let row = OwnerRow { legacy_plugin: Some(legacy.clone()), ..owner("type github", "github") };
    assert!(store.fill_owners(std::slice::from_ref(&row)).await.unwrap());
    assert!(!store.owners_are_due().await.unwrap());
    assert!(!store.fill_owners(&[owner("type jira", "jira")]).await.unwrap());
    assert_eq!(store.owners().await.unwrap(), [row]);

    // Credentials that do not specify a plugin belong to the legacy plugin, even after another plugin has taken over
    // the type.
    let other = version(store, "other", "1.0.0").await;
    let (wanted, takes) = (names(&["type github"]), [owner("type github", "github")]);
    assert_eq!(store.serve_plugin(&other, &wanted, &takes).await.unwrap(), []);
    let owner = OwnerRow { legacy_plugin: Some(legacy), ..owner("type github", "other") };
    assert_eq!(store.owners().await.unwrap(), [owner]);
}
