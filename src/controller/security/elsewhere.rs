//! The CAs of nodes elsewhere: read where the spec says, and trusted once that is safe.

use super::{
    secrets::{self, INTERNODE_BUNDLE, ReadTrust},
    succession::Succession,
};
use crate::{
    api::v1beta1::{TrustKind, TrustSource},
    controller::{
        context::{ControllerContext, Error},
        desired_state::DesiredCluster,
        events::EventNotice,
        observe::ClusterObjects,
        queue::ClusterKey,
        security_findings::{SecurityFindings, SecurityProblem},
    },
    engine::pki::{CertificateUse, TrustBundle},
};

/// The CAs of nodes elsewhere that are trusted.
pub(super) struct ElsewhereTrust {
    pub(super) bundle: TrustBundle,
    /// Is there a CA that is not trusted yet?
    pub(super) is_held: bool,
}

/// Reads the CAs of nodes elsewhere, as far as they are trusted now.
pub(super) async fn read_elsewhere_trust(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    sources: &[TrustSource],
    succession: &Succession,
    findings: &mut SecurityFindings,
) -> Result<Result<ElsewhereTrust, SecurityProblem>, Error> {
    let (mut bundles, mut is_held) = (Vec::new(), false);
    for source in sources {
        let purpose = "with CAs of nodes elsewhere";
        let read_trust = match secrets::read_trust(ctx, desired, source, purpose).await? {
            Ok(trust) => trust,
            Err(problem) => return Ok(Err(problem)),
        };
        let elsewhere_trust = TrustedSource { ctx, desired, source }
            .evaluate_trust(&read_trust, succession, findings)
            .await;
        is_held |= elsewhere_trust.is_held;
        bundles.push(elsewhere_trust.bundle);
    }
    let bundle = TrustBundle::join(&bundles).map_err(|refusal| {
        let message = format!("internode.trust {refusal}");
        SecurityProblem { reason: "SecretInvalid", message }
    });
    Ok(bundle.map(|bundle| ElsewhereTrust { bundle, is_held }))
}

/// One object that the spec names.
struct TrustedSource<'a> {
    ctx: &'a ControllerContext,
    desired: &'a DesiredCluster,
    source: &'a TrustSource,
}

impl TrustedSource<'_> {
    /// Returns what is trusted of the object: all of a Secret; of a ConfigMap what nodes were told
    /// before, and the rest once the ConfigMap has stayed as it is.
    async fn evaluate_trust(
        &self,
        read_trust: &ReadTrust,
        succession: &Succession,
        findings: &mut SecurityFindings,
    ) -> ElsewhereTrust {
        let Self { ctx, desired, source } = self;
        let (cluster, title) = (desired.key(), self.title());
        let full_trust = ElsewhereTrust { bundle: read_trust.bundle.clone(), is_held: false };
        if source.kind != TrustKind::ConfigMap {
            return full_trust;
        }
        let (known_keys, new_keys): (Vec<_>, Vec<_>) = read_trust
            .bundle
            .key_sha256s()
            .into_iter()
            .partition(|key| succession.is_trusted_key(key));
        if new_keys.is_empty() {
            ctx.trust.remove_source(&cluster, &title);
            return full_trust;
        }
        let added_bundles: Vec<_> =
            new_keys.iter().map(|key| read_trust.bundle.with_key(key)).collect();
        let sha256s: Vec<_> = added_bundles.iter().flat_map(TrustBundle::sha256_digests).collect();
        let sha256s = sha256s.join(", ");
        let is_settled = ctx.trust.record_version(&cluster, &title, &read_trust.version);
        let foreign_cluster = is_settled.then(|| self.other_cluster(&new_keys)).flatten();
        if is_settled && foreign_cluster.is_none() {
            if ctx.trust.is_first(&cluster, &title) {
                let note = format!("nodes trust the CA with SHA-256 {sha256s} of {title}");
                ctx.events.publish(desired, &EventNotice::normal("AuthorityTrusted", note)).await;
            }
            return full_trust;
        }
        if let Some(cluster_name) = foreign_cluster {
            let message = format!(
                "{title}: it holds the CA with SHA-256 {sha256s}, of which no node of {cluster_name} was told: \
                 see who else writes that ConfigMap; nodes trust those that they trusted"
            );
            findings.certificates.push(SecurityProblem { reason: "TrustNotConfirmed", message });
        } else {
            let message = format!(
                "{title}: the CA with SHA-256 {sha256s} is new there, and is trusted once the ConfigMap \
                 has stayed as it is for a minute"
            );
            findings.succession.get_or_insert(message);
        }
        let known_bundles: Vec<_> =
            known_keys.iter().map(|key| read_trust.bundle.with_key(key)).collect();
        ElsewhereTrust { bundle: TrustBundle::union(&known_bundles), is_held: true }
    }

    fn title(&self) -> String {
        let TrustSource { kind, name, key } = self.source;
        format!("{kind} {name}, key {}", key.as_deref().unwrap_or(secrets::TRUST))
    }

    /// Returns the cluster whose own ConfigMap this is, where its nodes were told other CAs than these:
    /// its controller would put there what it tells its nodes.
    fn other_cluster(&self, new_keys: &[String]) -> Option<String> {
        let Self { ctx, desired, source } = self;
        let names = desired.database.names;
        let name =
            source.name.strip_prefix(names.prefix)?.strip_prefix('-')?.strip_suffix("-ca")?;
        if source.key.as_deref() != Some(INTERNODE_BUNDLE) {
            return None;
        }
        let cluster = ctx.stores.cluster(desired.database, &desired.namespace, name)?;
        let key = ClusterKey {
            kind: names.kind,
            namespace: desired.namespace.clone(),
            name: name.to_owned(),
        };
        let pilots = ctx.stores.pilots.of_cluster(&key);
        let objects = ClusterObjects { pilots, ..ClusterObjects::default() };
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let known_keys =
            Succession::told_by(uid, &objects, CertificateUse::Internode).key_sha256s();
        let is_known = known_keys.is_empty() || new_keys.iter().all(|key| known_keys.contains(key));
        (!is_known).then(|| format!("{} {name}", names.kind))
    }
}
