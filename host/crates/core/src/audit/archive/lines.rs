//! The lines of an archived file. A line contains the hashes of a row and the canonical text that was hashed:
//! `{"hash":"…","previous_hash":"…","row":{…}}`.

/// The fixed texts before, between and after the parts of a line.
const BEFORE_HASH: &[u8] = br#"{"hash":""#;
const BEFORE_PREVIOUS: &[u8] = br#"","previous_hash":""#;
const BEFORE_ROW: &[u8] = br#"","row":"#;
const END: &[u8] = b"}";

/// The parts of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub hash: [u8; 32],
    pub previous_hash: [u8; 32],
    /// The canonical text of the row.
    pub row: &'a [u8],
}

impl<'a> Line<'a> {
    /// Appends the line to `text`, with a line break.
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        for part in [
            BEFORE_HASH,
            hex::encode(self.hash).as_bytes(),
            BEFORE_PREVIOUS,
            hex::encode(self.previous_hash).as_bytes(),
            BEFORE_ROW,
            self.row,
            END,
            b"\n",
        ] {
            text.extend_from_slice(part);
        }
    }

    /// Splits a line without its line break. Returns `None` if [`Line::write`] cannot have written the text.
    pub(super) fn read(text: &'a [u8]) -> Option<Line<'a>> {
        let (hash, text) = hash(text.strip_prefix(BEFORE_HASH)?)?;
        let (previous_hash, text) = self::hash(text.strip_prefix(BEFORE_PREVIOUS)?)?;
        let row = text.strip_prefix(BEFORE_ROW)?.strip_suffix(END)?;
        Some(Line { hash, previous_hash, row })
    }
}

/// Splits a hash in lower-case hex digits off the beginning of a text.
fn hash(text: &[u8]) -> Option<([u8; 32], &[u8])> {
    let (digits, rest) = text.split_at_checked(64)?;
    let mut hash = [0; 32];
    hex::decode_to_slice(digits, &mut hash).ok()?;
    (!digits.iter().any(u8::is_ascii_uppercase)).then_some((hash, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line = Line { hash: [0xab; 32], previous_hash: [1; 32], row: br#"{"a":"}"}"# };
        let mut text = Vec::new();
        line.write(&mut text);
        let text = text.strip_suffix(b"\n").unwrap();
        assert_eq!(Line::read(text), Some(line));
        serde_json::from_slice::<serde_json::Value>(text).unwrap();
        for cut in 0..BEFORE_HASH.len() + 64 + BEFORE_PREVIOUS.len() + 64 + BEFORE_ROW.len() {
            assert_eq!(Line::read(&text[..cut]), None);
        }
        let upper = String::from_utf8(text.to_vec()).unwrap().replace("abab", "ABab");
        assert_eq!(Line::read(upper.as_bytes()), None);
    }
}
