//! Detection of characters that must not be displayed unchanged.

/// Returns whether `character` is a control character, or a Unicode format character that separates lines, has no width
/// or changes the text direction. Untrusted text can use such characters to control a terminal, to hide a part of
/// itself, or to resemble a different text.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_without_a_shape_are_invisible() {
        for character in ['\0', '\n', '\u{1b}', '\u{7f}', '\u{9b}', '\u{200b}', '\u{202e}', '\u{2028}', '\u{2066}'] {
            assert!(is_invisible(character), "{character:?}");
        }
        for character in ['a', ' ', 'é', '日', '\u{fffd}', '…', '😀'] {
            assert!(!is_invisible(character), "{character:?}");
        }
    }

    #[test]
    fn escapes_of_invisible_characters_are_visible() {
        for character in ('\0'..=char::MAX).filter(|character| is_invisible(*character)) {
            assert!(!character.escape_debug().any(is_invisible), "{:x}", character as u32);
        }
    }
}
