//! The computations. The benchmarks also compile this file natively, to compare a guest with the same native code.
//! Hashing is implemented in plain arithmetic, because the native build of a library would use processor instructions
//! that are not available to a guest.

use std::hint::black_box;

/// The number of bytes that are hashed in each round.
pub(crate) const HASHED_BYTES: usize = 64 << 10;

/// Hashes [`HASHED_BYTES`] bytes in each round, and returns a number that depends on all digests.
pub(crate) fn hash(rounds: u32) -> u32 {
    let input: Vec<u8> = (0..HASHED_BYTES).map(|number| (number.wrapping_mul(31) >> 3) as u8).collect();
    (0..rounds).fold(0_u32, |sum, _| sum.rotate_left(1) ^ sha256(black_box(&input))[0])
}

/// Parses and serializes about 1 KB of JSON in each round, and returns the number of serialized bytes. The JSON has no
/// fractions, because the guest build and the native build of `serde_json` parse fractions differently.
pub(crate) fn reprint(rounds: u32) -> u64 {
    let item = |number: u32| {
        serde_json::json!({
            "id": 40_000 + number, "title": format!("The {number}. of \"some\" items"), "open": number.is_multiple_of(2),
            "labels": ["bug", "help wanted"], "score": number * 7,
        })
    };
    let document = serde_json::json!({ "items": (0..9).map(item).collect::<Vec<_>>() }).to_string();
    let printed = |_| match serde_json::from_str::<serde_json::Value>(black_box(&document)) {
        Ok(value) => value.to_string().len() as u64,
        Err(_) => 0,
    };
    (0..rounds).map(printed).sum()
}

const INITIAL: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

#[rustfmt::skip]
const ROUND_CONSTANTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// SHA-256 (FIPS 180-4).
pub(crate) fn sha256(input: &[u8]) -> [u32; 8] {
    let mut state = INITIAL;
    let mut blocks = input.chunks_exact(64);
    for block in &mut blocks {
        compress(&mut state, block);
    }
    let rest = blocks.remainder();
    let mut last = [0; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let length = if rest.len() < 56 { 64 } else { 128 };
    last[length - 8..length].copy_from_slice(&(input.len() as u64 * 8).to_be_bytes());
    for block in last[..length].chunks_exact(64) {
        compress(&mut state, block);
    }
    state
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (early, late) = (words[at - 15], words[at - 2]);
        let early = early.rotate_right(7) ^ early.rotate_right(18) ^ (early >> 3);
        let late = late.rotate_right(17) ^ late.rotate_right(19) ^ (late >> 10);
        words[at] = words[at - 16].wrapping_add(early).wrapping_add(words[at - 7]).wrapping_add(late);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, constant) in words.into_iter().zip(ROUND_CONSTANTS) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let one = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(constant).wrapping_add(word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let two = sum.wrapping_add(majority);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(one), c, b, a, one.wrapping_add(two));
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(more);
    }
}
