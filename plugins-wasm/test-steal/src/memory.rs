//! A search of the guest's whole memory.
//!
//! A pattern is the hex of its reversed bytes. The original order is never restored in memory, so that the search does
//! not find its own patterns.

#![allow(unsafe_code, reason = "the purpose of this guest is to read all of its memory")]

use monstrum_sdk::{Error, Value, json};

const PAGE_BYTES: usize = 65_536;

/// Counts the occurrences of each pattern in the memory. A pattern is the hex of its reversed bytes.
pub(crate) fn search(patterns: &[String]) -> Result<Value, Error> {
    let reversed = patterns.iter().map(|hex| bytes(hex)).collect::<Option<Vec<Vec<u8>>>>();
    let reversed = reversed.ok_or_else(|| Error::message("a pattern is not hex"))?;
    let mut starts = [false; 256];
    for first in reversed.iter().filter_map(|pattern| pattern.last()) {
        starts[usize::from(*first)] = true;
    }
    let size = core::arch::wasm32::memory_size(0) * PAGE_BYTES;
    let mut hits = vec![0_u32; reversed.len()];
    // Address 0 is skipped, because Rust does not allow reading from it.
    for at in 1..size {
        if starts[usize::from(byte(at))] {
            for (pattern, hits) in reversed.iter().zip(&mut hits) {
                *hits += u32::from(at + pattern.len() <= size && is_at(pattern, at));
            }
        }
    }
    Ok(json!({ "bytes": size, "hits": hits }))
}

fn is_at(reversed: &[u8], at: usize) -> bool {
    reversed.iter().rev().enumerate().all(|(offset, wanted)| byte(at + offset) == *wanted)
}

fn byte(at: usize) -> u8 {
    // SAFETY: callers pass an address below the size of the memory, and all of the memory is readable. The read is
    // volatile, because much of the memory does not belong to objects that the compiler knows.
    unsafe { core::ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
