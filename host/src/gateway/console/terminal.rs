//! The output of programs for terminals, as plain text.

/// Removes the escape sequences of ANSI X3.64 from a text, and ends lines at carriage returns. Other control characters
/// stay in the text.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => match rest.next_if(|next| !next.is_control()) {
                Some('[') => skip_control_sequence(&mut rest),
                // Operating system commands, and device control, privacy and application strings.
                Some(']' | 'P' | 'X' | '^' | '_') => skip_string(&mut rest),
                // The intermediate characters of a short sequence, and its final character.
                Some(' '..='/') => {
                    while rest.next_if(|next| matches!(next, ' '..='/')).is_some() {}
                    rest.next_if(|next| matches!(next, '0'..='~'));
                }
                Some(_) | None => {}
            },
            '\u{9b}' => skip_control_sequence(&mut rest),
            '\u{9d}' | '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => skip_string(&mut rest),
            '\r' if rest.peek() == Some(&'\n') => {}
            '\r' => plain.push('\n'),
            other => plain.push(other),
        }
    }
    plain
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips the parameters, the intermediate characters and the final character of a control sequence.
fn skip_control_sequence(rest: &mut Rest<'_>) {
    while rest.next_if(|next| matches!(next, ' '..='?')).is_some() {}
    rest.next_if(|next| matches!(next, '@'..='~'));
}

/// Skips a string up to its terminator. A string without a terminator ends with its line.
fn skip_string(rest: &mut Rest<'_>) {
    while let Some(next) = rest.next_if(|next| *next != '\n') {
        match next {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                rest.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn escape_sequences_are_removed() {
        for (text, expected) in [
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{9b}32mgreen", "green"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;https://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "alink"),
            ("\u{1b}(Ba\u{1b}7b\u{1b}c", "ab"),
            ("\u{1b}Pq#0\u{1b}\\a", "a"),
            ("1%\r2%\r\nend\r", "1%\n2%\nend\n"),
            ("a\tb\nc", "a\tb\nc"),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }

    #[test]
    fn an_incomplete_sequence_hides_no_further_line() {
        assert_eq!(plain("a\u{1b}]0;title\nb"), "a\nb");
        assert_eq!(plain("a\u{1b}[31\nb"), "a\nb");
        assert_eq!(plain("a\u{1b}\nb\u{1b}"), "a\nb");
        assert_eq!(plain("\u{1b}[\u{202e}x"), "\u{202e}x");
    }
}
