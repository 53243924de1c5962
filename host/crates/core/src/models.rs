//! The models that a bot may ask: the configuration of resources of the built-in type `llm`, and the choice of a bot.
//!
//! The module only reads a snapshot of the policy. Whether a round with a model is permitted is decided by the pipeline
//! of calls, and the order in which models are tried is the caller's.

use std::collections::HashSet;

use monstrum_llm::request::check_extra;
use monstrum_llm::{OutputField, RequestError, ToolSchema};
use monstrum_types::{BotId, InputError, ResourceId, UtcMillis, WorkspaceId};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::plugins::built_in::{LLM, LLM_MODELS};
use crate::policy::{Binding, Bot, Resource, Snapshot};

/// The maximum number of models that a bot has in addition to its first.
pub const FALLBACKS_MAX: usize = 4;

/// The default of `output_tokens`: more than most answers have, and less than the maximum of common models.
const OUTPUT_TOKENS: u64 = 8192;

/// A model of a resource.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The id of the model, as its server knows it.
    pub id: String,
    /// Another name, by which bots can name the model.
    #[serde(default)]
    pub alias: Option<String>,
    /// The length of the context in tokens.
    pub context_tokens: u64,
    /// The maximum number of tokens of one answer.
    #[serde(default = "output_tokens")]
    pub output_tokens: u64,
    /// Whether the model can call tools.
    #[serde(default = "yes")]
    pub tools: bool,
    /// Whether the model may ask for several calls in one answer.
    #[serde(default = "yes")]
    pub parallel_tools: bool,
    /// Whether the model reads images.
    #[serde(default)]
    pub vision: bool,
    /// How the schemas of tools are written.
    #[serde(default, deserialize_with = "tool_schema")]
    pub tool_schema: ToolSchema,
    #[serde(default)]
    pub price: Option<ModelPrice>,
    /// The field of requests that limits the answer. If it is absent, the host uses `max_tokens` until the server asks
    /// for `max_completion_tokens`.
    #[serde(default, deserialize_with = "output_field")]
    pub output_field: Option<OutputField>,
    /// The fields that requests to the model have in addition to those of the host.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

/// The price of a model, in credits for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    pub input: f64,
    /// The price of tokens that the server had cached; the price of other input by default.
    #[serde(default)]
    pub cached_input: Option<f64>,
    pub output: f64,
}

fn output_tokens() -> u64 {
    OUTPUT_TOKENS
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SchemaForm {
    Full,
    Plain,
}

fn tool_schema<'de, D: Deserializer<'de>>(input: D) -> Result<ToolSchema, D::Error> {
    Ok(match SchemaForm::deserialize(input)? {
        SchemaForm::Full => ToolSchema::Full,
        SchemaForm::Plain => ToolSchema::Plain,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum LimitField {
    MaxTokens,
    MaxCompletionTokens,
}

fn output_field<'de, D: Deserializer<'de>>(input: D) -> Result<Option<OutputField>, D::Error> {
    Ok(Option::<LimitField>::deserialize(input)?.map(|field| match field {
        LimitField::MaxTokens => OutputField::MaxTokens,
        LimitField::MaxCompletionTokens => OutputField::MaxCompletionTokens,
    }))
}

/// A model that a bot may ask, through a binding that is active.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub resource_id: ResourceId,
    pub resource_name: String,
    pub model: ModelConfig,
}

/// Why a bot has no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModel {
    /// The bot names no model, and has not exactly one.
    #[error("the bot has no model; set its `model` to `resource/model`, and bind it to that resource of type `llm`")]
    NotChosen,
    /// The bot names models, but has none of them through an active binding.
    #[error("the bot has no active binding to a resource of type `llm` with the model `{model}`")]
    NotBound {
        /// The first model of the bot.
        model: String,
    },
}

/// Returns the models of a bot in the order in which they are tried: its model, then its fallbacks. Models that it has
/// through no active binding are left out. A bot without a model has the only model of its only resource of type `llm`.
///
/// # Errors
///
/// The bot has no model.
pub fn candidates(
    snapshot: &Snapshot,
    workspace: WorkspaceId,
    bot: BotId,
    now: UtcMillis,
) -> Result<Vec<Candidate>, NoModel> {
    let bot = snapshot.bot(workspace, bot).ok_or(NoModel::NotChosen)?;
    let Some(first) = &bot.row.model else { return only_model(bot, now).map(|only| vec![only]) };
    let mut found: Vec<Candidate> = Vec::new();
    for name in [first.as_str()].into_iter().chain(fallbacks(bot)) {
        if let Some(candidate) = named(bot, name, now)
            && !found.contains(&candidate)
        {
            found.push(candidate);
        }
    }
    if found.is_empty() { Err(NoModel::NotBound { model: first.clone() }) } else { Ok(found) }
}

/// Returns the models of the resource, as its configuration has them.
pub fn models_of(resource: &Resource) -> Vec<ModelConfig> {
    let models = resource.config.get(LLM_MODELS).and_then(Value::as_array).into_iter().flatten();
    // The configuration was checked when it was saved.
    models.filter_map(|model| ModelConfig::deserialize(model).ok()).collect()
}

/// Returns the errors of the models of a configuration that the schema of the field cannot express.
pub fn config_errors(config: &Map<String, Value>) -> Vec<InputError> {
    let (mut errors, mut names) = (Vec::new(), HashSet::new());
    let models = config.get(LLM_MODELS).and_then(Value::as_array).into_iter().flatten();
    for (index, model) in models.enumerate() {
        let mut add = |place: &str, message: String| {
            errors.push(InputError { path: format!("/{LLM_MODELS}/{index}{place}"), message });
        };
        let model = match ModelConfig::deserialize(model) {
            Ok(model) => model,
            Err(error) => {
                add("", error.to_string());
                continue;
            }
        };
        if let Err(error) = check_extra(&model.extra) {
            let field = if let RequestError::OwnField { field } = &error {
                format!("/{}", escaped(field))
            } else {
                String::new()
            };
            add(&format!("/extra{field}"), error.to_string());
        }
        if model.output_tokens > model.context_tokens {
            add("/output_tokens", "must not be more than `context_tokens`".to_owned());
        }
        for (place, name) in [("/id", Some(&model.id)), ("/alias", model.alias.as_ref())] {
            if name.is_some_and(|name| !names.insert(name.clone())) {
                add(place, "another model has this name".to_owned());
            }
        }
    }
    errors
}

/// Escapes a key for use in a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn fallbacks(bot: &Bot) -> impl Iterator<Item = &str> {
    let stored = bot.row.model_fallbacks.as_ref().and_then(Value::as_array).into_iter().flatten();
    stored.filter_map(Value::as_str).take(FALLBACKS_MAX)
}

/// Returns the model that `resource/model` names, by its id or its alias.
fn named(bot: &Bot, name: &str, now: UtcMillis) -> Option<Candidate> {
    let (resource_name, model_name) = name.split_once('/')?;
    let binding = llm_bindings(bot, now).find(|binding| binding.resource.row.name == resource_name)?;
    let models = models_of(&binding.resource);
    let by_id = models.iter().find(|model| model.id == model_name);
    let model = by_id.or_else(|| models.iter().find(|model| model.alias.as_deref() == Some(model_name)))?;
    Some(candidate(binding, model.clone()))
}

fn only_model(bot: &Bot, now: UtcMillis) -> Result<Candidate, NoModel> {
    let mut bindings = llm_bindings(bot, now);
    let (Some(binding), None) = (bindings.next(), bindings.next()) else { return Err(NoModel::NotChosen) };
    let mut models = models_of(&binding.resource).into_iter();
    match (models.next(), models.next()) {
        (Some(model), None) => Ok(candidate(binding, model)),
        _ => Err(NoModel::NotChosen),
    }
}

fn llm_bindings(bot: &Bot, now: UtcMillis) -> impl Iterator<Item = &Binding> {
    let is_of_llm = |binding: &&Binding| binding.resource.plugin.name.as_str() == LLM;
    bot.bindings.iter().map(std::convert::AsRef::as_ref).filter(is_of_llm).filter(move |binding| binding.is_active(now))
}

fn candidate(binding: &Binding, model: ModelConfig) -> Candidate {
    let row = &binding.resource.row;
    Candidate { resource_id: row.id, resource_name: row.name.clone(), model }
}
