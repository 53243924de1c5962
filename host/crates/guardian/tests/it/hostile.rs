//! Inputs made to be slow. The bounds are far above what is needed even on a busy machine, and far below
//! what backtracking would take.

use std::time::{Duration, Instant};

use monstrum_guardian::matching::{match_any, match_glob, match_path};

const MIB: usize = 1 << 20;
const AT_MOST: Duration = Duration::from_secs(30);

fn quickly<R>(name: &str, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < AT_MOST, "{name} took {:?}", start.elapsed());
    result
}

#[test]
fn globs_do_not_backtrack() {
    let value = "a".repeat(MIB);
    for (name, pattern) in [
        ("stars", format!("{}b", "*a".repeat(500))),
        ("stars in front of every letter", format!("{}b*", "*a".repeat(500))),
        ("one long run", format!("*{}b*", "a".repeat(50_000))),
        ("question marks", format!("*{}b*", "?".repeat(1_500))),
        ("sets", format!("*{}b*", "[!c]".repeat(60))),
        ("sets between stars", "*[!b]".repeat(500) + "b"),
        ("a long end", format!("*{}b", "[a-z]".repeat(10_000))),
    ] {
        assert!(!quickly(name, || match_glob(&value, &pattern)), "{name}");
        assert!(!quickly(name, || match_any(&value, [&pattern], true)), "{name}");
    }
    assert!(quickly("a match", || match_glob(&value, &"*a?".repeat(500))));
}

#[test]
fn runs_longer_than_the_search_holds_are_found() {
    // As many classes as it takes to make room for 128 elements only.
    let crowd: String = (0x1_0000..0x7_8000).step_by(2).filter_map(char::from_u32).collect();
    let run = format!("[ab{crowd}]{}", "[ab]".repeat(1_499));
    assert!(match_glob(&format!("x{}y", "ab".repeat(800)), &format!("*{run}*")));
    assert!(!match_glob(&format!("x{}y", "ab".repeat(749)), &format!("*{run}*")));
    assert!(match_glob(&format!("{}c{}!", "a".repeat(1_400), "b".repeat(1_501)), &format!("*{run}[!]c-d]*!")));
}

#[test]
fn patterns_compile_in_linear_time() {
    for piece in ["[", "[!", "[]", "*", "[z-a", "a-b", "[z-a]"] {
        let pattern = piece.repeat(200_000);
        quickly(piece, || match_glob("x", &pattern));
        quickly(piece, || match_glob("x", &format!("[{pattern}]")));
        quickly(piece, || match_path("x", &pattern));
    }
}

#[test]
fn paths_do_not_backtrack() {
    let deep = "/a".repeat(MIB / 2);
    for (name, pattern) in [
        ("recursive", format!("{}/b", "/**/a".repeat(500))),
        ("levels", format!("/**{}/b/**", "/?".repeat(20))),
        ("a long run that begins in vain", format!("/**{}/b/**", "/a".repeat(2_000))),
        ("a run that no path holds", format!("/**{}/**", "/a".repeat(3_000))),
        ("prefix", format!("{}/b", "/a".repeat(10_000))),
    ] {
        assert!(!quickly(name, || match_path(&deep, &pattern)), "{name}");
    }
    assert!(quickly("dots", || match_path(&"a/../".repeat(MIB / 5), ".")));
    assert!(quickly("slashes", || match_path(&"/".repeat(MIB), "/")));
}
