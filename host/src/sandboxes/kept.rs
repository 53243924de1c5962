//! The sandboxes that a workspace keeps, running or stopped, and their disk space on this host.
//!
//! The limits reject only new sandboxes. Existing ones can always be resumed and deleted.

use std::time::Duration;

use monstrum_types::WorkspaceId;

use super::{Fault, Sandboxes, within};
use crate::config::SandboxSettings;

/// The part of a limit from which on callers get a warning.
const WARNED_PERCENT: u64 = 80;
const GIB: u64 = 1 << 30;
/// How long counting may take, since other starts wait for it.
const COUNT_MAX: Duration = Duration::from_secs(10);

/// The kept sandboxes of one workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub sandboxes: u64,
    pub bytes: u64,
}

impl Kept {
    /// Why the workspace gets no further sandbox; `None` if it gets one.
    pub fn refusal(self, settings: &SandboxSettings) -> Option<String> {
        let is_over = self.sandboxes >= u64::from(settings.kept_max) || self.bytes >= bytes_max(settings);
        is_over.then(|| format!("this workspace keeps {}; delete conversations that are over", self.words(settings)))
    }

    /// The warning for callers; `None` below the threshold.
    pub fn warning(self, settings: &SandboxSettings) -> Option<String> {
        let is_near = |kept: u64, max: u64| u128::from(kept) * 100 >= u128::from(max) * u128::from(WARNED_PERCENT);
        let is_near = is_near(self.sandboxes, settings.kept_max.into()) || is_near(self.bytes, bytes_max(settings));
        let words = || {
            format!(
                "this workspace keeps {}; at the limit it gets no new sandbox, so delete conversations that are over",
                self.words(settings)
            )
        };
        is_near.then(words)
    }

    fn words(self, settings: &SandboxSettings) -> String {
        let SandboxSettings { kept_max, kept_gib, .. } = settings;
        // Tenths are rounded down, so that a limit that is not reached does not look reached.
        let tenths = self.bytes / (GIB / 10);
        format!(
            "{} of {kept_max} sandboxes (--sandbox-kept-max) and {}.{} of {kept_gib} GiB (--sandbox-kept-gib)",
            self.sandboxes,
            tenths / 10,
            tenths % 10
        )
    }
}

fn bytes_max(settings: &SandboxSettings) -> u64 {
    u64::from(settings.kept_gib) * GIB
}

impl Sandboxes {
    pub(super) async fn kept_by(&self, workspace: WorkspaceId) -> Result<Kept, Fault> {
        let provider = self.provider()?;
        let sandboxes = self.store.count_kept_sandboxes(workspace).await?;
        let bytes = within(COUNT_MAX, "counted", provider.kept_bytes(&workspace.to_string())).await?;
        Ok(Kept { sandboxes, bytes })
    }

    /// The warning for a caller that has started a sandbox. A failure to count fails no call.
    pub(super) async fn warning(&self, workspace: WorkspaceId) -> Option<String> {
        match self.kept_by(workspace).await {
            Ok(kept) => kept.warning(&self.settings),
            Err(error) => {
                tracing::warn!(%error, "what a workspace keeps in sandboxes cannot be counted");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_from_four_fifths_on() {
        let settings = SandboxSettings { kept_max: 10, kept_gib: 5, ..SandboxSettings::default() };
        let judged = |sandboxes, bytes| {
            let kept = Kept { sandboxes, bytes };
            (kept.warning(&settings).is_some(), kept.refusal(&settings).is_some())
        };
        assert_eq!(judged(7, 0), (false, false));
        assert_eq!(judged(8, 0), (true, false));
        assert_eq!(judged(9, 5 * GIB - 1), (true, false));
        assert_eq!(judged(10, 0), (true, true));
        assert_eq!(judged(0, 4 * GIB - 1), (false, false));
        assert_eq!(judged(0, 4 * GIB), (true, false));
        assert_eq!(judged(0, 5 * GIB), (true, true));
        let words = Kept { sandboxes: 10, bytes: 5 * GIB / 2 }.refusal(&settings).expect("it is at its limit");
        let expected = "this workspace keeps 10 of 10 sandboxes (--sandbox-kept-max) and 2.5 of 5 GiB \
                        (--sandbox-kept-gib); delete conversations that are over";
        assert_eq!(words, expected);
    }
}
