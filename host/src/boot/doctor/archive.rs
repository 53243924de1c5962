//! Reports invalid anchors of archived audit rows, missing rows, and rows whose archiving is overdue.

use monstrum_types::{Clock, SystemClock, with_causes};

use super::Findings;
use crate::boot::Inspected;
use crate::config::Settings;
use monstrum_api::audit::AuditProblem;
use monstrum_core::audit::{find_anchor_problems, oldest_row};

/// The number of days after which an overdue row is reported: one day between two runs, and one day for failures.
const DAYS_LATE: i64 = 2;
const DAY_MS: i64 = 24 * 3600 * 1000;

pub(super) async fn check(found: &mut Findings, settings: &Settings, data: &Inspected) {
    match find_anchor_problems(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => {
            found.broken("audit", with_causes(&error), "run `monstrum doctor` as the user who runs the server");
        }
        Ok(problems) => {
            for AuditProblem { writer, what, .. } in problems {
                let remedy = "find out which program wrote to the database, and restore the database of this folder; \
                              run `monstrum audit verify` to list all problems";
                found.broken("audit", format!("{writer}: {what}"), remedy);
            }
        }
    }
    let Some(days) = settings.audit_keep else { return };
    let due = SystemClock.now().plus_ms(-(i64::from(days.get()) + DAYS_LATE).saturating_mul(DAY_MS));
    match oldest_row(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => {
            found.broken("audit", with_causes(&error), "run `monstrum doctor` as the user who runs the server");
        }
        Ok(oldest) if oldest.is_none_or(|at| at >= due) => {}
        Ok(_) => {
            let what = format!("rows exceed --audit-keep ({days}) by more than {DAYS_LATE} days and are not archived");
            let remedy =
                "check the server's log and the free disk space; rows after the start of an open call are not archived";
            found.weak("audit", what, remedy);
        }
    }
}
