//! Tests of the settings and of their places.

use super::*;

#[test]
fn flags_take_precedence_over_the_file_and_the_file_over_defaults() {
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
fn ceilings_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let resolve = |text: &str| {
        std::fs::write(folder.path().join(FILE), text).unwrap();
        Settings::resolve(ServeFlags::default(), folder.path()).map_err(|error| error.to_string())
    };
    assert_eq!(resolve("").unwrap().ceilings, Ceilings::default());
    assert_eq!(resolve("max_memory_mib = 1024").unwrap().ceilings.memory_mib, 1024);
    assert!(
        resolve("max_memory_mib = 1025").unwrap_err().ends_with("max_memory_mib: expected a number from 1 to 1024")
    );
    assert!(resolve("max_calls = 1001").unwrap_err().ends_with("max_calls: expected a number from 1 to 1000"));
    assert!(resolve("max_fuel = 0").unwrap_err().contains("nonzero"));
    assert!(
        resolve("workspace_patterns_mib = 4097")
            .unwrap_err()
            .ends_with("workspace_patterns_mib: expected a number from 1 to 4096")
    );
    for text in ["0", "1025", "-1", "x"] {
        let parsed = text.parse::<Bounded<1, MEMORY_MIB_MAX>>();
        assert_eq!(parsed, Err("expected a number from 1 to 1024".to_owned()), "{text}");
    }
    assert_eq!("7".parse::<Bounded<1, CALLS_MAX>>().map(Bounded::get), Ok(7));
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
fn the_master_keys_are_in_the_data_folder_unless_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = |text: &str| {
        std::fs::write(folder.path().join(FILE), text).unwrap();
        Settings::resolve(ServeFlags::default(), folder.path()).map(|settings| settings.master_key.to_string())
    };
    assert_eq!(place("data_dir = \"/srv/m\"").unwrap(), "/srv/m/master.key");
    assert_eq!(place("master_key_file = \"/run/keys/m\"").unwrap(), "/run/keys/m");
    assert!(place("master_key = \"1 aa\"").is_err(), "the keys themselves have no place there");
    let variable = MasterKeyPlace::Variable(Secret::new("1 a1a1".to_owned()));
    assert_eq!(format!("{variable} {variable:?}"), "MONSTRUM_MASTER_KEY MONSTRUM_MASTER_KEY");
}

#[test]
fn an_unknown_setting_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "lisen = \"127.0.0.1:1\"\n").unwrap();
    let error = Settings::resolve(ServeFlags::default(), folder.path()).unwrap_err().to_string();
    assert!(error.contains("monstrum.toml") && error.contains("lisen"), "{error}");
}
