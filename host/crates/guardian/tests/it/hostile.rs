//! Inputs designed to be slow. The time limits are generous enough for a busy machine, but far shorter than the time
//! that backtracking would take.

use std::time::{Duration, Instant};

use monstrum_guardian::matching::{match_any, match_glob, match_path};
use monstrum_guardian::{Decision, PatternList, Question, VALUE_BYTES_MAX, compiled_bytes_max, decide_within};
use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Halt, Overrun, Status};
use serde_json::json;

use crate::support::{World, denial, dimension, repos};

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
fn runs_longer_than_the_search_table_are_found() {
    // The text has so many classes that the table has space for only 128 elements.
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

/// Returns a glob of 4 080 bytes. The matcher searches the whole value for every run except the first.
fn heavy(seed: char) -> String {
    let other = char::from_u32(seed as u32 + 1).unwrap();
    format!("*{}*", format!("[{seed}{other}]").repeat(1_019))
}

#[test]
fn a_value_over_the_limit_is_refused_before_it_is_matched() {
    let world = World::new().constrained(&[("repos", &["acme/*"])]);
    let fits = format!("acme/{}", "x".repeat(VALUE_BYTES_MAX - 5));
    assert_eq!(world.call(&json!({ "repo": fits })), Decision::Allow);
    let refusal = world.refusal(&json!({ "repo": format!("{fits}x") }));
    assert_eq!((refusal.status, refusal.rule.as_str()), (Status::ScopeViolation, "scope.repos"));
    assert_eq!(
        refusal.message,
        "Scope violation: repos has a value of 4097 bytes; at most 4096 bytes are compared with the patterns of a scope"
    );
    assert_eq!(
        refusal.smallest_change,
        "none: the value for scope repos must have at most 4096 bytes, unless every list for the scope has the \
         entry `*`"
    );
    // A value that is too long is also refused inside a list, even if another entry of the list would match.
    let refusal = world.refusal(&json!({ "repo": ["acme/x", "y".repeat(5_000)] }));
    assert_eq!(refusal.rule, "scope.repos");
}

#[test]
fn a_lone_star_and_an_unconstrained_dimension_allow_long_values() {
    let long = json!({ "repo": "x".repeat(1 << 20) });
    assert_eq!(World::new().call(&long), Decision::Allow, "unconstrained");
    for star in ["*", "**"] {
        assert_eq!(World::new().constrained(&[("repos", &["acme/*", star])]).call(&long), Decision::Allow, "{star}");
    }
    // Long values are allowed only if every list contains the star.
    let world = World::new().constrained(&[("repos", &["*"])]).constrained(&[("repos", &["x*"])]);
    assert_eq!(world.refusal(&long).rule, "scope.repos");
    // In path patterns and exact texts, a star has a different meaning.
    for mode in [MatchMode::Path, MatchMode::Exact] {
        let world = World { dimensions: vec![dimension("repos", &["repo"], mode)], ..World::new() };
        assert_eq!(world.constrained(&[("repos", &["*"])]).refusal(&long).rule, "scope.repos", "{mode:?}");
    }
}

#[test]
fn a_decision_ends_with_its_effort() {
    let patterns: Vec<String> = ('a'..='y').map(heavy).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let world = World { dimensions: vec![repos()], ..World::new() }.constrained(&[("repos", &patterns)]);
    let params = json!({ "repo": "ab".repeat(2_048) });
    let decided = |effort: &Effort| {
        world.with_subject(|subject| decide_within(subject, Question::Call(params.as_object().unwrap()), effort))
    };
    assert_eq!(decided(&Effort::of(32_768)), Err(Overrun::Steps));
    let halt = Halt::at(Instant::now());
    assert_eq!(decided(&Effort::until(u64::MAX, halt)), Err(Overrun::Deadline));
    let halt = Halt::at(Instant::now() + Duration::from_secs(3600));
    halt.cancel();
    assert_eq!(decided(&Effort::until(u64::MAX, halt)), Err(Overrun::Cancelled));
    let matched = decided(&Effort::of(u64::MAX)).unwrap();
    assert_eq!(matched, Decision::Allow, "the first pattern must match");
    // A typical decision uses only a small part of the budget.
    let world = World::new().constrained(&[("repos", &["acme/*", "acme-labs/*", "other/api"])]);
    let usual = json!({ "repo": "other/web" });
    let usual = world.with_subject(|subject| {
        let effort = Effort::of(8_192);
        decide_within(subject, Question::Call(usual.as_object().unwrap()), &effort)
    });
    assert_eq!(denial(usual.unwrap()).rule, "scope.repos");
}

#[test]
fn the_memory_of_a_pattern_is_known_before_it_is_compiled() {
    // Literals and simple globs use little more memory than their text.
    assert!(compiled_bytes_max("acme/api") < 400 && compiled_bytes_max("acme/*") < 600);
    // 680 consecutive sets need a table of 1 361 classes and 11 words.
    let sets: String = (0x4e00..0x4e00 + 680).filter_map(char::from_u32).map(|one| format!("[{one}x]")).collect();
    assert!(compiled_bytes_max(&format!("*{sets}*")) > 1_361 * 11 * 8);
    assert!(compiled_bytes_max(&"?".repeat(4_096)) <= (4 << 20) + 256 * 1_024);
}

proptest::proptest! {
    #[test]
    fn a_sufficient_budget_does_not_change_the_answer(
        patterns in proptest::collection::vec("[ab?*\\[\\]!/]{0,12}", 0..6),
        value in "[ab/]{0,20}",
    ) {
        for mode in [MatchMode::Pattern, MatchMode::Path, MatchMode::Exact] {
            let list = PatternList::new(patterns.iter().map(String::as_str));
            let set = monstrum_guardian::PatternSet::new(mode, &patterns);
            proptest::prop_assert_eq!(list.matches(mode, &value, &Effort::of(1 << 20)), Ok(set.matches(&value)));
        }
    }
}
