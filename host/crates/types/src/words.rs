//! Enums whose values have names.

/// Declares an enum whose values have names, which are used in the API, the audit, the database or the plugin
/// interface.
///
/// An enum that derives `Serialize` needs a `serde` attribute by which serde uses the same names.
#[macro_export]
macro_rules! words {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal),+ $(,)? }
    ) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $(#[$attribute])*
        pub enum $name { $($(#[$variant_attribute])* $variant),+ }

        impl $name {
            /// All values, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Returns the name of this value.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Returns the value with this name.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Code, KeyKind, Status};

    #[test]
    fn serde_and_the_api_description_use_the_names() {
        fn check<T: utoipa::PartialSchema + serde::Serialize>(values: &[T], names: &[&str]) {
            assert_eq!(serde_json::to_value(values).unwrap(), serde_json::json!(names));
            assert_eq!(serde_json::to_value(T::schema()).unwrap()["enum"], serde_json::json!(names));
        }
        check(Status::ALL, &Status::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>());
        check(Code::ALL, &Code::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>());
        check(KeyKind::ALL, &KeyKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
    }
}
