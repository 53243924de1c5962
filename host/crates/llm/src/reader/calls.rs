//! Puts the calls of an answer together from their fragments.
//!
//! A fragment belongs to a call by its `index`, else by its `id`, else by the order. Some servers give all calls the
//! index 0, each with an id and a name of its own; others give every fragment of one call a new id. So a fragment begins a
//! new call at an index that is taken only if it has both another id and a name.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::merge::{self, Kept};
use super::{Delta, ReadError};
use crate::messages::{Arguments, ToolCall};

/// The most calls of one answer. A host runs far fewer of one round; the limit bounds memory.
pub const CALLS_MAX: usize = 256;

/// The calls that have begun.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra: Map<String, Value>,
    function_extra: Map<String, Value>,
}

impl Calls {
    /// Takes one fragment.
    pub(super) fn take(
        &mut self,
        mut fragment: Map<String, Value>,
        kept: &mut Kept,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), ReadError> {
        let index = fragment.remove("index").as_ref().and_then(Value::as_u64);
        let id = string(fragment.remove("id"));
        fragment.remove("type");
        let mut function = match fragment.remove("function") {
            Some(Value::Object(function)) => function,
            _ => Map::new(),
        };
        let name = string(function.remove("name"));
        let position = match self.find(index, &id, &name) {
            Some(position) => position,
            None if self.0.len() == CALLS_MAX => return Err(ReadError::TooManyCalls),
            None => {
                self.0.push(Call { index, ..Call::default() });
                self.0.len() - 1
            }
        };
        let call = &mut self.0[position];
        if call.id.is_empty() {
            call.id = id;
        }
        if call.name.is_empty() && !name.is_empty() {
            deltas.push(Delta::CallName { call: position, name: name.clone() });
            call.name = name;
        }
        let piece = match function.remove("arguments") {
            Some(Value::String(piece)) => piece,
            None | Some(Value::Null) => String::new(),
            Some(whole) => whole.to_string(),
        };
        if !piece.is_empty() {
            call.arguments.push_str(&piece);
            deltas.push(Delta::CallArguments { call: position, text: piece });
        }
        merge::object_fields(&mut call.extra, fragment, kept);
        merge::object_fields(&mut call.function_extra, function, kept);
        Ok(())
    }

    /// Returns the call that a fragment continues.
    fn find(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let has_id = |call: &Call| !id.is_empty() && call.id == id;
        if index.is_some() {
            return match self.0.iter().rposition(|call| call.index == index) {
                Some(found) => {
                    let call = &self.0[found];
                    let is_other = !id.is_empty() && !call.id.is_empty() && call.id != id && !name.is_empty();
                    if is_other { self.0.iter().position(has_id) } else { Some(found) }
                }
                None => self.0.iter().position(|call| call.index.is_none() && has_id(call)),
            };
        }
        if !id.is_empty() {
            return self.0.iter().position(has_id);
        }
        // Without index and id, a name begins a call, and anything else continues the last one.
        if name.is_empty() { self.0.len().checked_sub(1) } else { None }
    }

    /// Ends the calls. Calls without an id, or with the id of an earlier call, get a new one, because results name calls
    /// by their ids.
    pub(super) fn finish(self, mut new_call_id: impl FnMut() -> String) -> Result<Vec<ToolCall>, ReadError> {
        let mut ids: HashSet<String> = HashSet::new();
        let mut finished = Vec::with_capacity(self.0.len());
        for (position, call) in self.0.into_iter().enumerate() {
            if call.name.is_empty() {
                return Err(ReadError::CallWithoutName { call: position });
            }
            let is_usable = !call.id.is_empty() && !ids.contains(&call.id);
            let id = if is_usable { call.id } else { new_call_id() };
            ids.insert(id.clone());
            finished.push(ToolCall {
                id,
                name: call.name,
                arguments: Arguments::new(call.arguments),
                extra: call.extra,
                function_extra: call.function_extra,
            });
        }
        Ok(finished)
    }
}

/// Returns a text. Some servers write ids as numbers.
fn string(value: Option<Value>) -> String {
    match value {
        Some(Value::String(text)) => text,
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}
