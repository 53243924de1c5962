//! The search among the tools of a bot that has too many for one request.
//!
//! The score is BM25 over the words of names and descriptions. A bot has some hundreds of tools, and a search runs once in
//! a while, so the scores are computed anew each time and need no index and no library for one.

use std::collections::{HashMap, HashSet};

use monstrum_core::call_types::round::RoundTool;

/// The usual constants of BM25: how fast further occurrences of a word lose weight, and how much long texts do.
const SATURATION: f64 = 1.2;
const LENGTH_WEIGHT: f64 = 0.75;
/// A word of a name counts as often as this in the text of its tool: a name says what a tool does.
const NAME_WEIGHT: usize = 3;
/// The maximum number of words of a query, and of a description, that count.
const WORDS_MAX: usize = 200;

/// Returns the tools that fit a query, best first.
pub(crate) fn found<'a>(tools: &[&'a RoundTool], query: &str) -> Vec<&'a RoundTool> {
    let texts: Vec<HashMap<String, usize>> = tools.iter().map(|tool| counted(tool)).collect();
    let lengths: Vec<usize> = texts.iter().map(|text| text.values().sum()).collect();
    let mean = as_number(lengths.iter().sum()) / as_number(tools.len().max(1));
    let words: HashSet<String> = words(query).collect();
    let mut scored: Vec<(f64, &RoundTool)> = Vec::new();
    let rarity: HashMap<&String, f64> = words
        .iter()
        .map(|word| {
            let with = as_number(texts.iter().filter(|text| text.contains_key(word)).count());
            (word, ((as_number(tools.len()) - with + 0.5) / (with + 0.5)).ln_1p())
        })
        .collect();
    for ((tool, text), length) in tools.iter().copied().zip(&texts).zip(&lengths) {
        let longer = 1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * as_number(*length) / mean.max(1.0);
        let score: f64 = rarity
            .iter()
            .filter_map(|(word, rarity)| {
                let times = as_number(*text.get(*word)?);
                Some(rarity * times * (SATURATION + 1.0) / (times + SATURATION * longer))
            })
            .sum();
        if score > 0.0 {
            scored.push((score, tool));
        }
    }
    scored.sort_by(|(one, a), (other, b)| other.total_cmp(one).then_with(|| a.name.cmp(&b.name)));
    scored.into_iter().map(|(_, tool)| tool).collect()
}

fn counted(tool: &RoundTool) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for word in words(&tool.name) {
        *counts.entry(word).or_default() += NAME_WEIGHT;
    }
    for word in words(&tool.description) {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

/// Returns the words of a text: runs of letters and digits in lower case, so that a name is cut at `_` and `.`.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.take(WORDS_MAX).map(str::to_lowercase)
}

fn as_number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, description: &str) -> RoundTool {
        RoundTool { name: name.to_owned(), description: description.to_owned(), parameters: json!({}) }
    }

    #[test]
    fn names_and_rare_words_decide() {
        let tools = [
            tool("github_list_issues", "Lists the issues of a repository."),
            tool("github_create_issue", "Creates an issue in a repository."),
            tool("wiki_page.read", "Reads a page, for example about an issue."),
            tool("mail_send", "Sends a message."),
        ];
        let tools: Vec<&RoundTool> = tools.iter().collect();
        let names = |query: &str| found(&tools, query).iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("Create an ISSUE")[0], "github_create_issue");
        assert_eq!(names("page")[0], "wiki_page.read");
        assert_eq!(names("send message"), ["mail_send"]);
        assert_eq!(names("list repository")[0], "github_list_issues");
        assert!(names("calendar").is_empty() && names("").is_empty());
        assert!(found(&[], "issue").is_empty());
    }
}
