//! The test server, disk and network of the integration tests.

#![expect(unreachable_pub, reason = "the files are public in the integration tests")]

#[path = "../../../../../tests/support/disk.rs"]
pub(crate) mod disk;
#[path = "../../../../../tests/support/postgres.rs"]
pub(crate) mod postgres;
#[path = "../../../../../tests/support/proxy.rs"]
pub(crate) mod proxy;
