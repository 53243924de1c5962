//! Turns of file requests. Turns limit the memory for files and bodies of the host, of each workspace and of each API
//! key.
//!
//! A turn reserves the maximum number of bytes that its request may hold. The second half of all bytes is reserved for
//! workspaces without a turn, so that a few busy workspaces cannot block other workspaces. Small requests need no turn.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use monstrum_sandbox::FILE_BYTES_MAX;
use monstrum_types::{KeyId, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The size in bytes from which a request needs a turn. The limit of connections bounds the memory of smaller requests.
const FREE_BYTES: usize = 1 << 20;
/// The maximum time for which a request waits for its turn. The wait of a call for admission has the same maximum.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The limit of this host: eight files of maximum size.
const ALL_BYTES_MAX: usize = 8 * FILE_BYTES_MAX;
/// The total up to which a workspace that holds a turn may get another turn. The remaining bytes are reserved for
/// workspaces that hold no turn.
const SHARED_BYTES_MAX: usize = ALL_BYTES_MAX / 2;
/// The limit of one workspace: half of the host's limit.
const WORKSPACE_BYTES_MAX: usize = ALL_BYTES_MAX / 2;
/// The limit of one API key: the maximum size of a body, which is twice the maximum size of a file.
const KEY_BYTES_MAX: usize = 2 * FILE_BYTES_MAX;
/// The maximum length of the queue. A request behind this position would not get its turn within [`WAIT_MAX`].
const WAITING_MAX: usize = 1024;

/// Returns whether a request that holds this many bytes needs a turn.
#[must_use]
pub fn needs_turn(bytes: usize) -> bool {
    bytes >= FREE_BYTES
}

/// The turns of this host.
#[derive(Clone, Default)]
pub struct FileTurns(Arc<Mutex<Turns>>);

#[derive(Default)]
struct Turns {
    all: usize,
    workspaces: HashMap<WorkspaceId, usize>,
    keys: HashMap<KeyId, usize>,
    /// The waiting requests, in order of arrival.
    waiting: VecDeque<(Claim, oneshot::Sender<Turn>)>,
}

#[derive(Clone, Copy)]
struct Claim {
    workspace: WorkspaceId,
    key: KeyId,
    bytes: usize,
}

/// A turn of one request. Dropping the turn admits the next request.
pub struct Turn {
    turns: FileTurns,
    claim: Claim,
    is_returned: bool,
}

impl FileTurns {
    /// Waits for at most [`WAIT_MAX`] until the request may hold `bytes` bytes. Returns `None` after that time, or if
    /// too many requests wait.
    pub async fn enter(&self, workspace: WorkspaceId, key: KeyId, bytes: usize) -> Option<Turn> {
        let claim = Claim { workspace, key, bytes: bytes.min(KEY_BYTES_MAX) };
        let turn = {
            let mut turns = self.0.lock();
            if turns.has_room(claim) {
                turns.take(claim);
                return Some(self.turn(claim));
            }
            turns.waiting.retain(|(_, waiting)| !waiting.is_closed());
            if turns.waiting.len() >= WAITING_MAX {
                return None;
            }
            let (sender, turn) = oneshot::channel();
            turns.waiting.push_back((claim, sender));
            turn
        };
        // A turn that arrives too late is dropped with its channel. The drop returns the bytes of the turn.
        timeout(WAIT_MAX, turn).await.ok()?.ok()
    }

    fn turn(&self, claim: Claim) -> Turn {
        Turn { turns: self.clone(), claim, is_returned: false }
    }

    fn leave(&self, claim: Claim) {
        let mut turns = self.0.lock();
        turns.give_back(claim);
        let mut next = 0;
        while let Some((claim, _)) = turns.waiting.get(next) {
            let claim = *claim;
            if !turns.has_room(claim) {
                next += 1;
                continue;
            }
            let Some((_, waiting)) = turns.waiting.remove(next) else { return };
            turns.take(claim);
            if let Err(mut unwanted) = waiting.send(self.turn(claim)) {
                // The request was cancelled. Its turn must not return the bytes when it is dropped, because the drop
                // would lock the mutex a second time.
                unwanted.is_returned = true;
                turns.give_back(claim);
            }
        }
    }
}

impl Turns {
    fn has_room(&self, claim: Claim) -> bool {
        let of_workspace = self.workspaces.get(&claim.workspace).copied().unwrap_or(0);
        let of_key = self.keys.get(&claim.key).copied().unwrap_or(0);
        let all_max = if of_workspace == 0 { ALL_BYTES_MAX } else { SHARED_BYTES_MAX };
        self.all + claim.bytes <= all_max
            && of_workspace + claim.bytes <= WORKSPACE_BYTES_MAX
            && of_key + claim.bytes <= KEY_BYTES_MAX
    }

    fn take(&mut self, claim: Claim) {
        self.all += claim.bytes;
        *self.workspaces.entry(claim.workspace).or_default() += claim.bytes;
        *self.keys.entry(claim.key).or_default() += claim.bytes;
    }

    fn give_back(&mut self, claim: Claim) {
        self.all -= claim.bytes;
        subtract(&mut self.workspaces, &claim.workspace, claim.bytes);
        subtract(&mut self.keys, &claim.key, claim.bytes);
    }
}

/// Subtracts bytes from an entry, and removes the entry if it reaches zero.
fn subtract<K: Eq + Hash>(held: &mut HashMap<K, usize>, key: &K, bytes: usize) {
    if let Some(left) = held.get_mut(key) {
        *left -= bytes;
        if *left == 0 {
            held.remove(key);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_returned {
            self.turns.leave(self.claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 15_000_000;

    #[test]
    fn small_requests_need_no_turn() {
        assert!(!needs_turn(FREE_BYTES - 1));
        assert!(needs_turn(FREE_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn two_workspaces_do_not_block_a_third() {
        let turns = FileTurns::default();
        let mut held = Vec::new();
        for workspace in [WorkspaceId::new(), WorkspaceId::new()] {
            for key in [KeyId::new(), KeyId::new()] {
                for _ in 0..2 {
                    held.push(turns.enter(workspace, key, LARGE).await);
                }
            }
        }
        assert_eq!(
            held.iter().flatten().count(),
            5,
            "one workspace holds half, and the other workspace holds its first turn"
        );
        let others = [WorkspaceId::new(), WorkspaceId::new(), WorkspaceId::new()];
        for workspace in others {
            let turn = turns.enter(workspace, KeyId::new(), LARGE).await;
            assert!(turn.is_some(), "a workspace without a turn must get a turn");
            held.push(turn);
        }
        assert!(
            turns.enter(WorkspaceId::new(), KeyId::new(), LARGE).await.is_none(),
            "the host allows eight files of maximum size"
        );
        held.clear();
        let left = turns.0.lock();
        assert_eq!((left.all, left.workspaces.len(), left.keys.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_and_a_workspace_have_limits() {
        let turns = FileTurns::default();
        let (workspace, keys) = (WorkspaceId::new(), [KeyId::new(), KeyId::new(), KeyId::new()]);
        let enter = |key| turns.enter(workspace, key, FILE_BYTES_MAX);
        let mut held = vec![enter(keys[0]).await, enter(keys[0]).await];
        assert!(enter(keys[0]).await.is_none(), "a key may hold two files of maximum size");
        held.extend([enter(keys[1]).await, enter(keys[1]).await]);
        assert!(held.iter().all(Option::is_some));
        assert!(enter(keys[2]).await.is_none(), "a workspace may hold four files of maximum size");
        // A body of unknown length counts as a body of maximum size.
        held.clear();
        assert!(turns.enter(workspace, keys[0], usize::MAX).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_never_lost() {
        let turns = FileTurns::default();
        let (workspace, key) = (WorkspaceId::new(), KeyId::new());
        let first = turns.enter(workspace, key, KEY_BYTES_MAX).await;
        let wait = || {
            let turns = turns.clone();
            tokio::spawn(async move { turns.enter(workspace, key, KEY_BYTES_MAX).await })
        };
        let (gone, next, last) = (wait(), wait(), wait());
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        drop(first);
        let next = next.await.expect("the task must not panic");
        assert!(next.is_some(), "the next request must get the turn of a cancelled request");
        drop(next);
        assert!(last.await.expect("the task must not panic").is_some());
        assert_eq!(turns.0.lock().all, 0);
    }
}
