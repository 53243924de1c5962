//! Parameters of SQL statements.

use std::borrow::Cow;

use monstrum_types::{DiscoveryStatus, KeyKind, Labels, PinStatus, UtcMillis};
use sqlx::Arguments as _;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

use super::{ColumnValue, Row};
use crate::{
    ApprovalKind, ApprovalStatus, AuditKind, BudgetSubject, DeliveryReason, DeliveryStatus, DocumentFormat, FlowStatus,
    OwnedKind, RunRequest, RunStarter, RunStatus, RunStepPhase, RunStepStatus, RunStepStop, ScheduleRunStatus,
    StoreError, SubscriptionMaker, TargetKind, TaskStatus, TaskStepKind, WebhookKind,
};

/// A parameter of a statement. NULL values also have a type, because PostgreSQL requires one.
pub(crate) enum Arg<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    Flag(bool),
    Bytes(Option<&'a [u8]>),
}

impl Arg<'_> {
    /// Returns a parameter that borrows the value of this one.
    pub(crate) fn borrowed(&self) -> Arg<'_> {
        match self {
            Arg::Text(text) => Arg::Text(text.as_deref().map(Cow::Borrowed)),
            Arg::Int(number) => Arg::Int(*number),
            Arg::Flag(flag) => Arg::Flag(*flag),
            Arg::Bytes(bytes) => Arg::Bytes(*bytes),
        }
    }

    /// Returns the approximate size of the stored value.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Arg::Text(text) => text.as_deref().map_or(0, str::len),
            Arg::Int(_) | Arg::Flag(_) => size_of::<i64>(),
            Arg::Bytes(bytes) => bytes.map_or(0, <[u8]>::len),
        }
    }
}

/// Rejects U+0000, which PostgreSQL cannot store. SQLite could store it, but data must be portable between the two
/// databases.
pub(super) fn checked<'a>(text: &'a Option<Cow<'_, str>>) -> Result<Option<&'a str>, StoreError> {
    match text.as_deref() {
        Some(text) if text.contains('\0') => Err(StoreError::Nul),
        text => Ok(text),
    }
}

macro_rules! arguments {
    ($name:ident, $arguments:ty) => {
        pub(super) fn $name(args: &[Arg<'_>]) -> Result<$arguments, StoreError> {
            let mut arguments = <$arguments>::default();
            arguments.reserve(args.len(), 0);
            for arg in args {
                match arg {
                    Arg::Text(text) => arguments.add(checked(text)?),
                    Arg::Int(number) => arguments.add(*number),
                    Arg::Flag(flag) => arguments.add(*flag),
                    Arg::Bytes(bytes) => arguments.add(*bytes),
                }
                .map_err(StoreError::Statement)?;
            }
            Ok(arguments)
        }
    };
}
arguments!(of_sqlite, SqliteArguments);
arguments!(of_postgres, PgArguments);

/// Builds one array per column from the values of several rows.
pub(super) fn columns_of_postgres<const COLUMNS: usize>(
    rows: &[[Arg<'_>; COLUMNS]],
) -> Result<PgArguments, StoreError> {
    let mut arguments = PgArguments::default();
    arguments.reserve(COLUMNS, 0);
    for (column, first) in rows.first().into_iter().flatten().enumerate() {
        let values = rows.iter().map(|row| &row[column]);
        match first {
            Arg::Text(_) => {
                let texts = values.map(|arg| match arg {
                    Arg::Text(text) => checked(text),
                    _ => Err(mixed(column)),
                });
                arguments.add(texts.collect::<Result<Vec<_>, _>>()?)
            }
            Arg::Int(_) => {
                let numbers = values.map(|arg| match arg {
                    Arg::Int(number) => Ok(*number),
                    _ => Err(mixed(column)),
                });
                arguments.add(numbers.collect::<Result<Vec<_>, _>>()?)
            }
            Arg::Bytes(_) => {
                let blobs = values.map(|arg| match arg {
                    Arg::Bytes(bytes) => Ok(*bytes),
                    _ => Err(mixed(column)),
                });
                arguments.add(blobs.collect::<Result<Vec<_>, _>>()?)
            }
            Arg::Flag(_) => return Err(mixed(column)),
        }
        .map_err(StoreError::Statement)?;
    }
    Ok(arguments)
}

fn mixed(column: usize) -> StoreError {
    StoreError::Statement(format!("column {column} of a bulk insert mixes types").into())
}

/// Builds a slice of statement parameters, in order.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::db::Arg::from($value)),*] };
}
pub(crate) use args;

/// Builds a `Vec` of statement parameters, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::db::Arg::from($value)),*] };
}
pub(crate) use values;

/// Implements the conversions of values to parameters.
macro_rules! conversions {
    ($($value:ty: |$name:ident| $arg:expr),+ $(,)?) => { $(
        impl<'a> From<$value> for Arg<'a> {
            fn from($name: $value) -> Self {
                $arg
            }
        }
    )+ };
}
conversions! {
    &'a str: |text| Arg::Text(Some(Cow::Borrowed(text))),
    &'a String: |text| Arg::from(text.as_str()),
    Option<&'a str>: |text| Arg::Text(text.map(Cow::Borrowed)),
    &'a Option<String>: |text| Arg::Text(text.as_deref().map(Cow::Borrowed)),
    i64: |number| Arg::Int(Some(number)),
    Option<i64>: |number| Arg::Int(number),
    UtcMillis: |time| Arg::Int(Some(time.0)),
    Option<UtcMillis>: |time| Arg::Int(time.map(|time| time.0)),
    bool: |flag| Arg::Flag(flag),
    &'a [u8]: |bytes| Arg::Bytes(Some(bytes)),
    &serde_json::Value: |json| Arg::Text(Some(Cow::Owned(json.to_string()))),
    &Option<serde_json::Value>: |json| Arg::Text(json.as_ref().map(|json| Cow::Owned(json.to_string()))),
    &Labels: |labels| Arg::Text(Some(Cow::Owned(labels.to_string()))),
    &Option<Labels>: |labels| Arg::Text(labels.as_ref().map(|labels| Cow::Owned(labels.to_string()))),
    &ApprovalKind: |kind| Arg::from(kind.as_str()),
    &ApprovalStatus: |status| Arg::from(status.as_str()),
    &BudgetSubject: |subject| Arg::from(subject.as_str()),
    &DocumentFormat: |format| Arg::from(format.as_str()),
    &SubscriptionMaker: |maker| Arg::from(maker.as_str()),
    &DiscoveryStatus: |status| Arg::from(status.as_str()),
    &KeyKind: |kind| Arg::from(kind.as_str()),
    &PinStatus: |status| Arg::from(status.as_str()),
    &WebhookKind: |kind| Arg::from(kind.as_str()),
}

macro_rules! by_reference {
    ($($value:ty),+ $(,)?) => { conversions! { $(&$value: |value| Arg::from(*value)),+ } };
}
by_reference!(i64, Option<i64>, bool, UtcMillis, Option<UtcMillis>);

/// Implements `ColumnValue` for ids and names, which are stored as text.
macro_rules! stored_as_text {
    ($($value:ident),+ $(,)?) => { $(
        impl ColumnValue for monstrum_types::$value {
            fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
                row.parse(column, |text| text.parse().ok())
            }
        }
    )+ };
}

macro_rules! ids {
    ($($id:ident),+ $(,)?) => {
        stored_as_text!($($id),+);
        $(
            conversions! {
                monstrum_types::$id: |id| Arg::Text(Some(Cow::Owned(id.to_string()))),
                Option<monstrum_types::$id>: |id| Arg::Text(id.map(|id| Cow::Owned(id.to_string()))),
            }
            by_reference!(monstrum_types::$id, Option<monstrum_types::$id>);
        )+
    };
}
ids!(
    WorkspaceId,
    BotId,
    ResourceId,
    BindingId,
    RoleId,
    CredentialId,
    KeyId,
    TrustId,
    RequestId,
    OauthProviderId,
    OauthFlowId,
    SandboxInstanceId,
    ApprovalId,
    ResourceToolId,
    TaskId,
    ScheduleId,
    SessionId,
    EventId,
    SubscriptionId,
    DeliveryId,
    WakeClaimId,
    BudgetId,
    ReservationId,
    WebhookId,
    WorkflowId,
    WorkflowVersionId,
    WorkflowTriggerId,
    RunId,
);
stored_as_text!(WakeKey);
conversions! { &'a monstrum_types::WakeKey: |key| Arg::from(key.as_str()) }

macro_rules! names {
    ($($name:ident),+) => {
        stored_as_text!($($name),+);
        conversions! { $(&'a monstrum_types::$name: |name| Arg::from(name.as_str())),+ }
    };
}
names!(PluginName, ResourceTypeId, Digest);
conversions! {
    &'a Option<monstrum_types::Digest>: |digest| Arg::from(digest.as_ref().map(monstrum_types::Digest::as_str)),
}

/// Implements `ColumnValue` for words, which are stored as text.
macro_rules! stored_as_word {
    ($($value:ty),+) => { $(
        impl ColumnValue for $value {
            fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
                row.parse(column, <$value>::from_word)
            }
        }
    )+ };
}
stored_as_word!(
    ApprovalKind,
    ApprovalStatus,
    AuditKind,
    BudgetSubject,
    DeliveryReason,
    DeliveryStatus,
    DiscoveryStatus,
    DocumentFormat,
    FlowStatus,
    KeyKind,
    OwnedKind,
    PinStatus,
    RunRequest,
    RunStarter,
    RunStatus,
    RunStepPhase,
    RunStepStatus,
    RunStepStop,
    ScheduleRunStatus,
    SubscriptionMaker,
    TargetKind,
    TaskStatus,
    TaskStepKind,
    WebhookKind
);
