//! Tests of the records and key files that the vault opens or rejects.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use monstrum_types::{CredentialId, ResourceId, WorkspaceId};
use monstrum_vault::{AssociatedData, AuditKeys, MasterKeys, Sealed, Vault, VaultError};
use serde_json::json;

const PLAINTEXT: &[u8] = b"ghp_canary_0123456789abcdef";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn key_file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("master.key");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn vault_of(text: &str) -> Vault {
    let folder = folder();
    Vault::new(MasterKeys::open(&key_file(folder.path(), text)).unwrap().unwrap())
}

fn line(version: u32, byte: &str) -> String {
    format!("{version} {}\n", byte.repeat(32))
}

fn rejection(path: &Path) -> String {
    match MasterKeys::open_or_create(path) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string().replace(&path.display().to_string(), "KEY"),
    }
}

#[test]
fn a_record_opens_only_with_its_associated_data() {
    let vault = vault_of(&line(1, "a1"));
    let given_for = json!({"audience": ["https://api.github.com"], "method": "token"});
    let (workspace, credential, resource) = (WorkspaceId::new(), CredentialId::new(), ResourceId::new());
    let place = |field: &str| AssociatedData::credential(workspace, credential, resource, field, &given_for);
    let sealed = vault.seal(PLAINTEXT, place("access_token")).unwrap();
    assert_eq!(&**vault.unseal(&sealed, place("access_token")).unwrap(), PLAINTEXT);

    let widened = json!({"audience": ["https://api.github.com", "https://evil.example"], "method": "token"});
    let moved = [
        AssociatedData::credential(WorkspaceId::new(), credential, resource, "access_token", &given_for),
        AssociatedData::credential(workspace, CredentialId::new(), resource, "access_token", &given_for),
        AssociatedData::credential(workspace, credential, ResourceId::new(), "access_token", &given_for),
        AssociatedData::credential(workspace, credential, resource, "access_token", &widened),
        place("refresh_token"),
        place(""),
        AssociatedData::new("credential"),
    ];
    for aad in moved {
        assert!(matches!(vault.unseal(&sealed, &aad), Err(VaultError::Refused { version: 1 })), "{aad:?}");
    }
    assert!(vault.unseal(&sealed, b"").is_err());
}

#[test]
fn a_record_of_the_first_version_still_opens() {
    let sealed: Sealed = "AQAAAAEgjnOxTFk3QnCvzM0dAtBtObGYrMGkWCU0kdE2PmzgisGo0eMlSdRLbUhq0T0zIicNYpbVjZnirarmbdAs4XzMuWjS8FantjrU-m_aDP3MBOBJxKvc-bs".parse().unwrap();
    let place = AssociatedData::new("test").with("field", "access_token");
    assert_eq!(&**vault_of(&line(1, "a1")).unseal(&sealed, place).unwrap(), PLAINTEXT);
}

#[test]
fn a_flipped_bit_is_detected() {
    let vault = vault_of(&line(1, "a1"));
    let bytes = vault.seal(PLAINTEXT, b"place").unwrap().to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let opened = Sealed::from_bytes(&altered).and_then(|sealed| vault.unseal(&sealed, b"place"));
        assert!(opened.is_err(), "bit {bit}");
    }
}

#[test]
fn a_truncated_or_lengthened_record_does_not_open() {
    let vault = vault_of(&line(1, "a1"));
    let bytes = vault.seal(PLAINTEXT, b"place").unwrap().to_bytes();
    let mut longer = bytes.clone();
    longer.push(0);
    let shorter = (0..bytes.len()).map(|length| bytes[..length].to_vec());
    for altered in shorter.chain([longer]) {
        let opened = Sealed::from_bytes(&altered).and_then(|sealed| vault.unseal(&sealed, b"place"));
        assert!(opened.is_err(), "{} bytes", altered.len());
    }
}

#[test]
fn the_text_form_round_trips_and_contains_no_plaintext() {
    let vault = vault_of(&line(1, "a1"));
    let sealed = vault.seal(PLAINTEXT, b"place").unwrap();
    assert_eq!(sealed.to_string().parse::<Sealed>().unwrap(), sealed);
    assert_eq!(serde_json::from_value::<Sealed>(serde_json::to_value(&sealed).unwrap()).unwrap(), sealed);
    assert!(!sealed.to_bytes().windows(8).any(|window| PLAINTEXT.windows(8).any(|plain| plain == window)));
    assert_eq!(format!("{sealed:?}"), "Sealed(key version 1, 43 bytes)");
    for bad in ["", "!", "AA", "AQ", "ghp_0123"] {
        assert!(bad.parse::<Sealed>().is_err(), "{bad}");
    }
}

#[test]
fn records_of_the_same_plaintext_differ() {
    let vault = vault_of(&line(1, "a1"));
    assert_ne!(vault.seal(PLAINTEXT, b"place").unwrap(), vault.seal(PLAINTEXT, b"place").unwrap());
}

#[test]
fn the_newest_key_seals_and_all_keys_unseal() {
    let old = vault_of(&line(1, "a1"));
    let both = vault_of(&(line(2, "b2") + &line(1, "a1")));
    let new = vault_of(&line(2, "b2"));
    let sealed = old.seal(PLAINTEXT, b"place").unwrap();
    assert!(!old.needs_reseal(&sealed));
    assert!(both.needs_reseal(&sealed));
    assert_eq!(both.key_version(), 2);

    let resealed = both.seal(&both.unseal(&sealed, b"place").unwrap(), b"place").unwrap();
    assert_eq!(resealed.key_version(), 2);
    assert_eq!(&**new.unseal(&resealed, b"place").unwrap(), PLAINTEXT);
    assert!(matches!(new.unseal(&sealed, b"place"), Err(VaultError::UnknownKey { version: 1 })));
    assert!(matches!(old.unseal(&resealed, b"place"), Err(VaultError::UnknownKey { version: 2 })));
}

#[test]
fn another_key_of_the_same_version_does_not_open() {
    let sealed = vault_of(&line(1, "a1")).seal(PLAINTEXT, b"place").unwrap();
    assert!(matches!(vault_of(&line(1, "a2")).unseal(&sealed, b"place"), Err(VaultError::Refused { version: 1 })));
}

#[test]
fn a_record_over_the_limit_is_rejected() {
    let vault = vault_of(&line(1, "a1"));
    assert!(matches!(vault.seal(&vec![0; 16 * 1024 * 1024 + 1], b"place"), Err(VaultError::TooLarge { .. })));
}

#[test]
fn derived_keys_differ_by_label_and_by_master_key() {
    let vault = vault_of(&line(1, "a1"));
    assert_eq!(vault.derive("component cache"), vault.derive("component cache"));
    assert_ne!(vault.derive("component cache"), vault.derive("component cach"));
    assert_ne!(vault.derive("component cache"), vault_of(&line(1, "a2")).derive("component cache"));
}

#[test]
fn a_key_file_is_created_once_and_only_for_its_owner() {
    let folder = folder();
    let path = folder.path().join("master.key");
    let sealed = Vault::new(MasterKeys::open_or_create(&path).unwrap()).seal(PLAINTEXT, b"place").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left in the folder");

    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("1 ") && text.len() == 67, "the file has one line with a version and a key");
    let again = Vault::new(MasterKeys::open_or_create(&path).unwrap());
    assert_eq!(&**again.unseal(&sealed, b"place").unwrap(), PLAINTEXT);
    assert!(matches!(MasterKeys::create(&path), Err(VaultError::Create { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_key_file_that_other_users_can_access_is_rejected() {
    let folder = folder();
    let path = key_file(folder.path(), &line(1, "a1"));
    for mode in [0o640, 0o604, 0o620, 0o602, 0o660, 0o644, 0o610] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            rejection(&path),
            format!("key file `KEY` is accessible to other users (mode {mode:04o}): run chmod 600 on it")
        );
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(MasterKeys::open(&path).is_ok());
}

#[test]
fn a_symlink_or_a_folder_is_rejected() {
    let folder = folder();
    let target = key_file(folder.path(), &line(1, "a1"));
    let link = folder.path().join("link.key");
    symlink(&target, &link).unwrap();
    assert_eq!(rejection(&link), "key file `KEY` is a symlink: replace it with the file itself");

    let dangling = folder.path().join("dangling.key");
    symlink(folder.path().join("nowhere"), &dangling).unwrap();
    assert_eq!(rejection(&dangling), "key file `KEY` is a symlink: replace it with the file itself");

    let inner = folder.path().join("folder.key");
    fs::create_dir(&inner).unwrap();
    assert_eq!(rejection(&inner), "key file `KEY` is not a regular file");
}

#[test]
fn a_malformed_key_file_is_rejected_without_showing_it() {
    let folder = folder();
    let key = "a1".repeat(32);
    let expected = "expected a version number of at least 1, a space and 64 hex digits";
    let cases = [
        (String::new(), ": it is empty".to_owned()),
        ("\n".to_owned(), ": it is empty".to_owned()),
        (key.clone(), format!(" at line 1: {expected}")),
        (format!("0 {key}"), format!(" at line 1: {expected}")),
        (format!("+1 {key}"), format!(" at line 1: {expected}")),
        (format!("4294967296 {key}"), format!(" at line 1: {expected}")),
        (format!("1 {}", &key[1..]), format!(" at line 1: {expected}")),
        (format!("1 {key}0"), format!(" at line 1: {expected}")),
        (format!("1 {key}\r\n"), format!(" at line 1: {expected}")),
        (format!("1 {key}\n\n2 {key}\n"), format!(" at line 2: {expected}")),
        (format!("1 {key}\n1 {key}\n"), " at line 2: the version occurs more than once".to_owned()),
        (" ".repeat(64 * 1024 + 1), ": it is larger than 64 KiB".to_owned()),
    ];
    for (text, what) in cases {
        let path = key_file(folder.path(), &text);
        assert_eq!(rejection(&path), format!("key file `KEY` is malformed{what}"));
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_new_key_becomes_the_newest_and_older_keys_are_kept() {
    let folder = folder();
    let path = key_file(folder.path(), &line(3, "a1"));
    let old = Vault::new(MasterKeys::open(&path).unwrap().unwrap());
    let sealed = old.seal(PLAINTEXT, "place").unwrap();
    // A draft file that a killed attempt left behind.
    fs::write(folder.path().join(".master.key.new"), "half").unwrap();
    let vault = Vault::new(MasterKeys::add_fresh(&path).unwrap());
    assert_eq!(vault.keys().versions().collect::<Vec<_>>(), [3, 4]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(fs::read_to_string(&path).unwrap().starts_with(&line(3, "a1")));

    let resealed = vault.reseal(&sealed, "place").unwrap();
    assert_eq!((resealed.key_version(), vault.needs_reseal(&sealed), vault.needs_reseal(&resealed)), (4, true, false));
    assert!(matches!(vault.reseal(&sealed, "another place"), Err(VaultError::Refused { version: 3 })));
    let read = Vault::new(MasterKeys::open(&path).unwrap().unwrap());
    assert_eq!(&**read.unseal(&resealed, "place").unwrap(), PLAINTEXT);
    assert!(matches!(old.unseal(&resealed, "place"), Err(VaultError::UnknownKey { version: 4 })));
}

#[test]
fn pruning_keeps_the_newest_verified_key() {
    let folder = folder();
    let path = key_file(folder.path(), &(line(1, "a1") + &line(2, "b2") + &line(5, "c3")));
    let keys = MasterKeys::open(&path).unwrap().unwrap();
    let other = MasterKeys::from_text(&line(5, "d4")).unwrap();
    assert!(matches!(MasterKeys::prune(&path, &other), Err(VaultError::UnknownKey { version: 5 })));
    assert_eq!(MasterKeys::prune(&path, &keys).unwrap(), [1, 2]);
    assert_eq!(fs::read_to_string(&path).unwrap(), line(5, "c3"));
    assert!(MasterKeys::prune(&path, &keys).unwrap().is_empty());
}

#[test]
fn a_full_or_missing_key_file_accepts_no_key() {
    let folder = folder();
    let last = line(u32::MAX, "a1");
    let path = key_file(folder.path(), &last);
    assert!(matches!(MasterKeys::add_fresh(&path), Err(VaultError::Full { .. })));
    let full: String = (1_000_000_000..1_000_000_862).map(|version| line(version, "a1")).collect();
    fs::write(&path, &full).unwrap();
    assert!(matches!(MasterKeys::add_fresh(&path), Err(VaultError::Full { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), full, "the file is unchanged");
    fs::remove_file(&path).unwrap();
    assert!(matches!(MasterKeys::add_fresh(&path), Err(VaultError::Read { .. })));
    assert!(!path.exists(), "no file is created");
}

#[test]
fn keys_can_be_given_as_text() {
    let (one, two) = (line(1, "a1"), line(2, "b2"));
    for text in [format!("{one}{two}"), format!("{},{}", one.trim(), two.trim()), format!(" {}, {}\n", two.trim(), one)]
    {
        assert_eq!(MasterKeys::from_text(&text).unwrap().versions().collect::<Vec<_>>(), [1, 2], "{text:?}");
    }
    for text in ["", " ", &"a1".repeat(32), &format!("{one},{one}"), &format!("{},,{}", one.trim(), two.trim())] {
        let error = MasterKeys::from_text(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("the master keys are malformed") && !error.contains("a1a1"), "{text:?}: {error}");
    }
}

#[test]
fn a_missing_folder_is_named() {
    let folder = folder();
    assert_eq!(rejection(&folder.path().join("absent/master.key")), "failed to create key file `KEY`");
}

#[test]
fn audit_keys_open_only_for_their_version() {
    let vault = vault_of(&line(1, "a1"));
    let keys = AuditKeys::generate(3).unwrap();
    let sealed = keys.to_sealed(&vault).unwrap();
    let again = AuditKeys::from_sealed(&vault, &sealed, 3).unwrap();
    assert_eq!(again.version(), 3);
    assert_eq!(keys.mac(&[7; 32], b"row"), again.mac(&[7; 32], b"row"));
    assert!(again.verify_head(b"head", &keys.sign_head(b"head")));
    assert!(AuditKeys::from_sealed(&vault, &sealed, 4).is_err());
    assert!(AuditKeys::from_sealed(&vault, &vault.seal(PLAINTEXT, b"place").unwrap(), 3).is_err());
}

#[test]
fn a_changed_row_or_head_does_not_verify() {
    let keys = AuditKeys::generate(1).unwrap();
    let other = AuditKeys::generate(1).unwrap();
    let hash = keys.mac(&[0; 32], b"row");
    assert!(keys.verify_mac(&[0; 32], b"row", &hash));
    assert!(!keys.verify_mac(&[1; 32], b"row", &hash));
    assert!(!keys.verify_mac(&[0; 32], b"rov", &hash));
    assert!(!other.verify_mac(&[0; 32], b"row", &hash));

    let signature = keys.sign_head(b"head");
    assert!(!keys.verify_head(b"heat", &signature));
    assert!(!other.verify_head(b"head", &signature));
    assert!(!keys.verify_head(b"head", &[0; 64]));
}

#[test]
fn a_signature_is_valid_for_one_kind_of_message() {
    let keys = AuditKeys::generate(1).unwrap();
    let signatures = [keys.sign_head(b"text"), keys.sign_anchor(b"text"), keys.sign_manifest(b"text")];
    for (number, signature) in signatures.iter().enumerate() {
        let valid = [AuditKeys::verify_head, AuditKeys::verify_anchor, AuditKeys::verify_manifest];
        let valid = valid.map(|verify| verify(&keys, b"text", signature));
        assert_eq!(valid, [0, 1, 2].map(|kind| kind == number));
        assert!(!keys.verify_anchor(b"other", signature) && !keys.verify_manifest(b"other", signature));
    }
}
