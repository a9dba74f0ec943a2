//! Where each of a cluster's CAs is on its way to take another's place, by what Pilots were told and
//! say.

use k8s_openapi::jiff::Timestamp;

use super::{is_of, is_ours, name_of};
use crate::{
    api::v1beta1::{ClientTls, InternodeTls, NodeCertificate, Pilot, ServedCertificate},
    controller::{desired_state::DesiredCluster, observe::ClusterObjects},
    engine::pki::{
        BundleRefusal, CertificateUse, TrustBundle, find_authority,
        rollover::{
            AuthoritySecret, Rollover, RolloverMember, RolloverPhase, RolloverStep, RolloverWish,
        },
    },
};

/// The members of a cluster that have certificates for one use, and the CAs that they were told.
pub(super) struct Succession {
    names: Vec<String>,
    members: Vec<RolloverMember<String>>,
    /// Every CA that a member was told to trust.
    told: TrustBundle,
    /// For whom the certificates are.
    usage: CertificateUse,
}

impl Succession {
    pub(super) fn from_pilots(
        desired: &DesiredCluster,
        objects: &ClusterObjects,
        usage: CertificateUse,
        now: Timestamp,
    ) -> Self {
        let (mut names, mut members, mut bundles) = (Vec::new(), Vec::new(), Vec::new());
        for pilot in objects.pilots.iter().filter(|pilot| is_ours(pilot, desired)) {
            // One that has no certificate yet trusts what it is told from its first moment on.
            let Some((member, trust)) = parse_member(pilot, usage, desired.database.one_port, now)
            else {
                continue;
            };
            names.push(name_of(pilot).to_owned());
            members.push(member);
            bundles.push(trust);
        }
        let trust_bundle = TrustBundle::union(&bundles);
        Self { names, members, told: trust_bundle, usage }
    }

    /// Returns the CAs that nodes were told to trust, whoever signed their certificates.
    pub(super) fn told_to(
        desired: &DesiredCluster,
        objects: &ClusterObjects,
        usage: CertificateUse,
    ) -> TrustBundle {
        Self::told_by(&desired.uid, objects, usage)
    }

    /// Returns the same of the nodes of the cluster with this uid.
    pub(super) fn told_by(
        cluster_uid: &str,
        objects: &ClusterObjects,
        usage: CertificateUse,
    ) -> TrustBundle {
        let bundles =
            objects.pilots.iter().filter(|pilot| is_of(pilot, cluster_uid)).filter_map(|pilot| {
                let security = pilot.spec.security.as_ref()?;
                let certificate = match usage {
                    CertificateUse::Internode => security.internode_certificate.as_ref(),
                    CertificateUse::Client => security.client_certificate.as_ref(),
                };
                TrustBundle::from_pem(certificate?.trust.as_bytes()).ok()
            });
        TrustBundle::union(&bundles.collect::<Vec<_>>())
    }

    /// Returns the CAs that members were told to trust, and that are neither in the Secret nor in use.
    pub(super) fn elsewhere_keys(&self, secret: &AuthoritySecret<String>) -> Vec<String> {
        let mut keys = self.told.key_sha256s();
        let of_secret = [&secret.current, &secret.next, &secret.previous];
        let in_use = self.members.iter().flat_map(|member| [&member.told, &member.shows]);
        for own_key in of_secret.into_iter().chain(in_use).flatten() {
            keys.retain(|key| key != own_key);
        }
        keys
    }

    /// Returns the certificates of CAs that members were told to trust.
    pub(super) fn find_bundle(&self, keys: &[String]) -> TrustBundle {
        let bundles: Vec<_> = keys.iter().map(|key| self.told.with_key(key)).collect();
        TrustBundle::union(&bundles)
    }

    /// Was a member told to trust the CA with this SHA-256 of its key?
    pub(super) fn is_trusted_key(&self, key: &String) -> bool {
        self.told.key_sha256s().contains(key)
    }

    /// Leaves CAs out that are not this cluster's, and whose way is no business of ours.
    pub(super) fn leave_out(&mut self, keys: &[String]) {
        for member in &mut self.members {
            let RolloverMember { told: _, told_trust, shows: _, may_show, trusts, heard: _ } =
                member;
            for list in [told_trust, may_show, trusts] {
                list.retain(|key| !keys.contains(key));
            }
        }
    }

    /// Was a member told to trust the CA of this Secret?
    pub(super) fn has_told(&self, secret: &AuthoritySecret<String>) -> bool {
        let known_keys = self.told.key_sha256s();
        [&secret.current, &secret.next].into_iter().flatten().any(|key| known_keys.contains(key))
    }

    /// Has any member a certificate?
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// When the newest CA was made that a member was told to trust (Unix seconds).
    pub(super) fn last_created_at(&self) -> Option<i64> {
        self.told.newest_issue_time()
    }

    /// Do members show certificates, and none of the CA that all is to be of?
    pub(super) fn is_unused(&self, secret: &AuthoritySecret<String>) -> bool {
        Rollover { secret, members: &self.members }.is_unused()
    }

    /// Returns what is to be done next, and what holds meanwhile. `own_trust`: certificates of the
    /// CAs in the Secret.
    pub(super) fn next_turn(
        &self,
        secret: &AuthoritySecret<String>,
        own_trust: &TrustBundle,
        wish: RolloverWish,
    ) -> SuccessionTurn {
        let rollover = Rollover { secret, members: &self.members };
        let step = rollover.next_step(wish);
        let names = |places: &[usize]| {
            let node_names: Vec<&str> =
                places.iter().map(|place| self.names[*place].as_str()).collect();
            node_names.join(", ")
        };
        let wait_reason = match &step {
            RolloverStep::Wait { members } => Some(format!("waits for {}", names(members))),
            RolloverStep::WaitForClients => Some(match self.usage {
                CertificateUse::Client => "gives clients time to learn of the new CA".to_owned(),
                CertificateUse::Internode => {
                    "gives the clusters elsewhere time to trust the new CA".to_owned()
                }
            }),
            RolloverStep::Trust { members, .. } => {
                Some(format!("tells {} whom to trust", names(members)))
            }
            RolloverStep::Sign { member } => {
                Some(format!("has {} change its certificate", names(&[*member])))
            }
            RolloverStep::Create
            | RolloverStep::Begin
            | RolloverStep::Promote
            | RolloverStep::Forget
            | RolloverStep::Done => None,
        };
        let bundles = rollover.trusted_authorities().into_iter().map(|key| {
            let own_bundle = own_trust.with_key(&key);
            if own_bundle.is_empty() { self.told.with_key(&key) } else { own_bundle }
        });
        let bundles: Vec<_> = bundles.collect();
        SuccessionTurn {
            may_sign: rollover.can_issue(),
            turn: match &step {
                RolloverStep::Sign { member } => Some(self.names[*member].clone()),
                _ => None,
            },
            waits: wait_reason.filter(|_| rollover.rotation_phase() != RolloverPhase::Current),
            trust: TrustBundle::join(&bundles),
            phase: rollover.rotation_phase(),
            step,
        }
    }
}

/// One look at a CA's way.
pub(super) struct SuccessionTurn {
    pub(super) step: RolloverStep<String>,
    /// May the current CA sign for a member that joins, or whose certificate is due?
    pub(super) may_sign: bool,
    /// The member that is to change to a certificate of the current CA now.
    pub(super) turn: Option<String>,
    /// What is waited for, while one CA takes another's place.
    pub(super) waits: Option<String>,
    /// What each member is to trust.
    pub(super) trust: Result<TrustBundle, BundleRefusal>,
    /// Where the CA is on its way, for people to see.
    pub(super) phase: RolloverPhase,
}

/// Reads a Pilot as a member; `None` where it has no certificate for this use.
fn parse_member(
    pilot: &Pilot,
    usage: CertificateUse,
    one_port: bool,
    now: Timestamp,
) -> Option<(RolloverMember<String>, TrustBundle)> {
    let security = pilot.spec.security.as_ref()?;
    let status = pilot.status.security.as_ref();
    let (certificate, served_certificate, is_used): (
        Option<&NodeCertificate>,
        Option<&ServedCertificate>,
        bool,
    ) = match usage {
        CertificateUse::Internode => (
            security.internode_certificate.as_ref(),
            status.and_then(|status| status.internode.as_ref()),
            security.internode != InternodeTls::Off && !one_port,
        ),
        CertificateUse::Client => (
            security.client_certificate.as_ref(),
            status.and_then(|status| status.client.as_ref()),
            security.client != ClientTls::Off,
        ),
    };
    // One that was given is of no CA whose place another takes.
    let certificate = certificate.filter(|certificate| certificate.mounted_key.is_none())?;
    let trust = TrustBundle::from_pem(certificate.trust.as_bytes()).unwrap_or_default();
    let told_trust = trust.key_sha256s();
    let authority_key = find_authority(&certificate.chain, &trust, now);
    let stored = status.and_then(|status| status.stored.as_ref());
    let has_reported = stored == Some(&security.revision());
    let shows = if is_used {
        // A pilot of an older release does not say who signed what its port shows, and one may lie: a
        // CA that the node does not trust signs nothing that it shows.
        served_certificate
            .and_then(|served| served.authority.clone())
            .filter(|authority| told_trust.contains(authority))
    } else {
        authority_key.clone().filter(|_| has_reported)
    };
    let trusts = match (usage, served_certificate) {
        (CertificateUse::Internode, Some(served)) if is_used => served.trust.clone(),
        (CertificateUse::Internode, _) if is_used => Vec::new(),
        // Nodes check nobody on a port for clients, nor on one that is open.
        _ if has_reported => told_trust.clone(),
        _ => Vec::new(),
    };
    let may_show = if shows.is_some() { Vec::new() } else { told_trust.clone() };
    let member = RolloverMember {
        told: authority_key,
        told_trust,
        shows,
        may_show,
        trusts,
        heard: has_reported,
    };
    Some((member, trust))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::{PilotSecurity, PilotSecurityStatus},
        engine::pki::CertificateAuthority,
    };

    #[test]
    fn what_a_pilot_says_of_a_ca_that_its_node_does_not_trust_is_not_known() {
        let now = Timestamp::now();
        let authority = CertificateAuthority::create("ca", now).unwrap();
        let key = authority.details().key_sha256;
        let shows = |reported: &str| {
            let mut pilot = Pilot::default();
            let certificate = NodeCertificate {
                trust: authority.trust_bundle().to_pem(),
                ..NodeCertificate::default()
            };
            pilot.spec.security = Some(PilotSecurity {
                internode: InternodeTls::Required,
                internode_certificate: Some(certificate),
                ..PilotSecurity::default()
            });
            pilot.status.security = Some(PilotSecurityStatus {
                internode: Some(ServedCertificate {
                    authority: Some(reported.to_owned()),
                    ..ServedCertificate::default()
                }),
                ..PilotSecurityStatus::default()
            });
            let (member, _) = parse_member(&pilot, CertificateUse::Internode, false, now).unwrap();
            (member.shows, member.may_show)
        };
        assert_eq!(shows(&key), (Some(key.clone()), vec![]));
        assert_eq!(shows("00"), (None, vec![key]), "no bundle has such a CA");
    }

    #[test]
    fn more_cas_than_nodes_may_be_told_to_trust_are_all_found() {
        let now = Timestamp::now();
        let made = |number| CertificateAuthority::create(&format!("ca {number}"), now).unwrap();
        let bundles: Vec<_> = (0..10).map(|number| made(number).trust_bundle().clone()).collect();
        assert!(TrustBundle::join(&bundles).is_err());
        let told = TrustBundle::union(&bundles);
        let last = bundles[9].key_sha256s().remove(0);
        assert_eq!(told.with_key(&last), bundles[9]);
    }

    #[test]
    fn where_there_is_one_port_what_a_node_stores_stands_for_what_it_would_show_to_nodes() {
        let now = Timestamp::now();
        let authority = CertificateAuthority::create("ca", now).unwrap();
        let trust = authority.trust_bundle().to_pem();
        let mut pilot = Pilot::default();
        let security = PilotSecurity {
            internode: InternodeTls::Required,
            internode_certificate: Some(NodeCertificate { trust, ..NodeCertificate::default() }),
            ..PilotSecurity::default()
        };
        let stored = Some(security.revision());
        pilot.status.security =
            Some(PilotSecurityStatus { stored, ..PilotSecurityStatus::default() });
        pilot.spec.security = Some(security);
        let trusts = |one_port| {
            let (member, _) =
                parse_member(&pilot, CertificateUse::Internode, one_port, now).unwrap();
            member.trusts
        };
        assert_eq!(trusts(true), [authority.details().key_sha256]);
        assert_eq!(trusts(false), [""; 0], "nobody saw it");
    }
}
