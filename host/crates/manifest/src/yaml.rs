//! Converts YAML text to JSON values, and finds the position of a field in the text.
//!
//! The parser reports positions only with errors. To find the position of an invalid field, the text is parsed again
//! with a visitor that fails at that field.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{FieldPath, Segment, cut};

/// Maximum number of keys and values in a manifest after its aliases are expanded: more than the largest file without
/// aliases contains, but few enough to need little memory.
const VALUES_MAX: usize = 200_000;
/// Maximum size of the text in bytes after aliases are expanded: four times the size of the largest file. Aliases can
/// repeat a text a few times, but cannot multiply the size of a file.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// The number of bytes of the largest file for which one key or value is allowed. Files with many bytes have long lines:
/// fewer bytes would let a small file with aliases need much memory.
const BYTES_PER_VALUE: usize = 16;
/// Keys whose values keep their own keys that start with `x-`, because they are JSON Schemas or arbitrary values.
const KEPT_WHOLE: [&str; 3] = ["input_schema", "output_schema", "default"];

/// A line and a column, both counted from 1.
pub(crate) type Position = (usize, usize);

/// The reason why a text cannot be read.
#[derive(Debug)]
pub(crate) struct YamlError {
    pub(crate) position: Option<Position>,
    pub(crate) field: FieldPath,
    pub(crate) message: String,
}

/// Which keys of a document are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    All,
    /// All keys except those that start with `x-`, which authors may use freely.
    WithoutFree,
}

/// Reads a YAML text as one JSON value. Larger limits apply to a kind of document whose files may have more bytes
/// (`file_bytes_max`) than manifests.
pub(crate) fn read(text: &str, depth_max: usize, keys: Keys, file_bytes_max: usize) -> Result<Value, YamlError> {
    let values_max = VALUES_MAX.max(file_bytes_max / BYTES_PER_VALUE);
    let text_bytes_max = TEXT_BYTES_MAX.max(file_bytes_max);
    let (values, bytes, error) = (Cell::new(0), Cell::new(0), RefCell::new(None));
    let reading = Reading { values, values_max, bytes, text_bytes_max, depth_max, error };
    let reader = Reader { reading: &reading, trail: Trail::Root, depth: 0, whole: keys == Keys::All };
    reader.deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| {
        let position = error.location().map(|location| (location.line(), location.column()));
        match reading.error.take() {
            Some((field, message)) => YamlError { position, field, message },
            None => YamlError { position, field: FieldPath::default(), message: syntax_message(&error) },
        }
    })
}

/// Returns the parser's message without the position, which is reported separately.
fn syntax_message(error: &serde_yaml::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("not valid YAML: {}", cut(what, 200))
}

/// Returns the position of the value at `path`, or of its key if `at_key` is set. For a missing value, returns the
/// position of its nearest existing parent.
pub(crate) fn locate(text: &str, path: &FieldPath, at_key: bool) -> Option<Position> {
    let probe = Probe { path: &path.0, at_key };
    let error = probe.deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
    error.location().map(|location| (location.line(), location.column()))
}

/// The state of one read operation: its budget, and the error that ended it.
struct Reading {
    values: Cell<usize>,
    values_max: usize,
    bytes: Cell<usize>,
    text_bytes_max: usize,
    depth_max: usize,
    error: RefCell<Option<(FieldPath, String)>>,
}

impl Reading {
    fn fail<E: serde::de::Error>(&self, field: Trail<'_>, message: impl Into<String>) -> E {
        let message = message.into();
        let error = E::custom(&message);
        self.error.borrow_mut().get_or_insert((field.path(), message));
        error
    }

    fn spend<E: serde::de::Error>(&self, field: Trail<'_>, text_bytes: usize) -> Result<(), E> {
        self.values.set(self.values.get() + 1);
        self.bytes.set(self.bytes.get() + text_bytes);
        if self.values.get() > self.values_max {
            return Err(self.fail(
                field,
                format!("the file has more than {} keys and values after aliases are expanded", self.values_max),
            ));
        }
        if self.bytes.get() > self.text_bytes_max {
            return Err(self.fail(
                field,
                format!("the file has more than {} bytes of text after aliases are expanded", self.text_bytes_max),
            ));
        }
        Ok(())
    }
}

/// The path to the current node, stored on the stack.
#[derive(Clone, Copy)]
enum Trail<'t> {
    Root,
    Key(&'t Trail<'t>, &'t str),
    Index(&'t Trail<'t>, usize),
}

impl Trail<'_> {
    fn path(&self) -> FieldPath {
        match self {
            Trail::Root => FieldPath::default(),
            Trail::Key(parent, key) => parent.path().key(key),
            Trail::Index(parent, index) => parent.path().index(*index),
        }
    }
}

/// Builds the value of one node.
struct Reader<'r> {
    reading: &'r Reading,
    trail: Trail<'r>,
    depth: usize,
    /// Whether the reader is inside a value that keeps its `x-` keys.
    whole: bool,
}

impl Reader<'_> {
    fn scalar<E: serde::de::Error>(self, value: Value) -> Result<Value, E> {
        self.reading.spend(self.trail, value.as_str().map_or(0, str::len))?;
        Ok(value)
    }

    fn inner<'i>(&'i self, trail: Trail<'i>, whole: bool) -> Reader<'i> {
        Reader { reading: self.reading, trail, depth: self.depth + 1, whole }
    }

    fn open<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.depth >= self.reading.depth_max {
            let message = format!("nested deeper than {} levels", self.reading.depth_max);
            return Err(self.reading.fail(self.trail, message));
        }
        self.reading.spend(self.trail, 0)
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(Value::from(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(Value::from(value))
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<Value, E> {
        Err(self.reading.fail(self.trail, "the number is too large"))
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<Value, E> {
        Err(self.reading.fail(self.trail, "the number is too large"))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.scalar(Value::Number(number)),
            None => Err(self.reading.fail(self.trail, "expected a finite number")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.reading.spend(self.trail, value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.open()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.inner(Trail::Index(&self.trail, list.len()), self.whole))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.open()?;
        let mut seen = HashSet::new();
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(KeyReader { reader: &self, seen: &seen })? {
            seen.insert(key.clone());
            if !self.whole && key.starts_with("x-") {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let whole = self.whole || KEPT_WHOLE.contains(&key.as_str());
            let value = entries.next_value_seed(self.inner(Trail::Key(&self.trail, &key), whole))?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(self.reading.fail(self.trail, "tags are not supported"))
    }
}

/// Reads a key. The key is checked while the parser reads it, so that an error has the position of the key.
struct KeyReader<'r, 's> {
    reader: &'s Reader<'r>,
    seen: &'s HashSet<String>,
}

impl<'de> DeserializeSeed<'de> for KeyReader<'_, '_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl KeyReader<'_, '_> {
    fn refuse<E: serde::de::Error>(self) -> Result<String, E> {
        Err(self.reader.reading.fail(self.reader.trail, "a key must be a string: put it in quotes"))
    }
}

impl<'de> Visitor<'de> for KeyReader<'_, '_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<String, E> {
        if self.seen.contains(key) {
            return Err(self.reader.reading.fail(Trail::Key(&self.reader.trail, key), "duplicate key"));
        }
        self.reader.reading.spend(self.reader.trail, key.len())?;
        Ok(key.to_owned())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<String, E> {
        self.refuse()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<String, E> {
        self.refuse()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<String, E> {
        self.refuse()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<String, E> {
        self.refuse()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<String, E> {
        self.refuse()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        self.refuse()
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        self.refuse()
    }
}

/// Follows a path and fails at its end. The error carries the position, which a successful read would not report. At
/// values other than lists and maps, the methods of the trait fail.
struct Probe<'p> {
    path: &'p [Segment],
    at_key: bool,
}

impl Probe<'_> {
    fn here<T, E: serde::de::Error>() -> Result<T, E> {
        Err(E::custom("here"))
    }
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path to a field")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((Segment::Index(index), rest)) = self.path.split_first() else { return Self::here() };
        for _ in 0..*index {
            if items.next_element::<IgnoredAny>()?.is_none() {
                return Self::here();
            }
        }
        items.next_element_seed(Probe { path: rest, at_key: self.at_key })?;
        Self::here()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((Segment::Key(wanted), rest)) = self.path.split_first() else { return Self::here() };
        let fails = self.at_key && rest.is_empty();
        while let Some(found) = entries.next_key_seed(KeyProbe { wanted, fails })? {
            if found {
                entries.next_value_seed(Probe { path: rest, at_key: self.at_key })?;
                return Self::here();
            }
            entries.next_value::<IgnoredAny>()?;
        }
        Self::here()
    }
}

/// Compares a key with the next key of the path.
struct KeyProbe<'p> {
    wanted: &'p str,
    fails: bool,
}

impl<'de> DeserializeSeed<'de> for KeyProbe<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeyProbe<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        if key == self.wanted && self.fails { Probe::here() } else { Ok(key == self.wanted) }
    }
}
