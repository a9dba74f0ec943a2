//! What the two cluster kinds have in common, so that the five steps are written once.

use std::fmt::Debug;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::de::DeserializeOwned;

use super::desired::{Desired, Flavour, Image, Stalled};
use crate::api::{
    names::annotation,
    v1beta1::{ImageSpec, SecurityContext},
};

/// A cluster kind.
pub(crate) trait Cluster:
    k8s_openapi::Resource<Scope = NamespaceResourceScope>
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Clone
    + Debug
    + DeserializeOwned
    + serde::Serialize
    + Send
    + Sync
    + 'static
{
    const FLAVOUR: &'static Flavour;

    /// The cluster in shared terms.
    fn desired(&self, settings: &Settings) -> Desired;
}

/// What the controller was told that ends up in objects.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Image that holds the pilot, unless a cluster names one.
    pub(crate) pilot_image: String,
    /// Identity of our store, put on every object that we own.
    pub(crate) store_id: String,
}

/// Images of upstream's quick starts: stored as written, never run.
const UPSTREAM_PILOTS: [&str; 2] = ["navigator-pilot-elasticsearch", "navigator-pilot-cassandra"];

pub(crate) fn effective_pilot_image(given: Option<&ImageSpec>, settings: &Settings) -> Image {
    let last = |spec: &ImageSpec| spec.repository.rsplit('/').next().unwrap_or_default().to_owned();
    match given {
        Some(spec) if !UPSTREAM_PILOTS.contains(&last(spec).as_str()) => Image::of(spec),
        _ => Image::named(&settings.pilot_image),
    }
}

/// The user that the database runs as; never 0, which v1alpha1 could still ask for.
pub(crate) fn run_as_user(given: Option<&SecurityContext>, default: i64) -> i64 {
    given.and_then(|context| context.run_as_user).filter(|uid| *uid > 0).unwrap_or(default)
}

pub(crate) fn replicas(given: Option<i32>) -> u32 {
    given.map_or(1, |replicas| u32::try_from(replicas).unwrap_or_default())
}

pub(crate) fn force_delete(meta: &ObjectMeta) -> bool {
    let annotations = meta.annotations.as_ref();
    annotations.and_then(|a| a.get(annotation::FORCE_DELETE)).is_some_and(|value| value == "true")
}

/// A StatefulSet runs only where its name leaves room for `-<hash>` in a label of 63 bytes.
const SET_NAME_MAX: usize = 52;

/// v1alpha1 accepts names that no StatefulSet or Service can have.
pub(crate) fn names_that_do_not_fit<'a>(
    flavour: &Flavour,
    cluster: &str,
    pools: impl Iterator<Item = &'a str>,
) -> Option<Stalled> {
    let label = |name: &str| {
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let mut wrong: Vec<_> = pools
        .map(|pool| flavour.stateful_set(cluster, pool))
        .filter(|set| set.len() > SET_NAME_MAX || !label(set))
        .collect();
    let first = wrong.drain(..).next()?;
    Some(Stalled {
        reason: "NameConflict",
        message: format!(
            "{first:?} cannot name a StatefulSet: at most {SET_NAME_MAX} lower-case letters, \
             digits and '-'; use shorter names of cluster and pool"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_pilot_images_are_never_run() {
        let settings = Settings { pilot_image: "ours:1".into(), store_id: "store".into() };
        let image = |repository: &str| ImageSpec {
            repository: repository.into(),
            tag: Some("v0.1.0".into()),
            ..ImageSpec::default()
        };
        let run = |spec: Option<&ImageSpec>| effective_pilot_image(spec, &settings).reference;
        assert_eq!(run(None), "ours:1");
        assert_eq!(run(Some(&image("quay.io/jetstack/navigator-pilot-cassandra"))), "ours:1");
        assert_eq!(run(Some(&image("example.org/navigator"))), "example.org/navigator:v0.1.0");
    }

    #[test]
    fn uid_zero_is_never_used() {
        let root = SecurityContext { run_as_user: Some(0) };
        assert_eq!(run_as_user(Some(&root), 999), 999);
        assert_eq!(run_as_user(Some(&SecurityContext { run_as_user: Some(7) }), 999), 7);
    }
}
