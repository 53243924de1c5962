//! Checks the nesting depth of YAML text before the parser runs. The parser takes time quadratic in the depth of flow
//! collections, and applies its own limit only after it has scanned the whole text.
//!
//! The scanner finds tokens by the parser's rules. A plain count of brackets would include the brackets in strings,
//! comments and block scalars. Closing brackets in such text could also hide real brackets.

/// The position at which a text exceeds the limit. Lines and columns are counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooDeep {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Rejects text with collections nested deeper than `depth_max` levels.
pub(crate) fn check_nesting(text: &str, depth_max: usize) -> Result<(), TooDeep> {
    let chars: Vec<char> = text.strip_prefix('\u{feff}').unwrap_or(text).chars().collect();
    let mut scanner =
        Scanner { chars: &chars, at: 0, line: 0, column: 0, indents: Vec::new(), flow: 0, key: None, depth_max };
    while scanner.skip_to_token() {
        scanner.token()?;
    }
    Ok(())
}

struct Scanner<'a> {
    chars: &'a [char],
    at: usize,
    line: usize,
    column: usize,
    /// The columns of the open block collections.
    indents: Vec<usize>,
    /// The number of open flow collections.
    flow: usize,
    /// The column of a possible key on the current line.
    key: Option<usize>,
    depth_max: usize,
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

impl Scanner<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Returns whether offset `ahead` is at a blank, at a line break or at the end of the text.
    fn is_blank_at(&self, ahead: usize) -> bool {
        self.peek(ahead).is_none_or(|c| c == ' ' || c == '\t' || is_break(c))
    }

    fn advance(&mut self) {
        let Some(c) = self.peek(0) else { return };
        self.at += 1;
        if is_break(c) {
            if c == '\r' && self.peek(0) == Some('\n') {
                self.at += 1;
            }
            self.line += 1;
            self.column = 0;
            if self.flow == 0 {
                self.key = None;
            }
        } else {
            self.column += 1;
        }
    }

    fn advance_by(&mut self, count: usize) {
        for _ in 0..count {
            self.advance();
        }
    }

    fn advance_while(&mut self, accepts: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&accepts) {
            self.advance();
        }
    }

    fn skip_line(&mut self) {
        self.advance_while(|c| !is_break(c));
    }

    /// Moves to the next token. Returns false at the end of the text.
    fn skip_to_token(&mut self) -> bool {
        while let Some(c) = self.peek(0) {
            match c {
                '#' => self.skip_line(),
                ' ' | '\t' => self.advance(),
                c if is_break(c) => self.advance(),
                _ => return true,
            }
        }
        false
    }

    fn is_document_mark(&self) -> bool {
        self.column == 0
            && matches!(
                (self.peek(0), self.peek(1), self.peek(2)),
                (Some('-'), Some('-'), Some('-')) | (Some('.'), Some('.'), Some('.'))
            )
            && self.is_blank_at(3)
    }

    fn token(&mut self) -> Result<(), TooDeep> {
        if self.flow == 0 {
            while self.indents.last().is_some_and(|indent| *indent > self.column) {
                self.indents.pop();
            }
        }
        if self.is_document_mark() {
            self.indents.clear();
            self.advance_by(3);
            return Ok(());
        }
        let Some(c) = self.peek(0) else { return Ok(()) };
        match c {
            '%' if self.column == 0 => self.skip_line(),
            '[' | '{' => {
                self.start_key();
                self.flow += 1;
                self.check()?;
                self.advance();
            }
            ']' | '}' => {
                self.flow = self.flow.saturating_sub(1);
                self.advance();
            }
            ',' => self.advance(),
            '-' if self.flow == 0 && self.is_blank_at(1) => self.indicator(self.column)?,
            '?' if self.flow > 0 || self.is_blank_at(1) => self.indicator(self.column)?,
            ':' if self.flow > 0 || self.is_blank_at(1) => self.indicator(self.key.unwrap_or(self.column))?,
            '*' | '&' => {
                self.start_key();
                self.advance();
                self.advance_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            }
            '!' => self.tag(),
            '|' | '>' if self.flow == 0 => self.block_scalar(),
            '\'' | '"' => self.quoted(c),
            _ => self.plain(),
        }
        Ok(())
    }

    fn start_key(&mut self) {
        if self.flow == 0 && self.key.is_none() {
            self.key = Some(self.column);
        }
    }

    /// Handles an indicator, which opens a block collection at `column` unless a block collection is already open
    /// there.
    fn indicator(&mut self, column: usize) -> Result<(), TooDeep> {
        if self.flow == 0 {
            if self.indents.last().is_none_or(|indent| *indent < column) {
                self.indents.push(column);
                self.check()?;
            }
            self.key = None;
        }
        self.advance();
        Ok(())
    }

    fn check(&self) -> Result<(), TooDeep> {
        if self.flow + self.indents.len() > self.depth_max {
            return Err(TooDeep { line: self.line + 1, column: self.column + 1 });
        }
        Ok(())
    }

    fn tag(&mut self) {
        self.start_key();
        if self.peek(1) == Some('<') {
            self.advance_while(|c| c != '>' && !is_break(c));
        }
        self.advance();
        self.advance_while(|c| !c.is_whitespace() && !is_break(c) && !matches!(c, ',' | '[' | ']' | '{' | '}'));
    }

    fn quoted(&mut self, quote: char) {
        self.start_key();
        self.advance();
        while let Some(c) = self.peek(0) {
            if quote == '"' && c == '\\' {
                self.advance_by(2);
            } else if c != quote {
                self.advance();
            } else if quote == '\'' && self.peek(1) == Some('\'') {
                self.advance_by(2);
            } else {
                self.advance();
                return;
            }
        }
    }

    /// Returns the smallest column in which a line that continues a scalar of the current block may start.
    fn inner_column(&self) -> usize {
        self.indents.last().map_or(0, |indent| indent + 1)
    }

    fn plain(&mut self) {
        self.start_key();
        let inner = self.inner_column();
        let flow = self.flow > 0;
        let mut first = true;
        loop {
            if !first && (self.peek(0) == Some('#') || self.is_document_mark()) {
                return;
            }
            while let Some(c) = self.peek(0) {
                let ends = match c {
                    ' ' | '\t' => true,
                    c if is_break(c) => true,
                    ':' => {
                        self.is_blank_at(1) || (flow && matches!(self.peek(1), Some(',' | '?' | '[' | ']' | '{' | '}')))
                    }
                    ',' | '[' | ']' | '{' | '}' => flow,
                    _ => false,
                };
                if ends && !first {
                    break;
                }
                first = false;
                self.advance();
            }
            if !self.peek(0).is_some_and(|c| c == ' ' || c == '\t' || is_break(c)) {
                return;
            }
            // A key cannot span lines: `advance` discards the key position at a line break.
            self.advance_while(|c| c == ' ' || c == '\t' || is_break(c));
            if !flow && self.column < inner {
                return;
            }
        }
    }

    fn block_scalar(&mut self) {
        self.advance();
        let mut explicit = None;
        while let Some(c @ ('+' | '-' | '0'..='9')) = self.peek(0) {
            explicit = c.to_digit(10).map(|digit| digit as usize).or(explicit);
            self.advance();
        }
        self.skip_line();
        self.advance();
        let parent = self.indents.last().copied();
        let indent = match explicit {
            Some(more) => parent.unwrap_or(0) + more,
            None => self.detected_indent().max(parent.map_or(1, |parent| parent + 1)),
        };
        while self.peek(0).is_some() {
            while self.column < indent && self.peek(0) == Some(' ') {
                self.advance();
            }
            if self.column < indent && self.peek(0).is_some_and(|c| !is_break(c)) {
                return;
            }
            self.skip_line();
            self.advance();
        }
    }

    /// Returns the indentation of the first non-blank line, or the indentation of a preceding blank line if that is
    /// larger.
    fn detected_indent(&self) -> usize {
        let (mut widest, mut width) = (0, 0);
        for c in &self.chars[self.at..] {
            match c {
                ' ' => width += 1,
                c if is_break(*c) => width = 0,
                _ => return widest.max(width),
            }
            widest = widest.max(width);
        }
        widest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_deep(text: &str, depth_max: usize) -> bool {
        check_nesting(text, depth_max).is_err()
    }

    #[test]
    fn brackets_in_scalars_and_comments_do_not_count() {
        for text in [
            "a: b [[[[[",
            "a: \"[[[[[\"",
            "a: '[[[[[''[[['",
            "a: b # [[[[[",
            "# [[[[[\na: b",
            "a: |\n  [[[[[\n  [[[[\nb: c",
            "a: >-\n\n    [[[[[\n\n    [[[[\nb: c",
            "a:\n  - |2\n    [[[[[\n    [[[[\nb: c",
            "a: b\n  [[[[[ c",
            "[]: a\n[b]: c [[[[[",
            "a: [b, 'c]', \"d]\", e # ]\n  , f]\ng: [h]",
            "%TAG ! [[[[[\n---\na: b",
            "\u{feff}a: b [[[[[",
        ] {
            assert!(!is_deep(text, 3), "{text}");
        }
    }

    /// Returns the depth of a parsed value.
    fn parsed_depth(value: &serde_yaml::Value) -> usize {
        match value {
            serde_yaml::Value::Sequence(items) => 1 + items.iter().map(parsed_depth).max().unwrap_or(0),
            serde_yaml::Value::Mapping(map) => {
                1 + map.iter().map(|(key, value)| parsed_depth(key).max(parsed_depth(value))).max().unwrap_or(0)
            }
            serde_yaml::Value::Tagged(tagged) => parsed_depth(&tagged.value),
            _ => 0,
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 1_024, ..Default::default() })]

        #[test]
        fn the_scanner_agrees_with_the_parser(
            text in "((\\n( ){0,4})?([a-c]: |[a-c]: |[a-c]|- |\\? |\\[|\\]|\\{|\\}|, |,|'|\"|#| #|&a |!t |\\|2?\\n|>-\\n|\\\\|:|\\u{85}|é)){0,24}"
        ) {
            if let Ok(value) = serde_yaml::from_str::<serde_yaml::Value>(&text) {
                let depth = parsed_depth(&value);
                // The scanner does not count two kinds of levels, because no token opens them: a list at the same
                // column as its key, and the mapping in `[a: b]`.
                proptest::prop_assert!(check_nesting(&text, depth).is_ok(), "too many levels: {text:?}");
                let is_too_deep = depth < 3 || check_nesting(&text, depth / 2 - 1).is_err();
                proptest::prop_assert!(is_too_deep, "too few levels: {text:?}");
            }
        }
    }

    #[test]
    fn hidden_nesting_is_found() {
        for text in [
            "[[[[[[",
            "{a: {b: {c: {d: {e: f}}}}}",
            "[{[{[{",
            "- - - - - - a",
            "? ? ? ? ? ? a",
            "a:\n b:\n  c:\n   d:\n    e: f",
            "a: [ # ]]]]]\n [ # ]]]]]\n [ # ]]]]]\n [ # ]]]]]\n",
            "a: [\"]\", [\"]\", [\"]\", [\"]\", []]]]]",
            "a: [']', [']', [']', [']', []]]]]",
            "x: |\n  ]]]]\ny: [[[[[",
            "- !t [[[[[",
            "- &a [[[[[",
            "a: b\n[[[[[",
            "a: |\n\n b ]]]]\n[[[[[",
            "[a]: [[[[[",
            "'a': [[[[[",
            "? |\n  ]]]\n: [[[[[",
            "a: b\u{85}c: [[[[[",
        ] {
            assert!(is_deep(text, 4), "{text}");
        }
        let too_deep = check_nesting("a: b\nc: [[[", 3).unwrap_err();
        assert_eq!(too_deep, TooDeep { line: 2, column: 6 });
    }
}
