//! The number and sum of the valid rows in a scope.

/// The size of an encoded total: 8 bytes for the number of rows, and 32 bytes for the sum.
const BYTES: usize = 40;
/// The number of the set of tables whose rows a total counts. It follows the total in a seal.
///
/// The first set did not contain the schedules, and its seals have no number. A table that is new needs no other number,
/// because it has no rows when it is added.
const TABLES: u8 = 2;

/// The number of valid rows in a scope, and the sum of their addends modulo 2^256.
///
/// The addend of a row is an HMAC that is not stored, so rows with a chosen sum cannot be created without the key.
/// Addends are added rather than combined by XOR, because two equal rows would cancel out in an XOR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    rows: u64,
    /// The 64-bit parts of the sum, least significant first.
    sum: [u64; 4],
}

impl Total {
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn add(&mut self, addend: &[u8; 32]) {
        self.rows = self.rows.wrapping_add(1);
        let mut carry = false;
        for (part, other) in self.sum.iter_mut().zip(parts(addend)) {
            let (sum, first) = part.overflowing_add(other);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            (*part, carry) = (sum, first || second);
        }
    }

    pub(crate) fn subtract(&mut self, addend: &[u8; 32]) {
        self.rows = self.rows.wrapping_sub(1);
        let mut borrow = false;
        for (part, other) in self.sum.iter_mut().zip(parts(addend)) {
            let (rest, first) = part.overflowing_sub(other);
            let (rest, second) = rest.overflowing_sub(u64::from(borrow));
            (*part, borrow) = (rest, first || second);
        }
    }

    /// Encodes the total for a seal.
    pub(crate) fn to_bytes(self) -> [u8; BYTES + 1] {
        let mut bytes = [TABLES; BYTES + 1];
        let numbers = std::iter::once(self.rows).chain(self.sum);
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Decodes the total of a seal. Returns `None` if the bytes are not an encoded total of all tables.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Total> {
        let (total, tables) = bytes.split_at_checked(BYTES)?;
        if tables != [TABLES] { None } else { Total::from_first_bytes(total) }
    }

    /// Decodes the total of a seal that counts the first set of tables.
    pub(super) fn from_first_bytes(bytes: &[u8]) -> Option<Total> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_be_bytes(*chunk));
        let rows = numbers.next()?;
        let mut sum = [0; 4];
        sum.iter_mut().zip(numbers).for_each(|(part, number)| *part = number);
        Some(Total { rows, sum })
    }

    /// Encodes the total for a seal that counts the first set of tables.
    #[cfg(test)]
    pub(super) fn to_first_bytes(self) -> [u8; BYTES] {
        let bytes = self.to_bytes();
        *bytes.first_chunk().expect("a total is longer")
    }
}

/// Splits a 32-byte big-endian number into 64-bit parts, least significant first.
fn parts(bytes: &[u8; 32]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().rev().map(|chunk| u64::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sum_carries_and_wraps() {
        let mut total = Total::default();
        let mut one = [0; 32];
        one[31] = 1;
        total.add(&[0xff; 32]);
        total.add(&one);
        assert_eq!(total.sum, [0; 4], "modulo 2^256");
        total.subtract(&one);
        assert_eq!(total.sum, [u64::MAX; 4]);
        let mut high = [0; 32];
        high[23] = 1;
        let mut total = Total::default();
        total.add(&high);
        assert_eq!(total.sum, [0, 1, 0, 0]);
        total.subtract(&one);
        assert_eq!(total.sum, [u64::MAX, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn additions_commute_and_can_be_undone(
            addends in proptest::collection::vec(any::<[u8; 32]>(), 1..8),
        ) {
            let mut forwards = Total::default();
            addends.iter().for_each(|addend| forwards.add(addend));
            let mut backwards = Total::default();
            addends.iter().rev().for_each(|addend| backwards.add(addend));
            prop_assert_eq!(forwards, backwards);
            prop_assert_eq!(Total::from_bytes(&forwards.to_bytes()), Some(forwards));
            prop_assert_eq!(Total::from_bytes(&forwards.to_first_bytes()), None);
            prop_assert_eq!(Total::from_first_bytes(&forwards.to_bytes()), None);
            prop_assert_eq!(Total::from_first_bytes(&forwards.to_first_bytes()), Some(forwards));
            addends.iter().for_each(|addend| forwards.subtract(addend));
            prop_assert_eq!(forwards, Total::default());
        }
    }
}
