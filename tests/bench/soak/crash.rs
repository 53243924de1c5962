//! `soak --crash`: kills and power cuts of a loaded server at many moments.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use support::CrashTest;

/// The number of power cuts after each kill or stop.
const CUTS_PER_ROUND: usize = 9;
const LOAD_MAX: Duration = Duration::from_secs(2);
/// The number of rounds per line of output.
const ROUNDS_PER_LINE: usize = 5;

/// Tests at least `moments` moments. Fails at the first fault, and prints how to repeat it.
pub(super) async fn run(moments: usize, seed: u64) -> Result<()> {
    println!("{moments} kills and power cuts, seed {seed}");
    let began = Instant::now();
    let mut test = CrashTest::prepare(seed, LOAD_MAX).await?;
    let mut rounds = 0_usize;
    while test.totals().moments() < moments {
        let cuts = CUTS_PER_ROUND.min(moments - test.totals().moments() - 1);
        if let Err(error) = test.round(cuts).await {
            let next = test.totals().moments() + 1;
            println!("  {}", test.totals());
            bail!("{error:#}\nto repeat it: cargo xtask soak --crash --seed {seed} --moments {}", next.max(moments));
        }
        rounds += 1;
        if rounds.is_multiple_of(ROUNDS_PER_LINE) {
            println!("  {:4} moments, {:.0} s", test.totals().moments(), began.elapsed().as_secs_f64());
        }
    }
    let totals = test.totals();
    println!("{totals}");
    ensure!(totals.answered.iter().all(|answers| *answers > 0), "a kind of request was never answered");
    println!("the crash test succeeded: {} moments in {:.0} s", totals.moments(), began.elapsed().as_secs_f64());
    Ok(())
}
