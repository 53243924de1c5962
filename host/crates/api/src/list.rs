//! Lists. Every list of the API has two fields: `items` and `next_cursor`.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// One page of a list.
#[derive(Debug, Serialize)]
pub struct List<T> {
    pub items: Vec<T>,
    /// The cursor for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A type that occurs in lists. Each list has its own name in the API description.
pub trait Listed: ToSchema {
    /// The name of the list, such as `BotList`.
    const LIST: &'static str;
    /// The description of the list, such as `A page of bots.`
    const ABOUT: &'static str;
}

impl<T: Listed> PartialSchema for List<T> {
    fn schema() -> RefOr<Schema> {
        let items = ArrayBuilder::new().items(Ref::from_schema_name(T::name()));
        let cursor = ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::String, Type::Null]));
        let page = ObjectBuilder::new()
            .description(Some(T::ABOUT))
            .property("items", items)
            .required("items")
            .property("next_cursor", cursor);
        page.into()
    }
}

impl<T: Listed> ToSchema for List<T> {
    fn name() -> Cow<'static, str> {
        T::LIST.into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
}

/// Implements `Listed` for each type and defines a type alias with the name of the list.
macro_rules! lists {
    ($($item:ty => $list:ident $about:literal),+ $(,)?) => {$(
        impl $crate::list::Listed for $item {
            const LIST: &'static str = stringify!($list);
            const ABOUT: &'static str = $about;
        }

        #[doc = $about]
        pub type $list = $crate::list::List<$item>;
    )+};
}
pub(crate) use lists;
