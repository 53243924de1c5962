//! What this process has learned about models: how many bytes their tokens have, and which field limits their answers.

use std::collections::HashMap;

use monstrum_llm::estimate::RequestSize;
use monstrum_llm::{Factor, Origin, OutputField};
use monstrum_types::ResourceId;
use parking_lot::Mutex;

/// The maximum number of models in memory. A host with more learns some of them again.
const MODELS_MAX: usize = 10_000;

/// What was learned about all models.
#[derive(Default)]
pub(super) struct Learned(Mutex<HashMap<(ResourceId, String), Facts>>);

#[derive(Clone, Copy, Default)]
struct Facts {
    factor: Factor,
    output_field: OutputField,
}

impl Learned {
    /// Returns the factor of estimates for the model.
    pub(super) fn factor(&self, origin: &Origin) -> Factor {
        self.facts(origin).factor
    }

    /// Learns from the input tokens that the server reported for a request of this size.
    pub(super) fn learn(&self, origin: &Origin, size: RequestSize, reported_tokens: u64) {
        self.change(origin, |facts| facts.factor.learn(size, reported_tokens));
    }

    /// Returns the field that limits answers of the model.
    pub(super) fn output_field(&self, origin: &Origin) -> OutputField {
        self.facts(origin).output_field
    }

    /// Remembers the field that limits answers of the model.
    pub(super) fn use_output_field(&self, origin: &Origin, field: OutputField) {
        self.change(origin, |facts| facts.output_field = field);
    }

    fn facts(&self, origin: &Origin) -> Facts {
        self.0.lock().get(&key(origin)).copied().unwrap_or_default()
    }

    fn change(&self, origin: &Origin, change: impl FnOnce(&mut Facts)) {
        let mut known = self.0.lock();
        if known.len() >= MODELS_MAX && !known.contains_key(&key(origin)) {
            known.clear();
        }
        change(known.entry(key(origin)).or_default());
    }
}

fn key(origin: &Origin) -> (ResourceId, String) {
    (origin.resource, origin.model.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(model: &str) -> Origin {
        Origin { resource: "01980000-0000-7000-8000-000000000001".parse().unwrap(), model: model.to_owned() }
    }

    #[test]
    fn each_model_is_learned_for_itself() {
        let learned = Learned::default();
        let size = RequestSize { text_bytes: 3000, images: 0 };
        for _ in 0..40 {
            learned.learn(&origin("a"), size, 500);
        }
        assert!(learned.factor(&origin("a")).estimate(size).abs_diff(500) <= 1);
        assert_eq!(learned.factor(&origin("b")), Factor::default());
        learned.use_output_field(&origin("a"), OutputField::MaxCompletionTokens);
        assert_eq!(learned.output_field(&origin("a")), OutputField::MaxCompletionTokens);
        assert_eq!(learned.output_field(&origin("b")), OutputField::MaxTokens);
    }

    #[test]
    fn the_memory_is_bounded() {
        let learned = Learned::default();
        for number in 0..=MODELS_MAX {
            learned.use_output_field(&origin(&number.to_string()), OutputField::MaxCompletionTokens);
        }
        assert_eq!(learned.0.lock().len(), 1);
    }
}
