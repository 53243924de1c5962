//! The number of sandboxes that a workspace keeps, running or not, and the disk space that they use on this host.
//!
//! The limits apply only to the creation of sandboxes. Existing sandboxes can always be resumed and deleted.

use std::time::Duration;

use monstrum_types::{WorkspaceId, with_causes};

use super::options::Options;
use super::{AccessError, Sandboxes, within};

/// The percentage of a limit at which callers get a warning.
const WARNED_PERCENT: u64 = 80;
const GIB: u64 = 1 << 30;
/// The time-out of a count. Other starts of sandboxes wait for the count.
const COUNT_MAX: Duration = Duration::from_secs(10);

/// The sandboxes and bytes that one workspace keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub sandboxes: u64,
    pub bytes: u64,
}

impl Kept {
    /// Returns the reason why the workspace cannot create a sandbox, or `None` if the workspace is below its limits.
    pub fn refusal(self, options: &Options) -> Option<String> {
        let is_over = self.sandboxes >= u64::from(options.kept_max) || self.bytes >= bytes_max(options);
        is_over.then(|| {
            let words = self.words(options);
            format!("this workspace has reached a sandbox limit: it keeps {words}; delete finished conversations")
        })
    }

    /// Returns the warning for callers, or `None` if the workspace is not near its limits.
    pub fn warning(self, options: &Options) -> Option<String> {
        let is_near = |kept: u64, max: u64| u128::from(kept) * 100 >= u128::from(max) * u128::from(WARNED_PERCENT);
        let is_near = is_near(self.sandboxes, options.kept_max.into()) || is_near(self.bytes, bytes_max(options));
        let words = || {
            format!(
                "this workspace keeps {}; when it reaches a limit, it cannot create new sandboxes; delete finished \
                 conversations",
                self.words(options)
            )
        };
        is_near.then(words)
    }

    fn words(self, options: &Options) -> String {
        let Options { kept_max, kept_gib, .. } = options;
        // The tenths are rounded down, so that the text does not show the limit before the workspace has reached it.
        let tenths = self.bytes / (GIB / 10);
        format!(
            "{} of {kept_max} sandboxes (--sandbox-kept-max) and {}.{} of {kept_gib} GiB (--sandbox-kept-gib)",
            self.sandboxes,
            tenths / 10,
            tenths % 10
        )
    }
}

fn bytes_max(options: &Options) -> u64 {
    u64::from(options.kept_gib) * GIB
}

impl Sandboxes {
    pub(super) async fn kept_by(&self, workspace: WorkspaceId) -> Result<Kept, AccessError> {
        let provider = self.provider()?;
        let sandboxes = self.store.count_kept_sandboxes(workspace).await?;
        let bytes = within(COUNT_MAX, "count the kept files", provider.kept_bytes(&workspace.to_string())).await?;
        Ok(Kept { sandboxes, bytes })
    }

    /// Returns the warning for a caller whose call has started a sandbox. A failed count does not fail the call.
    pub(super) async fn warning(&self, workspace: WorkspaceId) -> Option<String> {
        match self.kept_by(workspace).await {
            Ok(kept) => kept.warning(&self.options),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "failed to count the sandboxes of a workspace");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_warned_from_four_fifths_of_a_limit() {
        let options = Options { kept_max: 10, kept_gib: 5, ..Options::default() };
        let judged = |sandboxes, bytes| {
            let kept = Kept { sandboxes, bytes };
            (kept.warning(&options).is_some(), kept.refusal(&options).is_some())
        };
        assert_eq!(judged(7, 0), (false, false));
        assert_eq!(judged(8, 0), (true, false));
        assert_eq!(judged(9, 5 * GIB - 1), (true, false));
        assert_eq!(judged(10, 0), (true, true));
        assert_eq!(judged(0, 4 * GIB - 1), (false, false));
        assert_eq!(judged(0, 4 * GIB), (true, false));
        assert_eq!(judged(0, 5 * GIB), (true, true));
        let words =
            Kept { sandboxes: 10, bytes: 5 * GIB / 2 }.refusal(&options).expect("the workspace has reached a limit");
        let expected = "this workspace has reached a sandbox limit: it keeps 10 of 10 sandboxes (--sandbox-kept-max) \
                        and 2.5 of 5 GiB (--sandbox-kept-gib); delete finished conversations";
        assert_eq!(words, expected);
    }
}
