//! Keeps what a secured cluster needs beside its pods: the CAs, the users, and the certificates of
//! its nodes.
//!
//! All of it follows from Secrets, pods and Pilots at each look, so a controller that ends between
//! any two writes goes on where it was. What cannot be used changes nothing that runs: it is told,
//! with the Secret, the key and what to do.
//!
//! Invariant: private keys and passwords stand in Secrets and nowhere else; no type here that holds
//! one can be printed.

mod authorities;
mod elsewhere;
mod given;
mod origin;
mod secrets;
mod signing;
mod succession;
mod users;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod, Service},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Map, Value, json};
use tracing::info;

use self::{
    authorities::ClusterAuthorities,
    given::ClientCertificate,
    signing::{KeyState, NodeNames, SigningOrder},
    users::ClientKey,
};
use super::{
    context::{self, ControllerContext, Error, MANAGER},
    desired_state::DesiredCluster,
    events::EventNotice,
    observe::{ClusterObjects, controller_owner, holds_data, is_owned_by},
    ownership::is_left_behind,
    security_findings::{SecurityFindings, SecurityProblem},
    write::patch_pilot,
};
use crate::{
    api::{
        names::{self, annotation},
        v1beta1::{
            Authentication, ClientTls, ClusterSecurity, MetricsTls, Pilot, PilotSecurity, SignedKey,
        },
    },
    engine::pki::{CertificateUse, KeyRequest, TrustBundle},
    error::chain,
};

/// Fields of a Pilot's `spec.security`.
const INTERNODE_CERTIFICATE: &str = "internodeCertificate";
const CLIENT_CERTIFICATE: &str = "clientCertificate";

/// Keeps Secrets, CAs and users, and signs what nodes ask for.
pub(crate) async fn ensure_security(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    now: Timestamp,
) -> Result<SecurityFindings, Error> {
    let mut findings = SecurityFindings { looked: true, ..SecurityFindings::default() };
    let Some(security) = &desired.security else { return Ok(findings) };
    let in_force = &desired.round.in_force;
    let objects = ctx.stores.cluster_objects(desired);
    let client_certificate = if in_force.client == ClientTls::Off {
        None
    } else {
        match given::read_certificate(ctx, desired, security, now).await? {
            Some(Ok(certificate)) => Some(ClientCertificate::Given(certificate)),
            Some(Err(problem)) => {
                findings.certificates.push(problem);
                Some(ClientCertificate::Unusable)
            }
            None => None,
        }
    };
    let mut authorities = None;
    if in_force.has_encryption() {
        let client_certificate = client_certificate.as_ref();
        let authorities_future = authorities::ensure_authorities(
            ctx,
            desired,
            security,
            client_certificate,
            &objects,
            now,
            &mut findings,
        );
        match authorities_future.await {
            Ok(ensured_authorities) => authorities = ensured_authorities,
            Err(error) => {
                let problem = record_refusal(&mut findings, error)?;
                findings.certificates.push(problem);
            }
        }
    }
    let user_certificate = match &client_certificate {
        Some(ClientCertificate::Given(certificate)) => Some(certificate),
        _ => None,
    };
    findings.lacks = user_certificate.and_then(|certificate| certificate.lacks.clone());
    if in_force.authentication == Authentication::Password {
        let trust = authorities.as_ref().and_then(ClusterAuthorities::client_trust);
        let key = if let Some(certificate) = user_certificate {
            ClientKey::Given(&certificate.key_pem)
        } else if objects.pilots.iter().any(|pilot| is_ours(pilot, desired) && mounts_key(pilot)) {
            ClientKey::AsBefore
        } else {
            ClientKey::None
        };
        let pilots: Vec<_> =
            objects.pilots.iter().filter(|pilot| is_ours(pilot, desired)).cloned().collect();
        let users_future =
            users::ensure_users(ctx, desired, security, &pilots, trust, key, &mut findings);
        if let Err(error) = users_future.await {
            let problem = record_refusal(&mut findings, error)?;
            findings.users.push(problem);
        }
    }
    let client_cas = match &authorities {
        Some(authorities) => {
            read_client_cas(ctx, desired, security, authorities, &mut findings).await?
        }
        None => None,
    };
    let of_clients = client_names(ctx, desired, security).await?;
    let settings = security.certificates.clone().unwrap_or_default();
    let new_keys_at = signing::new_keys_at(&settings, now);
    for pilot in objects.pilots.iter().filter(|pilot| is_ours(pilot, desired)) {
        let mut part = Map::new();
        if let Some(authorities) = &authorities {
            part.extend(trust_patch(pilot, authorities));
            if let Some(certificate) = user_certificate.filter(|_| pilot.spec.security.is_some()) {
                part.extend(certificate.certificate_patch(pilot));
            }
            if let Some(renewing_node) = request_new_key(pilot, new_keys_at.as_ref(), &mut part) {
                findings.former_keys.push(renewing_node.to_owned());
            }
            if let Err(error) = keep_key_record(ctx, desired, pilot, &objects).await {
                record_refusal(&mut findings, error)?;
            }
            let order = build_signing_order(
                desired,
                &of_clients,
                pilot,
                &objects,
                new_keys_at.as_ref(),
                now,
            );
            match order
                .and_then(|order| sign_certificates(&order, authorities, pilot, security, now))
            {
                Ok(signed_fields) => part.extend(signed_fields),
                Err(Some(problem)) => findings.certificates.push(problem),
                Err(None) => {}
            }
        }
        if let Some(client_cas) = &client_cas {
            set_client_cas(pilot, client_cas, &mut part);
        }
        let metrics = security.encrypts_metrics();
        // One Pilot that is refused holds no other up.
        if let Err(error) =
            update_pilot(ctx, desired, pilot, part, findings.revision.as_deref(), metrics).await
        {
            record_refusal(&mut findings, error)?;
        }
    }
    if let Some(revision) = findings.revision.clone() {
        let mark =
            user_certificate.map(|certificate| format!("{revision}.{}", certificate.key_prefix()));
        hurry_mounts(ctx, desired, &objects, &revision, mark.as_deref(), &mut findings).await?;
        // Last: nodes are told of their users whatever becomes of a Secret.
        if let Err(error) = users::remove_unused(ctx, desired, security).await {
            let problem = record_refusal(&mut findings, error)?;
            findings.users.push(problem);
        }
    }
    Ok(findings)
}

/// Returns as a problem that an object was not written, and notes where the server would not take it:
/// all else goes on.
///
/// # Errors
/// Any other error.
fn record_refusal(findings: &mut SecurityFindings, error: Error) -> Result<SecurityProblem, Error> {
    let cause = context::stall_for_write_error(error)?;
    let problem = SecurityProblem::from(cause.clone());
    if !cause.is_about_origin() {
        findings.refusal.get_or_insert(cause);
    }
    Ok(problem)
}

/// Returns the CAs whose certificates clients must show, as PEM, with that of nodes: pilots are clients
/// too. `None` where clients need none, or the CAs cannot be read.
async fn read_client_cas(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    authorities: &ClusterAuthorities,
    findings: &mut SecurityFindings,
) -> Result<Option<String>, Error> {
    let source = security.client.as_ref().and_then(|client| client.client_ca.as_ref());
    let Some(source) = source.filter(|_| security.requires_client_certificates()) else {
        return Ok(None);
    };
    let of_clients = match secrets::read_trust(ctx, desired, source, "with CAs of clients").await? {
        Ok(client_trust) => client_trust.bundle,
        Err(problem) => {
            findings.certificates.push(problem);
            return Ok(None);
        }
    };
    // Without the CA of nodes their own pilots would be locked out.
    let Some(of_nodes) = authorities.for_usage(CertificateUse::Internode) else { return Ok(None) };
    let bundle = TrustBundle::join([&of_clients, &of_nodes.own]);
    Ok(match bundle {
        Ok(bundle) => Some(bundle.to_pem()),
        Err(refusal) => {
            let message = format!("client.clientCA, with the CA of nodes, {refusal}");
            findings.certificates.push(SecurityProblem { reason: "SecretInvalid", message });
            None
        }
    })
}

/// Tells a node whose certificates clients must show, beside whatever else it is told of its own.
fn set_client_cas(pilot: &Pilot, clients: &str, part: &mut Map<String, Value>) {
    let security = pilot.spec.security.as_ref();
    let old_certificate = security.and_then(|security| security.client_certificate.as_ref());
    if old_certificate.is_some_and(|certificate| certificate.clients.as_deref() == Some(clients)) {
        return;
    }
    if let Some(certificate_field) = part.get_mut(CLIENT_CERTIFICATE) {
        certificate_field["clients"] = json!(clients);
    } else if old_certificate.is_some() {
        part.insert(CLIENT_CERTIFICATE.to_owned(), json!({"clients": clients}));
    }
}

/// Was the node told a certificate whose key is mounted?
fn mounts_key(pilot: &Pilot) -> bool {
    let security = pilot.spec.security.as_ref();
    security
        .and_then(|security| security.client_certificate.as_ref())
        .is_some_and(|certificate| certificate.mounted_key.is_some())
}

fn is_ours(pilot: &Pilot, desired: &DesiredCluster) -> bool {
    is_of(pilot, &desired.uid)
}

/// Is it the Pilot of a cluster's node?
fn is_of(pilot: &Pilot, cluster_uid: &str) -> bool {
    let owner = controller_owner(&pilot.metadata);
    pilot.metadata.deletion_timestamp.is_none()
        && owner.is_some_and(|owner| owner.uid == cluster_uid)
}

fn name_of(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Writes to a Pilot what was signed for it, and which users it shall have.
async fn update_pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &Pilot,
    mut part: Map<String, Value>,
    users: Option<&str>,
    encrypts_metrics: bool,
) -> Result<(), Error> {
    // A node that is not secured yet is told nothing of it.
    let Some(security) = &pilot.spec.security else { return Ok(()) };
    let signed_hash =
        part.get("key").map(|key| key["sha256"].as_str().unwrap_or_default().to_owned());
    if users.is_some() && security.users.as_deref() != users {
        part.insert("users".to_owned(), json!(users));
    }
    let has_certificate = security.client != ClientTls::Off;
    let metrics = (encrypts_metrics && has_certificate).then_some(MetricsTls::Required);
    if security.metrics != metrics {
        part.insert("metrics".to_owned(), json!(metrics));
    }
    if part.is_empty() {
        return Ok(());
    }
    let (name, version) = (name_of(pilot), pilot.metadata.resource_version.as_deref());
    let patch = json!({"spec": {"security": part}});
    patch_pilot(ctx, desired, name, version.unwrap_or_default(), patch).await?;
    if let Some(signed_key) = signed_hash {
        info!(namespace = desired.namespace, pilot = name, "Signed the certificates of a node");
        let reason = match &security.key {
            None => "CertificateIssued",
            Some(old_key) if old_key.sha256 != signed_key => "KeyReplaced",
            Some(_) => "CertificateRenewed",
        };
        let notice = EventNotice::normal(reason, format!("signed the certificates of {name}"));
        ctx.events.publish(desired, &notice).await;
    }
    Ok(())
}

/// What is to be signed for a node: its names and key, as Kubernetes and the record have them.
/// `None` as an error: there is nothing to sign yet.
fn build_signing_order<'a>(
    desired: &DesiredCluster,
    of_clients: &ClientNames,
    pilot: &'a Pilot,
    objects: &ClusterObjects,
    new_keys_at: Option<&Time>,
    now: Timestamp,
) -> Result<SigningOrder<'a>, Option<SecurityProblem>> {
    let security = pilot.spec.security.as_ref().ok_or(None)?;
    let status = pilot.status.security.as_ref().ok_or(None)?;
    let request = status.request.as_ref().ok_or(None)?;
    let name = name_of(pilot);
    let refusal = |reason: String| {
        let message = format!("{name}: {reason}");
        Some(SecurityProblem { reason: "RequestRefused", message })
    };
    let set = name.rsplit_once('-').map_or(name, |(set, _)| set);
    let pod = objects.pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
    let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()).ok_or(None)?;
    let of_set = controller_owner(&pod.metadata);
    if of_set.is_none_or(|owner| owner.kind != "StatefulSet" || owner.name != set) {
        return Err(refusal("no StatefulSet of the cluster owns its pod".to_owned()));
    }
    // The report of an earlier pod is no request of this one.
    let reporter = pilot.status.instance.as_ref().and_then(|instance| instance.uid.as_deref());
    if reporter.is_none() || reporter != pod.metadata.uid.as_deref() {
        return Err(None);
    }
    let read_key =
        |csr: &str| KeyRequest::from_pem(csr).map_err(|error| refusal(error.to_string()));
    let key = read_key(&request.csr)?;
    let recorded_key = security.key.as_ref();
    if let Some(new_request) = &request.new_key
        && recorded_key.is_some_and(|record| record.sha256 != key.key_sha256())
        && read_key(&new_request.csr)?.key_sha256()
            == recorded_key.map(|record| record.sha256.as_str()).unwrap_or_default()
    {
        // Its new key is signed, and it has not seen that yet.
        return Err(None);
    }
    let keeper = KeyKeeper::for_pod(desired, pod, objects).ok_or(None)?;
    let volume = keeper.meta.uid.clone().ok_or(None)?;
    let annotations = pilot.metadata.annotations.as_ref();
    let accepted_key = annotations.and_then(|values| values.get(annotation::ACCEPT_KEY));
    // A Pilot that was made again has no record.
    let annotated_key = keeper.last_signed_key();
    let previous_key = recorded_key.or(annotated_key.as_ref());
    signing::check_key(previous_key, &key.key_sha256(), &volume, accepted_key.map(String::as_str))
        .map_err(refusal)?;
    let names = node_names(desired, of_clients, name, set, pod).ok_or(None)?;
    let new_key = signing::new_key(security, request, new_keys_at).map_err(refusal)?;
    let (key, key_state) = match new_key {
        Some(new_key) => (new_key, KeyState::New),
        None if recorded_key.is_some_and(|record| {
            // That of another volume is new.
            record.sha256 == key.key_sha256() && signing::is_former(record, new_keys_at)
        }) =>
        {
            (key, KeyState::Former)
        }
        None => (key, KeyState::Current),
    };
    let sha256 = key.key_sha256();
    let since = match previous_key.filter(|record| record.sha256 == sha256) {
        Some(record) => record.since.clone(),
        None => Timestamp::from_second(now.as_second()).ok().map(Time),
    };
    let record = SignedKey { sha256, volume, since };
    Ok(SigningOrder { pilot: name, told: security, key, record, names, key_state })
}

/// Asks a node for a new private key, where the one on record was signed before `new_keys_at`. Returns
/// the node's name while its key is to be replaced.
fn request_new_key<'a>(
    pilot: &'a Pilot,
    new_keys_at: Option<&Time>,
    part: &mut Map<String, Value>,
) -> Option<&'a str> {
    let security = pilot.spec.security.as_ref()?;
    let is_former = security.key.as_ref().is_some_and(|key| signing::is_former(key, new_keys_at));
    let requested_at = new_keys_at.filter(|_| is_former);
    if security.new_key_at.as_ref() != requested_at {
        part.insert("newKeyAt".to_owned(), json!(requested_at));
    }
    is_former.then(|| name_of(pilot))
}

/// The object whose volume keeps a node's key: its claim, or its pod where it has none.
struct KeyKeeper<'a> {
    resource: ApiResource,
    meta: &'a ObjectMeta,
}

impl<'a> KeyKeeper<'a> {
    fn for_pod(
        desired: &DesiredCluster,
        pod: &'a Pod,
        objects: &'a ClusterObjects,
    ) -> Option<Self> {
        if holds_data(pod, desired) {
            return Some(Self { resource: ApiResource::erase::<Pod>(&()), meta: &pod.metadata });
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let claim = format!("{}-{name}", desired.database.names.data_volume);
        let has_name = |meta: &ObjectMeta| meta.name.as_ref() == Some(&claim);
        let claim = objects.claims.iter().find(|claim| has_name(&claim.metadata))?;
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        Some(Self { resource, meta: &claim.metadata })
    }

    /// Returns the key that was signed last for a node with this volume.
    fn last_signed_key(&self) -> Option<SignedKey> {
        let text = self.meta.annotations.as_ref()?.get(annotation::SIGNED_KEY)?;
        Some(signing::parse_annotation(text, self.meta.uid.as_deref()?))
    }
}

/// Writes the key on record to what keeps the key, so that a lost Pilot forgets no key in use.
async fn keep_key_record(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &Pilot,
    objects: &ClusterObjects,
) -> Result<(), Error> {
    let record = pilot.spec.security.as_ref().and_then(|security| security.key.as_ref());
    let pod = objects.pods.iter().find(|pod| pod.metadata.name == pilot.metadata.name);
    let keeper = pod.and_then(|pod| KeyKeeper::for_pod(desired, pod, objects));
    let (Some(record), Some(KeyKeeper { resource, meta })) = (record, keeper) else {
        return Ok(());
    };
    let text = signing::annotation_of(record);
    let annotations = meta.annotations.as_ref();
    let is_there = annotations.and_then(|values| values.get(annotation::SIGNED_KEY)) == Some(&text);
    if is_there || meta.uid.as_ref() != Some(&record.volume) || meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    annotate_object(ctx, desired, &resource, meta, annotation::SIGNED_KEY, &text).await
}

/// Writes an annotation to the object that was read. One that is gone is no error.
async fn annotate_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    meta: &ObjectMeta,
    key: &str,
    value: &str,
) -> Result<(), Error> {
    let name = meta.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {"uid": meta.uid, "annotations": {key: value}}});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..<_>::default() };
    let api = ctx.write_api(resource, &desired.namespace)?;
    match api.patch(name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::from_request("patch", &resource.kind, name, error)),
    }
}

/// The names under which clients find the nodes of a cluster.
struct ClientNames {
    services: Vec<String>,
    /// Addresses and names of these Services and of the spec.
    others: Vec<String>,
}

/// Returns the names under which clients find a cluster, as Kubernetes and the spec say them.
async fn client_names(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
) -> Result<ClientNames, Error> {
    let resource = ApiResource::erase::<Service>(&());
    let (mut services, mut others) = (Vec::new(), Vec::new());
    for service in
        (desired.database.services)(desired).iter().filter(|service| service.is_for_clients())
    {
        services.push(service.name.clone());
        let object = ctx.get_object(&resource, &desired.namespace, &service.name).await?;
        // Addresses of another's Service are none of the cluster's.
        let is_ours = |object: &DynamicObject| {
            let meta = &object.metadata;
            is_owned_by(meta, desired) || is_left_behind(&ctx.stores, desired, meta)
        };
        let Some(object) = object.filter(is_ours) else { continue };
        let addresses =
            [object.data["spec"]["clusterIPs"].as_array()].into_iter().flatten().flatten();
        others.extend(
            addresses.filter_map(Value::as_str).filter(|ip| *ip != "None").map(str::to_owned),
        );
        let balancers = object.data["status"]["loadBalancer"]["ingress"].as_array();
        for entry in balancers.into_iter().flatten() {
            let addresses = ["ip", "hostname"].into_iter().filter_map(|key| entry[key].as_str());
            others.extend(addresses.map(str::to_owned));
        }
    }
    others.extend(security.client.iter().flat_map(|client| client.alt_names.iter().cloned()));
    Ok(ClientNames { services, others })
}

/// Returns the names of a node, as Kubernetes says them; `None` while its pod has no address.
fn node_names(
    desired: &DesiredCluster,
    of_clients: &ClientNames,
    name: &str,
    set: &str,
    pod: &Pod,
) -> Option<NodeNames> {
    let status = pod.status.as_ref()?;
    let addresses: Vec<_> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let addresses = if addresses.is_empty() { vec![status.pod_ip.as_deref()?] } else { addresses };
    let subdomain = names::pods_service(set);
    let mut names = NodeNames::new(&desired.namespace, name, &subdomain, &addresses);
    for service in &of_clients.services {
        names.add_service(service, &desired.namespace);
    }
    names.add_for_clients(of_clients.others.iter().map(String::as_str));
    Some(names)
}

/// Returns whom a node is to trust on each port, where it was told otherwise.
fn trust_patch(pilot: &Pilot, authorities: &ClusterAuthorities) -> Map<String, Value> {
    let mut part = Map::new();
    let Some(security) = &pilot.spec.security else { return part };
    for (usage, field, certificate) in [
        (CertificateUse::Internode, INTERNODE_CERTIFICATE, &security.internode_certificate),
        (CertificateUse::Client, CLIENT_CERTIFICATE, &security.client_certificate),
    ] {
        let Some(authority) = authorities.for_usage(usage) else { continue };
        let trust = authority.trust.to_pem();
        if certificate.as_ref().is_some_and(|certificate| {
            certificate.mounted_key.is_none() && certificate.trust != trust
        }) {
            part.insert(field.to_owned(), json!({"trust": trust}));
        }
    }
    part
}

/// Signs what is due for a node. Returns the fields of `spec.security` that change; none where all
/// is as it should be.
fn sign_certificates(
    order: &SigningOrder<'_>,
    authorities: &ClusterAuthorities,
    pilot: &Pilot,
    security: &ClusterSecurity,
    now: Timestamp,
) -> Result<Map<String, Value>, Option<SecurityProblem>> {
    let settings = security.certificates.clone().unwrap_or_default();
    let pilot_security: &PilotSecurity = order.told;
    let mut part = Map::new();
    let certificates = [
        (CertificateUse::Internode, INTERNODE_CERTIFICATE, &pilot_security.internode_certificate),
        (CertificateUse::Client, CLIENT_CERTIFICATE, &pilot_security.client_certificate),
    ];
    let all_may_sign = certificates.iter().all(|(usage, _, certificate)| {
        certificate.as_ref().is_none_or(|certificate| certificate.mounted_key.is_some())
            || authorities
                .for_usage(*usage)
                .is_some_and(|signing_authority| signing_authority.may_sign)
    });
    if order.key_state == KeyState::New && !all_may_sign {
        return Ok(part);
    }
    for (usage, field, certificate) in certificates {
        let Some(signing_authority) = authorities.for_usage(usage) else { continue };
        let can_sign = order.may_be_signed(signing_authority, certificate.as_ref(), now);
        if !can_sign
            || !order.is_due(signing_authority, usage, certificate.as_ref(), &settings, now)
        {
            continue;
        }
        let new_certificate =
            order.issue_certificate(signing_authority, usage, &settings, now).map_err(|error| {
                let message = format!("{}: {}", name_of(pilot), chain(&error));
                Some(SecurityProblem { reason: "RequestRefused", message })
            })?;
        let mut certificate_json = json!(new_certificate);
        if certificate.as_ref().is_some_and(|certificate| certificate.mounted_key.is_some()) {
            certificate_json["mountedKey"] = Value::Null;
        }
        part.insert(field.to_owned(), certificate_json);
    }
    if !part.is_empty() {
        part.insert("key".to_owned(), json!(order.record));
    }
    if order.key_state == KeyState::New {
        part.insert("newKeyAt".to_owned(), Value::Null);
    }
    Ok(part)
}

/// Marks pods whose nodes have older users, or another key than `mark` says, so that their kubelets look
/// at once at what is mounted.
async fn hurry_mounts(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    objects: &ClusterObjects,
    revision: &str,
    mark: Option<&str>,
    findings: &mut SecurityFindings,
) -> Result<(), Error> {
    for pod in &objects.pods {
        let meta = &pod.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let pilot = objects.pilots.iter().find(|pilot| name_of(pilot) == name);
        let applied_revision =
            pilot.and_then(|pilot| pilot.status.security.as_ref()?.users.as_deref());
        let annotations = meta.annotations.as_ref();
        let current_mark = annotations.and_then(|values| values.get(annotation::USERS));
        let desired_mark = mark.unwrap_or(revision);
        if (applied_revision == Some(revision) && mark.is_none())
            || current_mark.map(String::as_str) == Some(desired_mark)
            || meta.deletion_timestamp.is_some()
        {
            continue;
        }
        let pods = ApiResource::erase::<Pod>(&());
        let write_result =
            annotate_object(ctx, desired, &pods, meta, annotation::USERS, desired_mark).await;
        if let Err(error) = write_result {
            record_refusal(findings, error)?;
        }
    }
    Ok(())
}
