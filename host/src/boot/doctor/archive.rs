//! Reports an archive of the audit that was tampered with or that is overdue.

use monstrum_types::{Clock, SystemClock, with_causes};

use super::Findings;
use crate::boot::Inspected;
use crate::config::Settings;
use monstrum_core::audit::{Problem, find_anchor_problems, oldest_row};

/// How many days after the setting's limit the oldest row is reported: a day between two runs, and one for failures.
const DAYS_LATE: i64 = 2;
const DAY_MS: i64 = 24 * 3600 * 1000;

pub(super) async fn check(found: &mut Findings, settings: &Settings, data: &Inspected) {
    match find_anchor_problems(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => found.broken("audit", with_causes(&error), "run it as the user who runs the server"),
        Ok(problems) => {
            for Problem { writer, what, .. } in problems {
                let remedy = "find out who wrote to the database, and put back the one that belongs to this folder; \
                              `monstrum audit verify` shows every problem";
                found.broken("audit", format!("{writer}: {what}"), remedy);
            }
        }
    }
    let Some(days) = settings.audit_keep else { return };
    let due = SystemClock.now().plus_ms(-(i64::from(days.get()) + DAYS_LATE).saturating_mul(DAY_MS));
    match oldest_row(&data.store, &data.audit_keys, &data.path).await {
        Err(error) => found.broken("audit", with_causes(&error), "run it as the user who runs the server"),
        Ok(oldest) if oldest.is_none_or(|at| at >= due) => {}
        Ok(_) => {
            let what = format!("rows are more than {DAYS_LATE} days older than --audit-keep ({days}) and not archived");
            let remedy =
                "the server's log says why; is there room on the disk? was there a moment without an open call?";
            found.weak("audit", what, remedy);
        }
    }
}
