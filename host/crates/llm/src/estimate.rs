//! Estimates how many tokens a request takes, before the server counts them.
//!
//! The estimate is the bytes of the text divided by three, times a factor that each model learns from the usage that its
//! server reports. The module must not know a tokenizer: tokenizers differ between models and are not public for all.

/// The smallest factor: 15 bytes a token. Text in one language seldom has more than 6.
pub const FACTOR_MIN: f64 = 0.2;
/// The largest factor: 1.5 bytes a token. Only text outside of a tokenizer's vocabulary has fewer.
pub const FACTOR_MAX: f64 = 2.0;
/// The share of a new measurement in the factor, so that one unusual request does not decide the next estimates.
const LEARNING_RATE: f64 = 0.25;
/// Requests with fewer bytes teach nothing: the tokens that a server adds to every request weigh too much in them.
const LEARNED_BYTES_MIN: u64 = 300;
const BYTES_PER_TOKEN: f64 = 3.0;
/// The tokens of one image. Servers take 85 to 1 600 for the sizes that they scale images to.
pub const IMAGE_TOKENS: u64 = 1_600;

/// What an estimate counts of a request: see [`crate::Request::size`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestSize {
    /// The bytes of all text: of messages, calls and tools.
    pub text_bytes: u64,
    /// The number of images.
    pub images: u64,
}

/// The factor of one model. It is always between [`FACTOR_MIN`] and [`FACTOR_MAX`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factor(f64);

impl Default for Factor {
    fn default() -> Self {
        Factor(1.0)
    }
}

impl Factor {
    /// Restores a factor that was stored. A value outside of the range becomes the nearest value in it, and a value
    /// that is not a number becomes 1.
    #[must_use]
    pub fn new(value: f64) -> Self {
        if value.is_nan() { Factor::default() } else { Factor(value.clamp(FACTOR_MIN, FACTOR_MAX)) }
    }

    /// Returns the value to store.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0
    }

    /// Estimates the tokens of a request, rounded up.
    #[must_use]
    pub fn estimate(self, size: RequestSize) -> u64 {
        let text = (to_f64(size.text_bytes) / BYTES_PER_TOKEN * self.0).ceil();
        to_u64(text).saturating_add(size.images.saturating_mul(IMAGE_TOKENS))
    }

    /// Learns from the input tokens that a server reported for a request. Requests with images, short requests and
    /// reports of zero tokens change nothing.
    pub fn learn(&mut self, size: RequestSize, reported_tokens: u64) {
        if size.images > 0 || size.text_bytes < LEARNED_BYTES_MIN || reported_tokens == 0 {
            return;
        }
        let measured = Factor::new(to_f64(reported_tokens) / (to_f64(size.text_bytes) / BYTES_PER_TOKEN));
        *self = Factor::new(self.0 + (measured.0 - self.0) * LEARNING_RATE);
    }
}

/// Numbers above `u32::MAX` become `u32::MAX`: no request has 4 GiB, and every `u32` is exact as a float.
fn to_f64(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole, not negative and at most 2 * u32::MAX"
)]
fn to_u64(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text_bytes: u64) -> RequestSize {
        RequestSize { text_bytes, images: 0 }
    }

    #[test]
    fn a_third_of_the_bytes_is_rounded_up() {
        let factor = Factor::default();
        assert_eq!([0, 1, 3, 4, 3_000].map(|bytes| factor.estimate(text(bytes))), [0, 1, 1, 2, 1_000]);
        assert_eq!(factor.estimate(RequestSize { text_bytes: 3, images: 2 }), 1 + 2 * IMAGE_TOKENS);
    }

    #[test]
    fn the_factor_approaches_what_is_reported() {
        let mut factor = Factor::default();
        for _ in 0..40 {
            factor.learn(text(3_000), 750);
        }
        assert!((factor.value() - 0.75).abs() < 0.001, "{factor:?}");
        assert!(factor.estimate(text(3_000)).abs_diff(750) <= 1);
    }

    #[test]
    fn the_factor_stays_in_its_range() {
        let (mut high, mut low) = (Factor::default(), Factor::default());
        for _ in 0..100 {
            high.learn(text(3_000), u64::MAX);
            low.learn(text(3_000_000), 1);
        }
        assert!((high.value() - FACTOR_MAX).abs() < 1e-6 && high.value() <= FACTOR_MAX);
        assert!((low.value() - FACTOR_MIN).abs() < 1e-6 && low.value() >= FACTOR_MIN);
        assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(|value| Factor::new(value).value()), [1.0, 2.0, 0.2]);
    }

    #[test]
    fn images_short_requests_and_reports_of_zero_teach_nothing() {
        let mut factor = Factor::default();
        factor.learn(RequestSize { text_bytes: 3_000, images: 1 }, 9_000);
        factor.learn(text(LEARNED_BYTES_MIN - 1), 1);
        factor.learn(text(3_000), 0);
        assert_eq!(factor, Factor::default());
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let size = RequestSize { text_bytes: u64::MAX, images: u64::MAX };
        assert_eq!(Factor::new(2.0).estimate(size), u64::MAX);
    }
}
