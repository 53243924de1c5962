//! TLS connections to a server: encryption, and verification of the server certificate if the address requires it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use monstrum_store::{Store, StoreOptions};

use super::what;
use crate::support::postgres::{Postgres, hand_over};

/// Creates a certificate for `localhost` and the certificate authority that signs it.
fn certificates(folder: &Path) {
    let run = |arguments: &str| {
        let done = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["authority", "stranger"] {
        run(&format!("req -x509 {new_key} -keyout {name}.key -out {name}.pem -subj /CN={name} -days 2"));
    }
    run(&format!("req {new_key} -keyout server.key -out server.csr -subj /CN=server"));
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    run("x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile names \
         -out server.pem");
    fs::set_permissions(folder.join("server.key"), Permissions::from_mode(0o600)).unwrap();
    for name in ["server.key", "server.pem"] {
        hand_over(&folder.join(name)).unwrap();
    }
}

#[tokio::test]
async fn tls_verifies_the_server_as_the_address_requires() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let server = Postgres::on_tcp(&[
        "fsync=off",
        "ssl=on",
        &format!("ssl_cert_file={}", file("server.pem")),
        &format!("ssl_key_file={}", file("server.key")),
    ])
    .unwrap();
    let address = server.tcp_url("postgres");
    let by_name = address.replace("127.0.0.1", "localhost");
    let (known, unknown) = (file("authority.pem"), file("stranger.pem"));
    let connections = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) \
                       where application_name = 'monstrum' and ssl";

    for url in [
        address.clone(),
        format!("{address}?sslmode=require"),
        format!("{address}?sslmode=verify-ca&sslrootcert={known}"),
        format!("{by_name}?sslmode=verify-full&sslrootcert={known}"),
    ] {
        let store = Store::open(StoreOptions::from_url(&url).unwrap()).await.unwrap();
        assert!(server.sql("postgres", connections).unwrap() != "0", "{url} is not encrypted");
        store.close().await;
    }
    for url in [
        format!("{address}?sslmode=verify-full&sslrootcert={known}"),
        format!("{by_name}?sslmode=verify-full&sslrootcert={unknown}"),
        format!("{address}?sslmode=verify-ca&sslrootcert={unknown}"),
        format!("{by_name}?sslmode=verify-full"),
    ] {
        let refused = what(Store::open(StoreOptions::from_url(&url).unwrap()).await);
        let says = ["the TLS connection to the database failed", "the database cannot be reached"];
        assert!(says.iter().any(|says| refused.ends_with(says)), "{url}: {refused}");
    }
}
