//! The two CAs of a cluster, each in a Secret, and what clients trust, in a ConfigMap.
//!
//! The CA between nodes signs nodes of this cluster and nothing else: whoever holds a certificate of
//! it is a member. A new CA takes its place when a person asks for one, or puts one into the Secret:
//! step by step, as `engine::pki::rollover` decides.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use serde_json::json;
use tracing::info;

use super::{
    elsewhere::{self, ElsewhereTrust},
    given::ClientCertificate,
    origin, record_refusal,
    secrets::{self, FoundSecret, INTERNODE_BUNDLE},
    succession::{Succession, SuccessionTurn},
};
use crate::{
    api::v1beta1::{AuthorityStatus, CertificateSettings, ClusterSecurity, TrustSource},
    controller::{
        context::{ControllerContext, Error},
        desired_state::DesiredCluster,
        ensure::{check_owned_or_left_behind, ensure_object, may_write},
        events::EventNotice,
        observe::{ClusterObjects, owner_uid},
        resources::{self, PreparedObject},
        security_findings::{SecurityFindings, SecurityProblem},
        write::{apply_object, create_object},
    },
    engine::pki::{
        CertificateAuthority, CertificateUse, TrustBundle,
        rollover::{AuthoritySecret, RolloverPhase, RolloverStep, RolloverWish},
    },
    error::chain,
    machinery::{go_duration, x509::CertificateDetails},
};

/// Key of a Secret with a CA's certificate, and with its private key.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The same of the CA that is to take its place, and the certificate of the one whose place it took.
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const PREVIOUS: &str = "previous.crt";
/// What is sealed of such a Secret.
const SEALED: [&str; 5] = [CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, PREVIOUS];
/// The key of a CA that a person put there, and since when it has been: while no node shows a
/// certificate of it, clients learn of it.
const SINCE: &str = "since";
/// How long clients have to learn of a new CA where the spec does not say: a day.
const CLIENT_OVERLAP: Duration = Duration::from_secs(24 * 3600);
/// Key of the ConfigMap with what clients trust.
const BUNDLE: &str = "ca.crt";

/// The CAs by which the nodes of a cluster are signed.
pub(super) struct ClusterAuthorities {
    /// `None` where it cannot be used, as the findings say.
    internode: Option<SigningAuthority>,
    /// `None` also where a certificate is given that they show to clients.
    client: Option<SigningAuthority>,
    /// What clients trust; `None` where the CA cannot be used.
    client_trust: Option<TrustBundle>,
}

impl ClusterAuthorities {
    pub(super) fn for_usage(&self, usage: CertificateUse) -> Option<&SigningAuthority> {
        match usage {
            CertificateUse::Internode => self.internode.as_ref(),
            CertificateUse::Client => self.client.as_ref(),
        }
    }

    /// What clients trust, as PEM.
    pub(super) fn client_trust(&self) -> Option<String> {
        self.client_trust.as_ref().map(TrustBundle::to_pem)
    }
}

/// A CA, for whom it may sign, and whom nodes trust.
pub(super) struct SigningAuthority {
    pub(super) authority: CertificateAuthority,
    /// What each node is to trust: this CA, the one whose place it takes, and those of nodes elsewhere.
    pub(super) trust: TrustBundle,
    /// The same without those of nodes elsewhere.
    pub(super) own: TrustBundle,
    /// Does each node trust it?
    pub(super) may_sign: bool,
    /// The node that is to change to a certificate of it now.
    pub(super) turn: Option<String>,
}

/// What lies in the Secret of a CA.
pub(super) struct StoredAuthority {
    current: CertificateAuthority,
    /// Takes its place once each node trusts it.
    next: Option<CertificateAuthority>,
    /// Certificate of the CA whose place the current one took, as PEM.
    previous: Option<TrustBundle>,
    /// Unix time since which the current CA has been there, where that is written down.
    since: Option<i64>,
}

impl StoredAuthority {
    /// The CAs, by their keys.
    pub(super) fn keys(&self) -> AuthoritySecret<String> {
        let key = |authority: &CertificateAuthority| authority.details().key_sha256;
        AuthoritySecret {
            current: Some(key(&self.current)),
            next: self.next.as_ref().map(key),
            previous: self
                .previous
                .as_ref()
                .and_then(|trust| trust.key_sha256s().into_iter().next()),
        }
    }

    pub(super) fn certificates(&self) -> TrustBundle {
        let next = self.next.as_ref().map(CertificateAuthority::trust_bundle);
        let authorities: Vec<_> = [self.current.trust_bundle()].into_iter().chain(next).collect();
        TrustBundle::union(&authorities)
    }

    /// The CA that all is to be of in the end.
    fn target_authority(&self) -> &CertificateAuthority {
        self.next.as_ref().unwrap_or(&self.current)
    }

    /// Is a CA that a person gave to take the place of this one now? Not in the middle of a change, and
    /// not the same again.
    fn gives_way_to(&self, user_authority: &CertificateAuthority) -> bool {
        self.next.is_none()
            && self.previous.is_none()
            && self.current.chain_pem() != user_authority.chain_pem()
    }

    /// Reads the values of a Secret.
    fn from_secret(secret: &FoundSecret, now: Timestamp) -> Result<Self, String> {
        let read_authority = |certificate, key| {
            CertificateAuthority::from_pem(secret.value(certificate), secret.value(key), now)
        };
        let current =
            read_authority(CERTIFICATE, KEY).map_err(|refusal| chain(&refusal).to_string())?;
        let has_next = secret.value(NEXT_CERTIFICATE).is_some() || secret.value(NEXT_KEY).is_some();
        let next_authority =
            has_next.then(|| read_authority(NEXT_CERTIFICATE, NEXT_KEY)).transpose();
        let next_authority = next_authority.map_err(|refusal| {
            format!(
                "{NEXT_CERTIFICATE} and {NEXT_KEY}: {}, or remove both keys to have another made",
                chain(&refusal)
            )
        })?;
        let previous =
            secret.value(PREVIOUS).map(|pem| TrustBundle::from_pem(pem).unwrap_or_default());
        let since = secret.text(SINCE).and_then(|text| {
            let (key, time) = text.split_once(' ')?;
            let time: Timestamp = time.parse().ok()?;
            (key == current.details().key_sha256).then(|| time.as_second())
        });
        Ok(Self { current, next: next_authority, previous, since })
    }
}

/// A Secret as a step leaves it, and what is told of that: the reason of an event, and what it says.
struct WrittenAuthority {
    object: PreparedObject,
    told: Option<(&'static str, &'static str)>,
}

/// One of the two CAs of a cluster.
struct AuthorityPlace<'a> {
    ctx: &'a ControllerContext,
    desired: &'a DesiredCluster,
    usage: CertificateUse,
    name: String,
    /// Secret of a person's with the CA that is to be used.
    given: Option<&'a str>,
    settings: CertificateSettings,
    /// Can clients, and clusters elsewhere, find the CA in the ConfigMap?
    is_published: bool,
    now: Timestamp,
}

/// Reads the CAs, or makes them, and leads one on that takes another's place. Where one cannot be used,
/// the findings say why, and the other signs as before; `None` where neither can.
pub(super) async fn ensure_authorities(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    client_certificate: Option<&ClientCertificate>,
    objects: &ClusterObjects,
    now: Timestamp,
    findings: &mut SecurityFindings,
) -> Result<Option<ClusterAuthorities>, Error> {
    let names = desired.database.names;
    let mut authorities = [None, None];
    let metadata =
        resources::cluster_metadata(desired, &ctx.settings, &names.ca_bundle(&desired.name));
    let bundle = ConfigMap { metadata, ..ConfigMap::default() };
    let may_publish = may_write(ctx, desired, &PreparedObject::from_object(&bundle)).await;
    let is_published = !matches!(may_publish, Err(Error::Foreign(_)));
    let ClusterSecurity { internode, client, .. } = security;
    let between = internode.as_ref().and_then(|internode| internode.ca_secret.as_ref());
    let for_clients = client.as_ref().and_then(|client| client.ca_secret.as_ref());
    let places = [
        (CertificateUse::Internode, names.internode_ca(&desired.name), between),
        (CertificateUse::Client, names.client_ca(&desired.name), for_clients),
    ];
    for (slot, (usage, name, authority)) in authorities.iter_mut().zip(places) {
        if usage == CertificateUse::Client && client_certificate.is_some() {
            continue;
        }
        let user_secret =
            authority.map(|secret| secret.name.as_str()).filter(|secret_name| *secret_name != name);
        let settings = security.certificates.clone().unwrap_or_default();
        let place = AuthorityPlace {
            ctx,
            desired,
            usage,
            name,
            given: user_secret,
            settings,
            is_published,
            now,
        };
        let succession = Succession::from_pilots(desired, objects, usage, now);
        let trust = match usage {
            CertificateUse::Internode => security.trust_sources(),
            CertificateUse::Client => &[],
        };
        match place.advance_rotation(succession, trust, findings).await? {
            Ok(authority) => *slot = Some(authority),
            Err(problem) => findings.certificates.push(problem),
        }
    }
    let [internode, client] = authorities;
    let client_trust = match (&client, client_certificate) {
        (Some(client), _) => Some(client.trust.clone()),
        (None, Some(ClientCertificate::Given(certificate))) => Some(certificate.trust.clone()),
        (None, Some(ClientCertificate::Unusable)) => {
            Some(Succession::told_to(desired, objects, CertificateUse::Client))
        }
        (None, None) => None,
    };
    // Where one cannot be used, what others are told to trust stands as it is.
    let (Some(of_nodes), Some(of_clients)) = (&internode, &client_trust) else {
        let has_any = internode.is_some() || client.is_some();
        return Ok(has_any.then_some(ClusterAuthorities { internode, client, client_trust }));
    };
    let data = Some(BTreeMap::from([
        (BUNDLE.to_owned(), of_clients.to_pem()),
        (INTERNODE_BUNDLE.to_owned(), of_nodes.own.to_pem()),
    ]));
    let bundle = ConfigMap { data, ..bundle };
    if let Err(error) = ensure_object(ctx, desired, &PreparedObject::from_object(&bundle)).await {
        let problem = record_refusal(findings, error)?;
        findings.certificates.push(problem);
    }
    Ok(Some(ClusterAuthorities { internode, client, client_trust }))
}

impl AuthorityPlace<'_> {
    /// Does the next step of a rollover, where there is one. Returns the CA as it was before.
    async fn advance_rotation(
        &self,
        mut succession: Succession,
        trust: &[TrustSource],
        findings: &mut SecurityFindings,
    ) -> Result<Result<SigningAuthority, SecurityProblem>, Error> {
        let (mut user_authority, user_problem) = match self.read_user_authority().await? {
            Some(Ok(authority)) => (Some(authority), None),
            Some(Err(problem)) => (None, Some(problem)),
            None => (None, None),
        };
        let (mut stored, mut version) =
            match self.ensure_stored(&succession, &mut user_authority).await? {
                Ok(values) => values,
                Err(problem) => return Ok(Err(user_problem.unwrap_or(problem))),
            };
        // What runs goes on with the CA that there is.
        findings.certificates.extend(user_problem);
        if let Some(user_authority) =
            user_authority.filter(|authority| stored.gives_way_to(authority))
        {
            // From here on it is as if a person had put it there.
            let object = self.build_secret(&user_authority, None, None);
            apply_object(self.ctx, self.desired, &object, version).await?;
            let new_secret = secrets::read_secret(self.ctx, self.desired, &self.name).await?;
            version = new_secret.and_then(|secret| secret.meta.resource_version);
            stored = StoredAuthority {
                current: user_authority,
                next: None,
                previous: None,
                since: None,
            };
        }
        let keys = stored.keys();
        let read_result =
            elsewhere::read_elsewhere_trust(self.ctx, self.desired, trust, &succession, findings)
                .await?;
        let ElsewhereTrust { bundle: elsewhere, is_held } = match read_result {
            Ok(elsewhere_trust) => elsewhere_trust,
            Err(problem) => {
                findings.certificates.push(problem);
                let bundle = succession.find_bundle(&succession.elsewhere_keys(&keys));
                ElsewhereTrust { bundle, is_held: false }
            }
        };
        // The first nodes would not find those elsewhere.
        let may_begin = !is_held || !succession.is_empty();
        let mut foreign_keys = elsewhere.key_sha256s();
        let own_keys = [&keys.current, &keys.next, &keys.previous];
        foreign_keys.retain(|key| !own_keys.into_iter().flatten().any(|own_key| own_key == key));
        succession.leave_out(&foreign_keys);
        let is_shared = self.usage == CertificateUse::Client || is_held || !elsewhere.is_empty();
        // A CA of Navigator's is the next one until it signs, and is as old as it has been there.
        let is_new = is_shared
            && !self.overlap().is_zero()
            && stored.next.is_none()
            && stored.previous.is_none()
            && succession.is_unused(&keys);
        let since = is_new.then(|| stored.since.unwrap_or_else(|| self.now.as_second()));
        let wish = self.desired_rotation(&stored, since, is_shared);
        let turn = succession.next_turn(&keys, &stored.certificates(), wish);
        let own_trust = turn.trust.clone();
        let bundles = own_trust
            .and_then(|own_bundle| Ok((TrustBundle::join([&own_bundle, &elsewhere])?, own_bundle)));
        let (trust, own_trust) = match bundles {
            Ok(bundles) => bundles,
            Err(refusal) => {
                let message = format!("Secret {}: what nodes are to trust {refusal}", self.name);
                return Ok(Err(SecurityProblem { reason: "SecretInvalid", message }));
            }
        };
        if let Some(wait_reason) = &turn.waits {
            let message = format!("the CA for {} is replaced: {wait_reason}", self.title());
            findings.succession.get_or_insert(message);
        }
        findings.authorities.extend(self.authority_statuses(&stored, turn.phase));
        if let Some(authority_change) = self.change_for_step(&turn.step, &stored)? {
            apply_object(self.ctx, self.desired, &authority_change.object, version).await?;
            if let Some((reason, description)) = authority_change.told {
                let message =
                    format!("Secret {}, the CA for {}: {description}", self.name, self.title());
                info!(namespace = self.desired.namespace, explanation = message, "A CA changes");
                let notice = EventNotice::normal(reason, message);
                self.ctx.events.publish(self.desired, &notice).await;
            }
        } else if since != stored.since {
            let object = self.with_since(&stored, since);
            apply_object(self.ctx, self.desired, &object, version).await?;
        }
        let SuccessionTurn { may_sign, turn, .. } = turn;
        let may_sign = may_sign && may_begin;
        Ok(Ok(SigningAuthority {
            authority: stored.current,
            trust,
            own: own_trust,
            may_sign,
            turn,
        }))
    }

    /// Says what there is of the CA, the one that takes its place, and the one whose place it took.
    fn authority_statuses(
        &self,
        stored: &StoredAuthority,
        phase: RolloverPhase,
    ) -> Vec<AuthorityStatus> {
        let (usage, source) = (self.usage, if self.given.is_some() { "Secret" } else { "Managed" });
        let build_status = |details: &CertificateDetails, phase: RolloverPhase| AuthorityStatus {
            usage: match usage {
                CertificateUse::Internode => "Internode".to_owned(),
                CertificateUse::Client => "Client".to_owned(),
            },
            sha256: details.sha256.clone(),
            not_after: Timestamp::from_second(details.not_after).ok().map(Time),
            source: source.to_owned(),
            phase: format!("{phase:?}"),
        };
        let StoredAuthority { current, next, previous, since: _ } = stored;
        let current_phase = if next.is_some() { RolloverPhase::Current } else { phase };
        let current_phase = match current_phase {
            // What retires is the former one.
            RolloverPhase::Retiring => RolloverPhase::Current,
            other => other,
        };
        let mut statuses = vec![build_status(&current.details(), current_phase)];
        statuses.extend(next.iter().map(|next| build_status(&next.details(), phase)));
        let former_details =
            previous.iter().flat_map(|bundle| CertificateDetails::all_from_pem(&bundle.to_pem()));
        statuses
            .extend(former_details.map(|details| build_status(&details, RolloverPhase::Retiring)));
        statuses
    }

    /// What a step changes in the Secret; `None` where it changes nothing there.
    fn change_for_step(
        &self,
        step: &RolloverStep<String>,
        stored: &StoredAuthority,
    ) -> Result<Option<WrittenAuthority>, Error> {
        let StoredAuthority { current, next, previous, since: _ } = stored;
        Ok(Some(match (step, next) {
            (RolloverStep::Begin, None) => WrittenAuthority {
                object: self.build_secret(
                    current,
                    Some(&self.create_authority()?),
                    previous.as_ref(),
                ),
                told: Some(("AuthorityRotating", "nodes learn to trust a new one")),
            },
            (RolloverStep::Promote, Some(next)) => WrittenAuthority {
                object: self.build_secret(next, None, Some(&current.trust_bundle())),
                told: None,
            },
            (RolloverStep::Forget, None) => WrittenAuthority {
                object: self.build_secret(current, None, None),
                told: Some(("AuthorityRotated", "nothing is of the former one any more")),
            },
            (RolloverStep::Done, None)
                if self.given.is_none() && current.details().is_due(self.now.as_second()) =>
            {
                // With its key it is the same to all who trust it.
                let renewed_authority =
                    current.renew(self.now).map_err(|error| self.creation_error(error))?;
                if !renewed_authority.has_name_of(current) {
                    return Ok(None);
                }
                WrittenAuthority {
                    object: self.build_secret(&renewed_authority, None, None),
                    told: None,
                }
            }
            _ => return Ok(None),
        }))
    }

    /// How long clients, and clusters elsewhere, have to learn of a new CA.
    fn overlap(&self) -> Duration {
        let overlap = self.settings.ca_overlap.as_deref().and_then(go_duration::parse_duration);
        overlap.unwrap_or(CLIENT_OVERLAP)
    }

    /// Is another CA asked for, and must clients be waited for, or nodes elsewhere? `since`: when a
    /// person's CA was seen first.
    fn desired_rotation(
        &self,
        stored: &StoredAuthority,
        since: Option<i64>,
        is_shared: bool,
    ) -> RolloverWish {
        let created_at = stored.target_authority().details().issue_time();
        let started_at = since.map_or(created_at, |since| since.max(created_at));
        let overlap = i64::try_from(self.overlap().as_secs()).unwrap_or(i64::MAX);
        RolloverWish {
            // Another CA comes by the Secret of a person, where there is one.
            rotate: self.given.is_none() && self.is_asked_since(created_at),
            wait_for_clients: is_shared
                && (!self.is_published
                    || self.now.as_second() < started_at.saturating_add(overlap)),
        }
    }

    /// Was a new CA asked for after `made` (Unix seconds)?
    fn is_asked_since(&self, created_at: i64) -> bool {
        let requested_at = self.settings.ca_rotated_at.as_ref().map(|time| time.0.as_second());
        requested_at.is_some_and(|time| created_at < time && time <= self.now.as_second())
    }

    /// Reads the Secret, with the version that was read, or makes it where no node was ever signed by
    /// its CA, or a new one was asked for since.
    async fn ensure_stored(
        &self,
        succession: &Succession,
        user_authority: &mut Option<CertificateAuthority>,
    ) -> Result<Result<(StoredAuthority, Option<String>), SecurityProblem>, Error> {
        let Self { ctx, desired, name, .. } = self;
        let Some(secret) = secrets::read_managed_secret(ctx, desired, name).await? else {
            let is_requested = succession
                .last_created_at()
                .is_some_and(|created_at| self.is_asked_since(created_at));
            // Where a person's cannot be used, none is made in its place.
            let is_waiting =
                if self.given.is_some() { user_authority.is_none() } else { !is_requested };
            if is_waiting && !(succession.is_empty() && self.given.is_none()) {
                let message = format!(
                    "Secret {name} is gone, whose CA signed the certificates in use: put it back, or \
                     set spec.security.certificates.caRotatedAt to the time now to have another \
                     made. Nodes go on with what they have; nothing is signed for new or moved ones"
                );
                return Ok(Err(SecurityProblem { reason: "SecretMissing", message }));
            }
            let current = match user_authority.take() {
                Some(authority) => authority,
                None => self.create_authority()?,
            };
            let object = self.build_secret(&current, None, None);
            // Made by a create: a CA that another process made meanwhile is not written over.
            let meta = create_object(ctx, desired, &object, &object.body).await?;
            let new_authority =
                StoredAuthority { current, next: None, previous: None, since: None };
            return Ok(Ok((new_authority, meta.resource_version)));
        };
        let stored = StoredAuthority::from_secret(&secret, self.now);
        let is_told = stored.as_ref().is_ok_and(|stored| succession.has_told(&stored.keys()));
        if let Some(problem) = origin::origin_problem(ctx, desired, &secret, &SEALED, is_told) {
            return Ok(Err(problem));
        }
        let stored = match stored {
            Ok(stored) => stored,
            Err(reason) => {
                let is_requested = succession
                    .last_created_at()
                    .is_some_and(|created_at| self.is_asked_since(created_at));
                let replacement = match user_authority.take() {
                    None if self.given.is_none() && is_requested => Some(self.create_authority()?),
                    authority => authority,
                };
                let Some(current) = replacement else {
                    let hint = if self.given.is_some() {
                        ""
                    } else {
                        ", or set spec.security.certificates.caRotatedAt to the time now to have \
                         another CA made"
                    };
                    let message = format!("Secret {name}: {reason}{hint}");
                    return Ok(Err(SecurityProblem { reason: "SecretInvalid", message }));
                };
                // Nodes trust the one that was there until all are of the other.
                let object = self.build_secret(&current, None, None);
                if let Some(problem) = self.ownership_problem(&object, &secret, false)? {
                    return Ok(Err(problem));
                }
                apply_object(ctx, desired, &object, secret.meta.resource_version).await?;
                let new_secret = secrets::read_secret(ctx, desired, name).await?;
                let version = new_secret.and_then(|secret| secret.meta.resource_version);
                let stored = StoredAuthority { current, next: None, previous: None, since: None };
                return Ok(Ok((stored, version)));
            }
        };
        // The Secret of an earlier cluster of this name is taken over as it is.
        let object = self.with_since(&stored, stored.since);
        if let Some(problem) = self.ownership_problem(&object, &secret, is_told)? {
            return Ok(Err(problem));
        }
        let version = secret.meta.resource_version.clone();
        if owner_uid(&secret.meta).is_some() {
            ensure_object(ctx, desired, &object).await?;
            return Ok(Ok((stored, version)));
        }
        apply_object(ctx, desired, &object, version).await?;
        info!(namespace = desired.namespace, name, "Gave a Secret its annotations back");
        let new_secret = secrets::read_secret(ctx, desired, name).await?;
        Ok(Ok((stored, new_secret.and_then(|secret| secret.meta.resource_version))))
    }

    /// Returns why the Secret may not be written: it is another's. One that lost the annotation with the
    /// cluster's uid is the cluster's where nodes were told its CA (`is_told`), or its seal or a person
    /// says so.
    fn ownership_problem(
        &self,
        object: &PreparedObject,
        secret: &FoundSecret,
        is_told: bool,
    ) -> Result<Option<SecurityProblem>, Error> {
        let Self { ctx, desired, .. } = self;
        let is_proven = is_told || origin::is_proven(ctx, desired, secret, &SEALED);
        if owner_uid(&secret.meta).is_none() && is_proven {
            return Ok(None);
        }
        match check_owned_or_left_behind(ctx, desired, object, &secret.meta) {
            Ok(()) => Ok(None),
            Err(Error::Foreign(cause)) => Ok(Some(cause.into())),
            Err(error) => Err(error),
        }
    }

    /// Reads the CA of a person's Secret, where one is named.
    async fn read_user_authority(
        &self,
    ) -> Result<Option<Result<CertificateAuthority, SecurityProblem>>, Error> {
        let Some(name) = self.given else { return Ok(None) };
        let title = self.title();
        let Some(secret) = secrets::read_secret(self.ctx, self.desired, name).await? else {
            let message = format!(
                "Secret {name}, which is to hold the CA for {title}, is not there: make it, with \
                 {CERTIFICATE} and {KEY}. Nodes go on with what they have"
            );
            return Ok(Some(Err(SecurityProblem { reason: "SecretMissing", message })));
        };
        let (certificate, key) = (secret.value(CERTIFICATE), secret.value(KEY));
        let read_result = CertificateAuthority::from_pem(certificate, key, self.now);
        Ok(Some(read_result.map_err(|refusal| {
            let message = format!("Secret {name}: {}", chain(&refusal));
            SecurityProblem { reason: "SecretInvalid", message }
        })))
    }

    fn title(&self) -> &'static str {
        match self.usage {
            CertificateUse::Internode => "nodes",
            CertificateUse::Client => "clients",
        }
    }

    /// Makes a CA. Its name tells it from those before it: by names nodes say whom they trust.
    fn create_authority(&self) -> Result<CertificateAuthority, Error> {
        let DesiredCluster { database, namespace, name, .. } = self.desired;
        let (title, created_at) = (self.title(), self.now.as_second());
        let common_name =
            format!("{} {namespace}/{name} {title} {created_at}", database.names.title);
        CertificateAuthority::create(&common_name, self.now)
            .map_err(|error| self.creation_error(error))
    }

    fn creation_error(&self, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        let description = format!("the CA of Secret {:?}", self.name);
        Error::Unmade { what: description, source: Box::new(error) }
    }

    /// The Secret as it is, with the time since which its CA has been there.
    fn with_since(&self, stored: &StoredAuthority, since: Option<i64>) -> PreparedObject {
        let StoredAuthority { current, next, previous, since: _ } = stored;
        let mut object = self.build_secret(current, next.as_ref(), previous.as_ref());
        if let Some(since) = since.and_then(|since| Timestamp::from_second(since).ok()) {
            let text = format!("{} {since}", current.details().key_sha256);
            object.body["data"][SINCE] = json!(ByteString(text.into_bytes()));
        }
        object
    }

    fn build_secret(
        &self,
        current: &CertificateAuthority,
        next: Option<&CertificateAuthority>,
        previous: Option<&TrustBundle>,
    ) -> PreparedObject {
        let mut values = vec![(CERTIFICATE, current.chain_pem()), (KEY, current.key_pem())];
        if let Some(next) = next {
            values.extend([(NEXT_CERTIFICATE, next.chain_pem()), (NEXT_KEY, next.key_pem())]);
        }
        values.extend(previous.map(|previous| (PREVIOUS, previous.to_pem())));
        let bytes = |(key, text): &(&str, String)| {
            ((*key).to_owned(), ByteString(text.clone().into_bytes()))
        };
        let mut object = PreparedObject::from_object(&Secret {
            metadata: resources::cluster_metadata(self.desired, &self.ctx.settings, &self.name),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(values.iter().map(bytes).collect()),
            ..Secret::default()
        });
        let sealed = values.iter().map(|(key, text)| (*key, text.as_bytes()));
        origin::seal_secret(self.ctx, self.desired, &mut object, sealed);
        object
    }
}
