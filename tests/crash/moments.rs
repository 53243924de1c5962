//! Kills and power cuts at random moments of a server under load. `cargo xtask soak --crash` runs more of them.

use std::time::Duration;

use anyhow::Result;
use support::{CrashTest, Fault};

const ROUNDS: usize = 8;
/// Together with the kill or the stop of each round, there are 40 moments.
const CUTS_PER_ROUND: usize = 4;
const LOAD_MAX: Duration = Duration::from_millis(1_500);
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_lost_at_any_of_forty_moments() -> Result<()> {
    let mut test = CrashTest::prepare(SEED, LOAD_MAX).await?;
    for _ in 0..ROUNDS {
        test.round(CUTS_PER_ROUND).await?;
    }
    let totals = test.totals();
    println!("{totals}");
    assert_eq!(totals.moments(), 40);
    // Otherwise, the moments would prove nothing.
    assert!(totals.answered.iter().all(|answers| *answers > 0), "{totals}");
    assert!(totals.lossy_cuts > 0 && totals.interrupted > 0, "{totals}");
    Ok(())
}

/// The test finds a server whose writes are lost although it has answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_ignores_syncs_is_a_fault() -> Result<()> {
    let mut test = CrashTest::prepare(SEED, LOAD_MAX).await?.on_a_disk_that_ignores_syncs();
    for _ in 0..ROUNDS {
        // A round finds no fault if all its power cuts lose little.
        if let Err(error) = test.round(CUTS_PER_ROUND).await {
            assert!(error.downcast_ref::<Fault>().is_some(), "{error:?}");
            return Ok(());
        }
    }
    panic!("no fault was found: {}", test.totals());
}
