//! Compares computation in a guest under all limits (fuel, epoch, bounded memory) with the same code compiled natively.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::governed::{Host, check};
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};

#[path = "../../plugins-wasm/test-cpu/src/work.rs"]
mod work;

pub const PLUGIN: &str = "test-cpu";

const ROUNDS: usize = 15;
/// The number of rounds in which the guest hashes 6 MiB. They use about a third of a call's fuel, and take some hundred
/// times as long as the call itself.
const HASH_ROUNDS: u32 = 96;
const REPRINT_ROUNDS: u32 = 2_000;

/// Measures computation in the guest and returns the rows.
pub async fn measure(host: Arc<Host>) -> Result<Vec<Row>> {
    let hash = rounds(&host, "test_cpu_sha256", HASH_ROUNDS, |rounds| work::hash(rounds).into()).await?;
    let reprint = rounds(&host, "test_cpu_json", REPRINT_ROUNDS, work::reprint).await?;
    let hashed = f64::from(HASH_ROUNDS) * work::HASHED_BYTES as f64 / f64::from(1 << 20);
    let hash_name = format!("guest: sha256 of {hashed:.0} MiB, all limits on");
    let reprint_name = format!("guest: {REPRINT_ROUNDS} x 1 KB of JSON parsed and printed, all limits on");
    let native = "the same code native, scalar";
    Ok(vec![
        Row::new((&hash_name, native), Measure::Time, &hash, "<= 1.4 x", |ratio, _| ratio <= 1.4),
        Row::new((&reprint_name, native), Measure::Time, &reprint, "<= 2.2 x", |ratio, _| ratio <= 2.2),
    ])
}

async fn rounds(host: &Host, tool: &str, work_rounds: u32, native: impl Fn(u32) -> u64) -> Result<Rounds> {
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let expected = native(std::hint::black_box(work_rounds));
        let floor = began.elapsed();

        let call = host.call_of(tool, &json!({ "rounds": work_rounds }));
        let began = Instant::now();
        let ending = host.app().calls.govern(call, CancellationToken::new()).await?;
        let subject = began.elapsed();
        let outcome = ending.committed().await?.outcome;
        check(&outcome)?;
        let computed = outcome.data.context("the successful call has no data")?.value()["sum"].as_u64();
        ensure!(computed == Some(expected), "the guest computed {computed:?}, the native code {expected}");
        // The first round warms up the caches.
        if round > 0 {
            rounds.add(Sample::new(vec![subject], subject), Sample::new(vec![floor], floor));
        }
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::work::sha256;

    #[test]
    fn what_is_timed_is_sha256() {
        for length in [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000] {
            let input = vec![0xa7; length];
            let digest: Vec<u8> = sha256(&input).iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(digest, Sha256::digest(&input).to_vec(), "{length} bytes");
        }
    }
}
