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
pub(super) async fn read(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    sources: &[TrustSource],
    succession: &Succession,
    findings: &mut SecurityFindings,
) -> Result<Result<ElsewhereTrust, SecurityProblem>, Error> {
    let (mut bundles, mut is_held) = (Vec::new(), false);
    for source in sources {
        let what = "with CAs of nodes elsewhere";
        let found = match secrets::trust(ctx, desired, source, what).await? {
            Ok(found) => found,
            Err(problem) => return Ok(Err(problem)),
        };
        let trusted = TrustedSource { ctx, desired, source }.of(&found, succession, findings).await;
        is_held |= trusted.is_held;
        bundles.push(trusted.bundle);
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
    async fn of(
        &self,
        found: &ReadTrust,
        succession: &Succession,
        findings: &mut SecurityFindings,
    ) -> ElsewhereTrust {
        let Self { ctx, desired, source } = self;
        let (cluster, title) = (desired.key(), self.title());
        let all = ElsewhereTrust { bundle: found.bundle.clone(), is_held: false };
        if source.kind != TrustKind::ConfigMap {
            return all;
        }
        let (told, added): (Vec<_>, Vec<_>) =
            found.bundle.key_sha256s().into_iter().partition(|key| succession.tells(key));
        if added.is_empty() {
            ctx.trust.forget_source(&cluster, &title);
            return all;
        }
        let added_bundles: Vec<_> = added.iter().map(|key| found.bundle.of_key(key)).collect();
        let sha256s: Vec<_> = added_bundles.iter().flat_map(TrustBundle::sha256s).collect();
        let sha256s = sha256s.join(", ");
        let is_settled = ctx.trust.note(&cluster, &title, &found.version);
        let stranger = is_settled.then(|| self.other_cluster(&added)).flatten();
        if is_settled && stranger.is_none() {
            if ctx.trust.is_first(&cluster, &title) {
                let note = format!("nodes trust the CA with SHA-256 {sha256s} of {title}");
                ctx.events.publish(desired, &EventNotice::normal("AuthorityTrusted", note)).await;
            }
            return all;
        }
        if let Some(other) = stranger {
            let message = format!(
                "{title}: it holds the CA with SHA-256 {sha256s}, of which no node of {other} was told: \
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
        let told: Vec<_> = told.iter().map(|key| found.bundle.of_key(key)).collect();
        ElsewhereTrust { bundle: TrustBundle::union(&told), is_held: true }
    }

    fn title(&self) -> String {
        let TrustSource { kind, name, key } = self.source;
        format!("{kind} {name}, key {}", key.as_deref().unwrap_or(secrets::TRUST))
    }

    /// Returns the cluster whose own ConfigMap this is, where its nodes were told other CAs than these:
    /// its controller would put there what it tells its nodes.
    fn other_cluster(&self, added: &[String]) -> Option<String> {
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
        let told = Succession::told_by(uid, &objects, CertificateUse::Internode).key_sha256s();
        let is_told = told.is_empty() || added.iter().all(|key| told.contains(key));
        (!is_told).then(|| format!("{} {name}", names.kind))
    }
}
