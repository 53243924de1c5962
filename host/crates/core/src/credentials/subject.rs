//! The subject of a credential: the resource itself, or one user of an app.

use std::sync::Arc;

use monstrum_store::CredentialRow;
use monstrum_types::AppUser;
use monstrum_vault::AssociatedData;

/// The kind of the credential that all calls on a resource share.
const SHARED: &str = "shared";
/// The kind of a credential that serves one user.
const USER: &str = "user";

/// For whom a credential is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// All calls on the resource.
    Shared,
    /// The calls of one user. The text names the app and the user.
    User(Arc<str>),
}

impl Subject {
    /// Returns the user as a subject.
    pub fn of_user(user: &AppUser) -> Subject {
        Subject::User(user.key().into())
    }

    /// Returns the subject of a row, or `None` if the row has an unknown kind.
    pub fn of_row(row: &CredentialRow) -> Option<Subject> {
        match (row.subject_kind.as_str(), row.subject_id.as_str()) {
            (SHARED, "") => Some(Subject::Shared),
            (USER, id) if !id.is_empty() => Some(Subject::User(id.into())),
            _ => None,
        }
    }

    /// Returns the kind of the subject in rows.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Shared => SHARED,
            Subject::User(_) => USER,
        }
    }

    /// Returns the id of the subject in rows.
    pub fn id(&self) -> &str {
        match self {
            Subject::Shared => "",
            Subject::User(id) => id,
        }
    }

    /// Returns the user, or `None` for a shared credential.
    pub fn user(&self) -> Option<AppUser> {
        let Subject::User(id) = self else { return None };
        AppUser::of_key(id)
    }
}

/// Adds the subject of a row to the associated data of its record. Records of shared credentials have no subject in
/// their associated data, because earlier releases sealed them without one.
pub(super) fn bound_to(associated: AssociatedData, kind: &str, id: &str) -> AssociatedData {
    match (kind, id) {
        (SHARED, "") => associated,
        (kind, id) => associated.with("subject_kind", kind).with("subject_id", id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(app_id: &str, user_id: &str) -> AppUser {
        AppUser { app_id: app_id.to_owned(), user_id: user_id.to_owned() }
    }

    #[test]
    fn different_users_have_different_subjects() {
        let users = [
            user("a", "b:c"),
            user("a:b", "c"),
            user("a", "7"),
            user("b", "7"),
            user("1:a", "7"),
            user("", "a7"),
            user("a1:7", ""),
            user("https://id.example", "\u{e9}:1:\u{1f600}"),
        ];
        let subjects: Vec<Subject> = users.iter().map(Subject::of_user).collect();
        for (at, (subject, user)) in subjects.iter().zip(&users).enumerate() {
            assert_eq!(subject.user().as_ref(), Some(user));
            assert!(!subjects[..at].contains(subject), "{subject:?}");
        }
        for bad in ["", "1", "1:", "1:a", "1:a1:bc", "9:a1:b", "x:a1:b", "1:\u{e9}1:b"] {
            assert_eq!(Subject::User(bad.into()).user(), None, "{bad}");
        }
        assert_eq!(Subject::Shared.user(), None);
    }
}
