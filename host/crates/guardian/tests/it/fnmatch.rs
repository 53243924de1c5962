//! Checks on generated cases that globs have the semantics of Python's `fnmatch.fnmatchcase`.

use std::io::Write;
use std::process::{Command, Stdio};

use monstrum_guardian::matching::{Glob, escape_glob, match_any, match_glob};
use serde_json::Value;

/// The SDK's matcher. Plugins cannot link the host's matcher, so the SDK has a second matcher, which must give the same
/// results.
#[path = "../../../../../sdk-guest/src/glob.rs"]
#[expect(unreachable_pub, reason = "public in the SDK")]
mod sdk_glob;

const SCRIPT: &str = "
import fnmatch, json, sys, warnings
warnings.simplefilter('ignore')
json.dump([[fnmatch.fnmatchcase(value, pattern) for value in values] for pattern, values in json.load(sys.stdin)], sys.stdout)
";

type Cases = Vec<(String, Vec<String>)>;

/// A SplitMix64 generator, which produces the same cases on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    fn text(&mut self, pieces: &[&str], pieces_max: usize) -> String {
        (0..self.below(pieces_max + 1)).map(|_| pieces[self.below(pieces.len())]).collect()
    }
}

const PATTERN_PIECES: &[&str] = &[
    "[", "]", "!", "^", "-", "\\", "*", "?", "a", "b", "z", "/", ".", "\n", "é", "日", "😀", "&", "~", "|", "A", "0",
    "[a", "[!", "[z-a]", "[a-z]", "[!a-b]", "[]]", "[!]]", "[--a]", "[]-a]", "[a-]", "[-a]", "[^a]", "[&&a]", "a-c-",
    "(", ")", "$", "{", "}", "+", "#", " ", ",", "[é-日]",
];
/// Parts of sets. Sets have unusual rules.
const SET_PIECES: &[&str] =
    &["-", "-", "-", "!", "a", "b", "c", "z", "^", "\\", "&", "~", "|", "[", "]", "é", "\n", "0", ","];
const VALUE_PIECES: &[&str] = &[
    "a", "b", "c", "z", "-", "!", "^", "\\", "[", "]", "/", ".", "\n", "é", "日", "😀", "&", "~", "|", "A", "0", "*",
    "?", "", " ", ",", "ÿ", "(",
];

fn generated() -> Cases {
    let mut random = Random(20_261_121);
    let mut cases = Cases::new();
    for round in 0..9_000 {
        let pattern = match round % 3 {
            0 => random.text(PATTERN_PIECES, 6),
            1 => format!("[{}]", random.text(SET_PIECES, 7)),
            _ => {
                let (before, set) = (random.text(&["a", "*", "?", "b"], 3), random.text(SET_PIECES, 5));
                format!("{before}[{set}]{}", random.text(&["a", "*", "?", "b", "]"], 3))
            }
        };
        let values = match round % 3 {
            // All single characters that could be members of a set.
            1 => VALUE_PIECES.iter().map(|piece| (*piece).to_owned()).collect(),
            _ => (0..8).map(|_| random.text(VALUE_PIECES, 5)).chain([pattern.replace(['*', '?'], "a")]).collect(),
        };
        cases.push((pattern, values));
    }
    // These patterns consist of stars and few distinct letters. They are long enough that the positions of the runs
    // matter.
    for _ in 0..2_000 {
        let pattern = random.text(&["*", "*", "a", "b", "?", "[ab]", "[!a]", "ab", "ba"], 9);
        let values = (0..8).map(|_| random.text(&["a", "b", "a", "b", "c"], 14)).collect();
        cases.push((pattern, values));
    }
    cases
}

fn named() -> Cases {
    let patterns = [
        "", "*", "**", "?", "[z-a]", "[!z-a]", "[]]", "[!]]", "[--a]", "[---]", "[a", "[", "[!", "[!]", "[]", "[^a]",
        "[z-a!b]", "[z-a!]", "[z-a!-b]", "[z-a^b]", "[a-c-e]", "[a-cb-a]", "[\\]", "[\\-a]", "[a\\-z]", "[]-a]",
        "[]-Z]", "[!]-a]", "[&&]", "[a||b]", "[~~a-z]", "[[a]", "[[-a]", "[é-日]", "\\*", "a\nb", "[!\n]", "acme/*",
        "*/../*", "[a-bc-a]", "[!-]", "[!--]",
    ];
    let values: Vec<String> =
        VALUE_PIECES.iter().map(|piece| (*piece).to_owned()).chain(["acme/../../user".into()]).collect();
    patterns.iter().map(|pattern| ((*pattern).to_owned(), values.clone())).collect()
}

fn ask_python(cases: &Cases) -> Vec<Vec<bool>> {
    let mut python = Command::new("python3")
        .args(["-X", "utf8", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test compares with Python's fnmatch: python3 must be installed and on the PATH");
    let input = serde_json::to_vec(cases).unwrap();
    python.stdin.take().unwrap().write_all(&input).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "python3 failed with {}", output.status);
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(answers).unwrap()
}

#[test]
fn globs_agree_with_python() {
    let cases: Cases = generated().into_iter().chain(named()).collect();
    let compared: usize = cases.iter().map(|(_, values)| values.len()).sum();
    assert!(compared >= 10_000, "{compared}");
    let answers = ask_python(&cases);
    let mut matched = 0;
    for ((pattern, values), answers) in cases.iter().zip(answers) {
        for (value, expected) in values.iter().zip(answers) {
            assert_eq!(match_glob(value, pattern), expected, "value {value:?}, pattern {pattern:?}");
            assert_eq!(match_any(value, [pattern], false), expected, "value {value:?}, pattern {pattern:?}");
            assert_eq!(sdk_glob::matches(pattern, value), expected, "in plugins: value {value:?}, pattern {pattern:?}");
            matched += usize::from(expected);
        }
    }
    assert!(
        matched * 20 > compared && matched * 20 < compared * 19,
        "{matched} of {compared} cases match; at least 5 % must match and 5 % must not"
    );
}

#[test]
fn an_escaped_text_matches_only_itself() {
    let mut random = Random(7);
    for _ in 0..2_000 {
        let (text, other) = (random.text(PATTERN_PIECES, 5), random.text(VALUE_PIECES, 5));
        let glob = Glob::new(&escape_glob(&text));
        assert_eq!(glob.literal(), Some(text.as_str()));
        assert_eq!(glob.matches(&other), text == other);
    }
}
