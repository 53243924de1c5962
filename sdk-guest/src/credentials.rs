//! The status of the resource's credential. Plugins never see the credential itself.

use crate::host;

/// The status of a resource's credential.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The credential can be used.
    Ready,
    /// The credential has expired and cannot be refreshed.
    Expired,
    /// An admin must confirm the credential or save it again.
    NeedsAuthorization,
    /// No credential is stored.
    None,
    /// A status that this version of the crate does not know.
    Other(String),
}

/// Returns the status of the resource's credential.
///
/// ```
/// use monstrum_sdk::credentials::{self, Status};
/// # use monstrum_sdk::{Error, Executor, Operations, Request, Value, json, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "status" => status }; }
///
/// fn status(_: &Request) -> Result<Value, Error> {
///     Ok(json!(credentials::status() == Status::Ready))
/// }
/// # assert_eq!(Call::new("t", "status").run(&Plugin).success(), true);
/// # assert_eq!(Call::new("t", "status").credential_status("expired").run(&Plugin).success(), false);
/// ```
#[must_use]
pub fn status() -> Status {
    let text = host::credential_status();
    match text.as_str() {
        "ready" => Status::Ready,
        "expired" => Status::Expired,
        "needs-authorization" => Status::NeedsAuthorization,
        "none" => Status::None,
        _ => Status::Other(text),
    }
}
