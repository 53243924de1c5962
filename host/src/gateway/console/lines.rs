//! The difference between two texts, line by line, with the lines around each change.

use crate::gateway::console::text::Text;

/// The number of equal lines that are shown before and after a change.
const AROUND: usize = 2;
/// The maximum size of the table in which equal lines are searched. Larger texts are shown one after the other.
const CELLS_MAX: usize = 1 << 18;

/// What a line of a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Same,
    Removed,
    Added,
    /// Stands for equal lines that are left out.
    Gap,
}

/// A line of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub kind: Kind,
    pub text: Text,
}

impl Line {
    /// Returns the class of the line in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        match self.kind {
            Kind::Same => "same",
            Kind::Removed => "removed",
            Kind::Added => "added",
            Kind::Gap => "gap",
        }
    }

    /// Returns the sign at the start of the line.
    pub(super) fn sign(&self) -> &'static str {
        match self.kind {
            Kind::Same => "  ",
            Kind::Removed => "− ",
            Kind::Added => "+ ",
            Kind::Gap => "  …",
        }
    }
}

/// Compares two texts, with the lines around each change.
pub(super) fn difference(before: &str, after: &str) -> Vec<Line> {
    folded(&compared(before, after))
}

/// Compares two texts, with all of their lines.
pub(super) fn whole_difference(before: &str, after: &str) -> Vec<Line> {
    compared(before, after).into_iter().map(|(kind, text)| Line { kind, text: text.into() }).collect()
}

fn compared<'a>(before: &'a str, after: &'a str) -> Vec<(Kind, &'a str)> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let start = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let (old_rest, new_rest) = (&old[start..], &new[start..]);
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(one, other)| one == other).count();
    let (old_middle, new_middle) = (&old_rest[..old_rest.len() - end], &new_rest[..new_rest.len() - end]);
    let mut lines: Vec<(Kind, &str)> = old[..start].iter().map(|line| (Kind::Same, *line)).collect();
    compare(old_middle, new_middle, &mut lines);
    lines.extend(old[old.len() - end..].iter().map(|line| (Kind::Same, *line)));
    lines
}

/// Compares two lists of lines by their longest common subsequence.
fn compare<'a>(old: &[&'a str], new: &[&'a str], lines: &mut Vec<(Kind, &'a str)>) {
    let (mut i, mut j) = (0, 0);
    let width = new.len() + 1;
    let cells = (old.len() + 1).saturating_mul(width);
    if cells <= CELLS_MAX {
        // The length of the longest common subsequence of the rests that start at these lines.
        let mut common = vec![0_u32; cells];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                common[i * width + j] = if old[i] == new[j] {
                    common[(i + 1) * width + j + 1] + 1
                } else {
                    common[(i + 1) * width + j].max(common[i * width + j + 1])
                };
            }
        }
        while i < old.len() && j < new.len() {
            if old[i] == new[j] {
                lines.push((Kind::Same, old[i]));
                (i, j) = (i + 1, j + 1);
            } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
                lines.push((Kind::Removed, old[i]));
                i += 1;
            } else {
                lines.push((Kind::Added, new[j]));
                j += 1;
            }
        }
    }
    lines.extend(old[i..].iter().map(|line| (Kind::Removed, *line)));
    lines.extend(new[j..].iter().map(|line| (Kind::Added, *line)));
}

/// Replaces equal lines that are not near a change with one gap.
fn folded(lines: &[(Kind, &str)]) -> Vec<Line> {
    let is_near = |at: usize| {
        let near = at.saturating_sub(AROUND)..(at + AROUND + 1).min(lines.len());
        lines[near].iter().any(|(kind, _)| *kind != Kind::Same)
    };
    let mut shown: Vec<Line> = Vec::new();
    for (at, (kind, text)) in lines.iter().enumerate() {
        if is_near(at) {
            shown.push(Line { kind: *kind, text: (*text).into() });
        } else if shown.last().is_none_or(|line| line.kind != Kind::Gap) {
            shown.push(Line { kind: Kind::Gap, text: Text::default() });
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &str, after: &str) -> Vec<String> {
        difference(before, after).iter().map(|line| format!("{}{}", line.sign(), line.text)).collect()
    }

    #[test]
    fn a_change_is_shown_with_the_lines_around_it() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9";
        let after = "1\n2\n3\n4\nfive\n6\n7\n8\n9";
        assert_eq!(shown(before, after), ["  …", "  3", "  4", "− 5", "+ five", "  6", "  7", "  …"]);
        assert_eq!(shown("a\nb\nc", "b\nc\nd"), ["− a", "  b", "  c", "+ d"]);
    }

    #[test]
    fn a_whole_difference_leaves_no_line_out() {
        let lines = whole_difference("1\n2\n3\n4\n5\n6", "1\n2\n3\n4\n5\nsix");
        let shown: Vec<String> = lines.iter().map(|line| format!("{}{}", line.sign(), line.text)).collect();
        assert_eq!(shown, ["  1", "  2", "  3", "  4", "  5", "− 6", "+ six"]);
    }

    #[test]
    fn a_text_that_is_new_or_gone_is_shown_whole() {
        assert_eq!(shown("", "a\nb"), ["+ a", "+ b"]);
        assert_eq!(shown("a\nb", ""), ["− a", "− b"]);
        assert_eq!(shown("", ""), Vec::<String>::new());
    }

    #[test]
    fn texts_that_are_too_long_to_compare_are_shown_one_after_the_other() {
        let text = |word: &str| (0..600).map(|number| format!("{word}{number}\nsame\n")).collect::<String>();
        let lines = difference(&text("a"), &text("b"));
        let first_added = lines.iter().position(|line| line.kind == Kind::Added).unwrap();
        assert!(lines[..first_added].iter().all(|line| line.kind == Kind::Removed));
        assert_eq!(lines.iter().filter(|line| line.kind == Kind::Removed).count(), 1199);
    }

    #[test]
    fn invisible_characters_of_a_line_are_written_out() {
        assert_eq!(shown("", "a\u{202e}b"), ["+ a\\u{202e}b"]);
    }
}
