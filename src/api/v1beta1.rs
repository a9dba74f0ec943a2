//! Version `v1beta1`: the hub, the stored form and the recommended version.
//!
//! Wire types only. A field that is absent stays absent: effective values (images, quorum, heap)
//! are computed by the code that needs them and shown in `status`.

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

mod cluster;
mod lease;
mod pilot;
mod shared;
mod status;

pub use cluster::*;
pub use lease::*;
pub use pilot::*;
pub use shared::*;
pub use status::*;

/// `navigator.jetstack.io/v1beta1`
pub const API_VERSION: &str = "navigator.jetstack.io/v1beta1";
/// `v1beta1`
pub const VERSION: &str = "v1beta1";

/// Implements the traits by which clients address a kind.
macro_rules! kind {
    ($type:ident, $kind:literal, $plural:literal) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = crate::api::GROUP;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}
kind!(Pilot, "Pilot", "pilots");
kind!(LeaderLease, "LeaderLease", "leaderleases");
