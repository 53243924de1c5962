//! Addresses of PostgreSQL databases: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=…`.
//!
//! The driver's own parser logs unknown parameters, so this module parses addresses itself. No error message contains
//! any part of an invalid address: if a slash in the password is not percent-encoded, any part may belong to the
//! password.

use percent_encoding::percent_decode_str;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use crate::StoreError;

/// The address of a database on a PostgreSQL server, including the login.
#[derive(Clone)]
pub(crate) struct PostgresAddress {
    pub(crate) options: PgConnectOptions,
}

/// Formats the address, and omits the password.
impl std::fmt::Display for PostgresAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, database) = (self.options.get_username(), self.options.get_database().unwrap_or_default());
        let host = match self.options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => self.options.get_host().to_owned(),
        };
        write!(formatter, "postgres://{user}@{host}:{}/{database}", self.options.get_port())
    }
}

impl std::fmt::Debug for PostgresAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{self}")
    }
}

const ENCODED: &str = "it is not a URL (special characters in the password must be percent-encoded)";

impl PostgresAddress {
    /// Parses an address. Defaults for missing parts come from PostgreSQL's environment variables, such as
    /// `PGPASSWORD`.
    pub(crate) fn parse(address: &str) -> Result<Self, StoreError> {
        let invalid = |what| StoreError::Address { what };
        let url = Url::parse(address).map_err(|_| invalid(ENCODED))?;
        let database = url.path().strip_prefix('/').unwrap_or_default();
        if url.fragment().is_some() || database.contains(['/', '@', ':']) {
            return Err(invalid(ENCODED));
        }
        let mut options =
            PgConnectOptions::new_without_pgpass().application_name("monstrum").disable_statement_logging();
        match decode(url.host_str().unwrap_or_default())? {
            host if host.starts_with('/') => options = options.socket(host),
            host if !host.is_empty() => options = options.host(host.trim_start_matches('[').trim_end_matches(']')),
            _ => {}
        }
        if let Some(port) = url.port() {
            options = options.port(port);
        }
        if !url.username().is_empty() {
            options = options.username(&decode(url.username())?);
        }
        if let Some(password) = url.password() {
            options = options.password(&decode(password)?);
        }
        if !database.is_empty() {
            options = options.database(&decode(database)?);
        }
        let mut has_mode = false;
        for (name, value) in url.query_pairs() {
            has_mode |= name == "sslmode";
            options = with_parameter(options, &name, &value)?;
        }
        if options.get_database().is_none() {
            return Err(invalid("the database name is missing"));
        }
        if !has_mode && matches!(options.get_ssl_mode(), PgSslMode::Prefer) && !is_local(&options) {
            // With `prefer`, an attacker on the network could disable TLS, so only the operator may choose that mode.
            options = options.ssl_mode(PgSslMode::Require);
        }
        Ok(PostgresAddress { options })
    }
}

fn with_parameter(options: PgConnectOptions, name: &str, value: &str) -> Result<PgConnectOptions, StoreError> {
    let invalid = |what| StoreError::Address { what };
    Ok(match name {
        "host" if value.starts_with('/') => options.socket(value),
        "host" => options.host(value),
        "port" => options.port(value.parse().map_err(|_| invalid("its port is not a number"))?),
        "user" => options.username(value),
        "password" => options.password(value),
        "dbname" => options.database(value),
        "application_name" => options.application_name(value),
        "sslmode" => {
            let known =
                "its sslmode is not supported (supported: disable, allow, prefer, require, verify-ca, verify-full)";
            options.ssl_mode(value.parse().map_err(|_| invalid(known))?)
        }
        "sslrootcert" => options.ssl_root_cert(value),
        "sslcert" => options.ssl_client_cert(value),
        "sslkey" => options.ssl_client_key(value),
        _ => {
            return Err(invalid(
                "it has an unsupported query parameter (supported: host, port, user, password, dbname, \
                 application_name, sslmode, sslrootcert, sslcert, sslkey)",
            ));
        }
    })
}

fn decode(part: &str) -> Result<String, StoreError> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(String::from).map_err(|_| StoreError::Address { what: "a part of the address is not valid UTF-8" })
}

/// Returns whether the connection stays on this machine.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(address: &str) -> String {
        PostgresAddress::parse(address).map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    #[test]
    fn every_part_of_an_address_is_parsed() {
        for (address, expected) in [
            ("postgres://user:secret@db.example:5433/monstrum", "postgres://user@db.example:5433/monstrum"),
            ("postgresql://user@[::1]:5433/monstrum?sslmode=disable", "postgres://user@::1:5433/monstrum"),
            ("postgres://us%40er:se%2Fcret@%2Frun%2Fpg:1/m%20n", "postgres://us@er@/run/pg:1/m n"),
            (
                "postgres:///?host=/run/pg&port=7&user=u&password=p&dbname=d&application_name=a",
                "postgres://u@/run/pg:7/d",
            ),
        ] {
            assert_eq!(shown(address), expected);
        }
    }

    #[test]
    fn an_invalid_address_never_shows_its_password() {
        for address in [
            "postgres://user:12secret/34@host/db",
            "postgres://user:12#secret@host/db",
            "postgres://user:12/secret@host/db",
            "postgres://user:12?secret@host/db",
            "postgres://user:secret@host:port/db",
            "postgres://user:secret@host",
            "postgres://user:%FFsecret@host/db",
            "postgres://user:secret@host/db?sslmode=secret",
            "postgres://user:secret@host/db?port=secret",
            "postgres://user@host/db?secret=secret",
            "postgres:secret",
        ] {
            let error = PostgresAddress::parse(address).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
        let valid = PostgresAddress::parse("postgres://user:secret@host/db?password=secret").unwrap();
        assert!(!format!("{valid} {valid:?}").contains("secret"), "{valid:?}");
    }

    #[test]
    fn a_connection_over_a_network_is_encrypted_unless_the_operator_chooses_otherwise() {
        for (address, expected) in [
            ("postgres://u@db.example/d", "Require"),
            ("postgres://u@10.0.0.1/d", "Require"),
            ("postgres://u@db.example/d?sslmode=prefer", "Prefer"),
            ("postgres://u@db.example/d?sslmode=disable", "Disable"),
            ("postgres://u@db.example/d?sslmode=verify-full", "VerifyFull"),
            ("postgres://u@localhost/d", "Prefer"),
            ("postgres://u@127.0.0.1/d", "Prefer"),
            ("postgres://u@[::1]/d", "Prefer"),
            ("postgres://u@%2Frun/d", "Prefer"),
        ] {
            let parsed = PostgresAddress::parse(address).unwrap();
            assert_eq!(format!("{:?}", parsed.options.get_ssl_mode()), expected, "{address}");
        }
    }
}
