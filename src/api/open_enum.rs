//! Enums of strings whose list may grow: [`open_enum`].

/// Defines an enum of strings that keeps a value it does not know exactly as written, so that
/// an object of a newer server passes through unharmed.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$variant_meta:meta])* $variant:ident, )+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        #[serde(from = "String", into = "String")]
        #[schemars(with = "String", extend("enum" = [$(stringify!($variant)),+]))]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
            /// A value that this build does not know, as written.
            Other(String),
        }

        impl $name {
            /// The values that this build knows.
            pub const KNOWN: &'static [&'static str] = &[$(stringify!($variant)),+];

            /// The value as it stands in the object.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => stringify!($variant), )+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                match text.as_str() {
                    $( stringify!($variant) => Self::$variant, )+
                    _ => Self::Other(text),
                }
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                match value {
                    $name::Other(text) => text,
                    known => known.as_str().to_owned(),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use open_enum;
