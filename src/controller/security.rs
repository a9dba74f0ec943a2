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
    observe::{ClusterObjects, controller, holds_data, owned},
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
pub(crate) async fn keep(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    now: Timestamp,
) -> Result<SecurityFindings, Error> {
    let mut findings = SecurityFindings { looked: true, ..SecurityFindings::default() };
    let Some(security) = &desired.security else { return Ok(findings) };
    let in_force = &desired.round.in_force;
    let objects = ctx.stores.objects(desired);
    let given = if in_force.client == ClientTls::Off {
        None
    } else {
        match given::read(ctx, desired, security, now).await? {
            Some(Ok(given)) => Some(ClientCertificate::Given(given)),
            Some(Err(problem)) => {
                findings.certificates.push(problem);
                Some(ClientCertificate::Unusable)
            }
            None => None,
        }
    };
    let mut authorities = None;
    if in_force.encrypts() {
        let given = given.as_ref();
        let kept = authorities::keep(ctx, desired, security, given, &objects, now, &mut findings);
        match kept.await {
            Ok(kept) => authorities = kept,
            Err(error) => {
                let problem = refused(&mut findings, error)?;
                findings.certificates.push(problem);
            }
        }
    }
    let given = match &given {
        Some(ClientCertificate::Given(given)) => Some(given),
        _ => None,
    };
    findings.lacks = given.and_then(|given| given.lacks.clone());
    if in_force.authentication == Authentication::Password {
        let trust = authorities.as_ref().and_then(ClusterAuthorities::client_trust);
        let key = if let Some(given) = given {
            ClientKey::Given(&given.key_pem)
        } else if objects.pilots.iter().any(|pilot| is_ours(pilot, desired) && mounts_key(pilot)) {
            ClientKey::AsBefore
        } else {
            ClientKey::None
        };
        let pilots: Vec<_> =
            objects.pilots.iter().filter(|pilot| is_ours(pilot, desired)).cloned().collect();
        let kept = users::keep(ctx, desired, security, &pilots, trust, key, &mut findings);
        if let Err(error) = kept.await {
            let problem = refused(&mut findings, error)?;
            findings.users.push(problem);
        }
    }
    let clients = match &authorities {
        Some(authorities) => clients(ctx, desired, security, authorities, &mut findings).await?,
        None => None,
    };
    let of_clients = client_names(ctx, desired, security).await?;
    let settings = security.certificates.clone().unwrap_or_default();
    let new_keys_at = signing::new_keys_at(&settings, now);
    for pilot in objects.pilots.iter().filter(|pilot| is_ours(pilot, desired)) {
        let mut part = Map::new();
        if let Some(authorities) = &authorities {
            part.extend(trusted(pilot, authorities));
            if let Some(given) = given.filter(|_| pilot.spec.security.is_some()) {
                part.extend(given.told(pilot));
            }
            if let Some(asked) = asks_new_key(pilot, new_keys_at.as_ref(), &mut part) {
                findings.former_keys.push(asked.to_owned());
            }
            if let Err(error) = keep_key_record(ctx, desired, pilot, &objects).await {
                refused(&mut findings, error)?;
            }
            let order = order(desired, &of_clients, pilot, &objects, new_keys_at.as_ref(), now);
            match order.and_then(|order| signed(&order, authorities, pilot, security, now)) {
                Ok(signed) => part.extend(signed),
                Err(Some(problem)) => findings.certificates.push(problem),
                Err(None) => {}
            }
        }
        if let Some(clients) = &clients {
            tell_clients(pilot, clients, &mut part);
        }
        let metrics = security.encrypts_metrics();
        // One Pilot that is refused holds no other up.
        if let Err(error) =
            tell(ctx, desired, pilot, part, findings.revision.as_deref(), metrics).await
        {
            refused(&mut findings, error)?;
        }
    }
    if let Some(revision) = findings.revision.clone() {
        let mark = given.map(|given| format!("{revision}.{}", given.mark()));
        hurry_mounts(ctx, desired, &objects, &revision, mark.as_deref(), &mut findings).await?;
        // Last: nodes are told of their users whatever becomes of a Secret.
        if let Err(error) = users::remove_unused(ctx, desired, security).await {
            let problem = refused(&mut findings, error)?;
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
fn refused(findings: &mut SecurityFindings, error: Error) -> Result<SecurityProblem, Error> {
    let cause = context::unwritten(error)?;
    let problem = SecurityProblem::from(cause.clone());
    if !cause.is_about_origin() {
        findings.refusal.get_or_insert(cause);
    }
    Ok(problem)
}

/// Returns the CAs whose certificates clients must show, as PEM, with that of nodes: pilots are clients
/// too. `None` where clients need none, or the CAs cannot be read.
async fn clients(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    authorities: &ClusterAuthorities,
    findings: &mut SecurityFindings,
) -> Result<Option<String>, Error> {
    let source = security.client.as_ref().and_then(|client| client.client_ca.as_ref());
    let Some(source) = source.filter(|_| security.asks_certificates()) else { return Ok(None) };
    let of_clients = match secrets::trust(ctx, desired, source, "with CAs of clients").await? {
        Ok(found) => found.bundle,
        Err(problem) => {
            findings.certificates.push(problem);
            return Ok(None);
        }
    };
    // Without the CA of nodes their own pilots would be locked out.
    let Some(of_nodes) = authorities.of(CertificateUse::Internode) else { return Ok(None) };
    let all = TrustBundle::join([&of_clients, &of_nodes.own]);
    Ok(match all {
        Ok(all) => Some(all.to_pem()),
        Err(refusal) => {
            let message = format!("client.clientCA, with the CA of nodes, {refusal}");
            findings.certificates.push(SecurityProblem { reason: "SecretInvalid", message });
            None
        }
    })
}

/// Tells a node whose certificates clients must show, beside whatever else it is told of its own.
fn tell_clients(pilot: &Pilot, clients: &str, part: &mut Map<String, Value>) {
    let told = pilot.spec.security.as_ref();
    let before = told.and_then(|told| told.client_certificate.as_ref());
    if before.is_some_and(|before| before.clients.as_deref() == Some(clients)) {
        return;
    }
    if let Some(own) = part.get_mut(CLIENT_CERTIFICATE) {
        own["clients"] = json!(clients);
    } else if before.is_some() {
        part.insert(CLIENT_CERTIFICATE.to_owned(), json!({"clients": clients}));
    }
}

/// Was the node told a certificate whose key is mounted?
fn mounts_key(pilot: &Pilot) -> bool {
    let told = pilot.spec.security.as_ref();
    told.and_then(|told| told.client_certificate.as_ref())
        .is_some_and(|told| told.mounted_key.is_some())
}

fn is_ours(pilot: &Pilot, desired: &DesiredCluster) -> bool {
    is_of(pilot, &desired.uid)
}

/// Is it the Pilot of a cluster's node?
fn is_of(pilot: &Pilot, cluster_uid: &str) -> bool {
    let owner = controller(&pilot.metadata);
    pilot.metadata.deletion_timestamp.is_none()
        && owner.is_some_and(|owner| owner.uid == cluster_uid)
}

fn name_of(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Writes to a Pilot what was signed for it, and which users it shall have.
async fn tell(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &Pilot,
    mut part: Map<String, Value>,
    users: Option<&str>,
    encrypts_metrics: bool,
) -> Result<(), Error> {
    // A node that is not secured yet is told nothing of it.
    let Some(told) = &pilot.spec.security else { return Ok(()) };
    let signed = part.get("key").map(|key| key["sha256"].as_str().unwrap_or_default().to_owned());
    if users.is_some() && told.users.as_deref() != users {
        part.insert("users".to_owned(), json!(users));
    }
    let has_certificate = told.client != ClientTls::Off;
    let metrics = (encrypts_metrics && has_certificate).then_some(MetricsTls::Required);
    if told.metrics != metrics {
        part.insert("metrics".to_owned(), json!(metrics));
    }
    if part.is_empty() {
        return Ok(());
    }
    let (name, version) = (name_of(pilot), pilot.metadata.resource_version.as_deref());
    let patch = json!({"spec": {"security": part}});
    patch_pilot(ctx, desired, name, version.unwrap_or_default(), patch).await?;
    if let Some(signed_key) = signed {
        info!(namespace = desired.namespace, pilot = name, "Signed the certificates of a node");
        let reason = match &told.key {
            None => "CertificateIssued",
            Some(former) if former.sha256 != signed_key => "KeyReplaced",
            Some(_) => "CertificateRenewed",
        };
        let notice = EventNotice::normal(reason, format!("signed the certificates of {name}"));
        ctx.events.publish(desired, &notice).await;
    }
    Ok(())
}

/// What is to be signed for a node: its names and key, as Kubernetes and the record have them.
/// `None` as an error: there is nothing to sign yet.
fn order<'a>(
    desired: &DesiredCluster,
    of_clients: &ClientNames,
    pilot: &'a Pilot,
    objects: &ClusterObjects,
    new_keys_at: Option<&Time>,
    now: Timestamp,
) -> Result<SigningOrder<'a>, Option<SecurityProblem>> {
    let told = pilot.spec.security.as_ref().ok_or(None)?;
    let status = pilot.status.security.as_ref().ok_or(None)?;
    let request = status.request.as_ref().ok_or(None)?;
    let name = name_of(pilot);
    let refused = |why: String| {
        let message = format!("{name}: {why}");
        Some(SecurityProblem { reason: "RequestRefused", message })
    };
    let set = name.rsplit_once('-').map_or(name, |(set, _)| set);
    let pod = objects.pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
    let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()).ok_or(None)?;
    let of_set = controller(&pod.metadata);
    if of_set.is_none_or(|owner| owner.kind != "StatefulSet" || owner.name != set) {
        return Err(refused("no StatefulSet of the cluster owns its pod".to_owned()));
    }
    // The report of an earlier pod is no request of this one.
    let reporter = pilot.status.instance.as_ref().and_then(|instance| instance.uid.as_deref());
    if reporter.is_none() || reporter != pod.metadata.uid.as_deref() {
        return Err(None);
    }
    let read = |csr: &str| KeyRequest::read(csr).map_err(|error| refused(error.to_string()));
    let key = read(&request.csr)?;
    let on_record = told.key.as_ref();
    if let Some(new) = &request.new_key
        && on_record.is_some_and(|record| record.sha256 != key.key_sha256())
        && read(&new.csr)?.key_sha256()
            == on_record.map(|record| record.sha256.as_str()).unwrap_or_default()
    {
        // Its new key is signed, and it has not seen that yet.
        return Err(None);
    }
    let keeper = KeyKeeper::of(desired, pod, objects).ok_or(None)?;
    let volume = keeper.meta.uid.clone().ok_or(None)?;
    let annotations = pilot.metadata.annotations.as_ref();
    let word = annotations.and_then(|all| all.get(annotation::ACCEPT_KEY));
    // A Pilot that was made again has no record.
    let annotated = keeper.record();
    let before = on_record.or(annotated.as_ref());
    signing::accept(before, &key.key_sha256(), &volume, word.map(String::as_str))
        .map_err(refused)?;
    let names = node_names(desired, of_clients, name, set, pod).ok_or(None)?;
    let new = signing::new_key(told, request, new_keys_at).map_err(refused)?;
    let (key, key_state) = match new {
        Some(new) => (new, KeyState::New),
        None if on_record.is_some_and(|record| {
            // That of another volume is new.
            record.sha256 == key.key_sha256() && signing::is_former(record, new_keys_at)
        }) =>
        {
            (key, KeyState::Former)
        }
        None => (key, KeyState::Current),
    };
    let sha256 = key.key_sha256();
    let since = match before.filter(|record| record.sha256 == sha256) {
        Some(record) => record.since.clone(),
        None => Timestamp::from_second(now.as_second()).ok().map(Time),
    };
    let record = SignedKey { sha256, volume, since };
    Ok(SigningOrder { pilot: name, told, key, record, names, key_state })
}

/// Asks a node for a new private key, where the one on record was signed before `new_keys_at`. Returns
/// the node's name while its key is to be replaced.
fn asks_new_key<'a>(
    pilot: &'a Pilot,
    new_keys_at: Option<&Time>,
    part: &mut Map<String, Value>,
) -> Option<&'a str> {
    let told = pilot.spec.security.as_ref()?;
    let is_former = told.key.as_ref().is_some_and(|key| signing::is_former(key, new_keys_at));
    let asked = new_keys_at.filter(|_| is_former);
    if told.new_key_at.as_ref() != asked {
        part.insert("newKeyAt".to_owned(), json!(asked));
    }
    is_former.then(|| name_of(pilot))
}

/// The object whose volume keeps a node's key: its claim, or its pod where it has none.
struct KeyKeeper<'a> {
    resource: ApiResource,
    meta: &'a ObjectMeta,
}

impl<'a> KeyKeeper<'a> {
    fn of(desired: &DesiredCluster, pod: &'a Pod, objects: &'a ClusterObjects) -> Option<Self> {
        if holds_data(pod, desired) {
            return Some(Self { resource: ApiResource::erase::<Pod>(&()), meta: &pod.metadata });
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let claim = format!("{}-{name}", desired.database.names.data_volume);
        let named = |meta: &ObjectMeta| meta.name.as_ref() == Some(&claim);
        let claim = objects.claims.iter().find(|found| named(&found.metadata))?;
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        Some(Self { resource, meta: &claim.metadata })
    }

    /// Returns the key that was signed last for a node with this volume.
    fn record(&self) -> Option<SignedKey> {
        let text = self.meta.annotations.as_ref()?.get(annotation::SIGNED_KEY)?;
        Some(signing::annotated(text, self.meta.uid.as_deref()?))
    }
}

/// Writes the key on record to what keeps the key, so that a lost Pilot forgets no key in use.
async fn keep_key_record(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &Pilot,
    objects: &ClusterObjects,
) -> Result<(), Error> {
    let record = pilot.spec.security.as_ref().and_then(|told| told.key.as_ref());
    let pod = objects.pods.iter().find(|pod| pod.metadata.name == pilot.metadata.name);
    let keeper = pod.and_then(|pod| KeyKeeper::of(desired, pod, objects));
    let (Some(record), Some(KeyKeeper { resource, meta })) = (record, keeper) else {
        return Ok(());
    };
    let text = signing::annotation_of(record);
    let annotations = meta.annotations.as_ref();
    let is_there = annotations.and_then(|all| all.get(annotation::SIGNED_KEY)) == Some(&text);
    if is_there || meta.uid.as_ref() != Some(&record.volume) || meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    annotate(ctx, desired, &resource, meta, annotation::SIGNED_KEY, &text).await
}

/// Writes an annotation to the object that was read. One that is gone is no error.
async fn annotate(
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
    let api = ctx.write(resource, &desired.namespace)?;
    match api.patch(name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::request("patch", &resource.kind, name, error)),
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
    for service in (desired.database.services)(desired).iter().filter(|one| one.is_for_clients()) {
        services.push(service.name.clone());
        let found = ctx.object(&resource, &desired.namespace, &service.name).await?;
        // Addresses of another's Service are none of the cluster's.
        let is_ours = |found: &DynamicObject| {
            let meta = &found.metadata;
            owned(meta, desired) || is_left_behind(&ctx.stores, desired, meta)
        };
        let Some(found) = found.filter(is_ours) else { continue };
        let ways = [found.data["spec"]["clusterIPs"].as_array()].into_iter().flatten().flatten();
        others.extend(ways.filter_map(Value::as_str).filter(|ip| *ip != "None").map(str::to_owned));
        let balancers = found.data["status"]["loadBalancer"]["ingress"].as_array();
        for entry in balancers.into_iter().flatten() {
            let ways = ["ip", "hostname"].into_iter().filter_map(|key| entry[key].as_str());
            others.extend(ways.map(str::to_owned));
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
fn trusted(pilot: &Pilot, authorities: &ClusterAuthorities) -> Map<String, Value> {
    let mut part = Map::new();
    let Some(told) = &pilot.spec.security else { return part };
    for (usage, field, before) in [
        (CertificateUse::Internode, INTERNODE_CERTIFICATE, &told.internode_certificate),
        (CertificateUse::Client, CLIENT_CERTIFICATE, &told.client_certificate),
    ] {
        let Some(authority) = authorities.of(usage) else { continue };
        let trust = authority.trust.to_pem();
        if before
            .as_ref()
            .is_some_and(|before| before.mounted_key.is_none() && before.trust != trust)
        {
            part.insert(field.to_owned(), json!({"trust": trust}));
        }
    }
    part
}

/// Signs what is due for a node. Returns the fields of `spec.security` that change; none where all
/// is as it should be.
fn signed(
    order: &SigningOrder<'_>,
    authorities: &ClusterAuthorities,
    pilot: &Pilot,
    security: &ClusterSecurity,
    now: Timestamp,
) -> Result<Map<String, Value>, Option<SecurityProblem>> {
    let settings = security.certificates.clone().unwrap_or_default();
    let told: &PilotSecurity = order.told;
    let mut part = Map::new();
    let certificates = [
        (CertificateUse::Internode, INTERNODE_CERTIFICATE, &told.internode_certificate),
        (CertificateUse::Client, CLIENT_CERTIFICATE, &told.client_certificate),
    ];
    let all_may_sign = certificates.iter().all(|(usage, _, before)| {
        before.as_ref().is_none_or(|before| before.mounted_key.is_some())
            || authorities.of(*usage).is_some_and(|signing| signing.may_sign)
    });
    if order.key_state == KeyState::New && !all_may_sign {
        return Ok(part);
    }
    for (usage, field, before) in certificates {
        let Some(signing) = authorities.of(usage) else { continue };
        let may = order.may_be_signed(signing, before.as_ref(), now);
        if !may || !order.is_due(signing, usage, before.as_ref(), &settings, now) {
            continue;
        }
        let made = order.sign(signing, usage, &settings, now).map_err(|error| {
            let message = format!("{}: {}", name_of(pilot), chain(&error));
            Some(SecurityProblem { reason: "RequestRefused", message })
        })?;
        let mut made = json!(made);
        if before.as_ref().is_some_and(|before| before.mounted_key.is_some()) {
            made["mountedKey"] = Value::Null;
        }
        part.insert(field.to_owned(), made);
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
        let applied = pilot.and_then(|pilot| pilot.status.security.as_ref()?.users.as_deref());
        let annotations = meta.annotations.as_ref();
        let marked = annotations.and_then(|all| all.get(annotation::USERS));
        let wanted = mark.unwrap_or(revision);
        if (applied == Some(revision) && mark.is_none())
            || marked.map(String::as_str) == Some(wanted)
            || meta.deletion_timestamp.is_some()
        {
            continue;
        }
        let pods = ApiResource::erase::<Pod>(&());
        let written = annotate(ctx, desired, &pods, meta, annotation::USERS, wanted).await;
        if let Err(error) = written {
            refused(findings, error)?;
        }
    }
    Ok(())
}
