//! Version `v1beta1`: the hub, the stored form and the recommended version.
//!
//! Wire types only. A field that is absent stays absent: effective values (images, quorum, heap)
//! are computed by the code that needs them and shown in `status`.

mod cluster;
mod lease;
mod pilot;
mod security;
mod shared;
mod status;

pub use super::predicate::NodeChange;
pub use cluster::*;
pub use lease::*;
pub use pilot::*;
pub use security::*;
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
