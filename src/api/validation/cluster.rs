//! Rules that both cluster kinds share, over one view of either.

use std::collections::HashSet;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::ObjectMeta, util::intstr::IntOrString,
    },
};

use super::{config, format, judge::Judge, metadata, pod_template};
use crate::api::{
    field::Path,
    quantity,
    scheme::Version,
    v1beta1::{
        ClusterStatus, Config, ImageSpec, Jvm, Persistence, PodTemplate, SecurityContext, Services,
        UpdateStrategy,
    },
};

/// Longest name of a cluster. It leaves room for what is appended to it.
const NAME_LIMIT: usize = 40;
/// v1alpha1 took these; some fit no pool.
const OLDER_NAME_LIMIT: usize = 50;
/// Longest name of a StatefulSet whose pods still get their revision label.
const STATEFUL_SET_LIMIT: usize = 52;
const MOST_REPLICAS: i32 = 1000;

/// What the rules read of a cluster.
pub(super) struct Cluster<'a> {
    pub(super) metadata: &'a ObjectMeta,
    pub(super) stateful_set: fn(&str, &str) -> String,
    pub(super) reserved: &'static [&'static str],
    pub(super) version: &'a str,
    pub(super) image: Option<&'a ImageSpec>,
    pub(super) pilot_image: Option<&'a ImageSpec>,
    pub(super) security_context: Option<&'a SecurityContext>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    pub(super) update_strategy: Option<&'a UpdateStrategy>,
    pub(super) services: Option<&'a Services>,
    pub(super) pools: Vec<Pool<'a>>,
    pub(super) status: &'a ClusterStatus,
}

/// What the rules read of a node pool.
pub(super) struct Pool<'a> {
    pub(super) name: &'a str,
    pub(super) replicas: Option<i32>,
    pub(super) zone: Option<&'a str>,
    pub(super) resources: Option<&'a ResourceRequirements>,
    pub(super) persistence: Option<&'a Persistence>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    pub(super) masters: bool,
    /// Its nodes have a state that matters.
    pub(super) keeps_data: bool,
}

impl Pool<'_> {
    /// Nodes that the pool asks for.
    pub(super) fn nodes(&self) -> i64 {
        self.replicas.unwrap_or(1).into()
    }

    pub(super) fn memory_limit(&self) -> Option<&str> {
        let limits = self.resources?.limits.as_ref()?;
        limits.get("memory").map(|quantity| quantity.0.as_str())
    }
}

/// `spec.nodePools[index]`
pub(super) fn pool_path(index: usize) -> Path {
    Path::new("spec").child("nodePools").index(index)
}

/// V1, on top of what any object's name must satisfy.
pub(super) fn name(judge: &mut Judge, cluster: &Cluster<'_>) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let path = Path::new("metadata").child("name");
    if !name.is_empty() && format::dns_subdomain(name).is_empty() {
        judge.beta(|judge| judge.invalid_each(&path, name, &format::dns_label(name)));
    }
    if judge.version == Version::V1alpha1 && name.len() > OLDER_NAME_LIMIT {
        judge.too_long(&path, OLDER_NAME_LIMIT);
    } else if name.len() > NAME_LIMIT {
        judge.beta(|judge| judge.too_long(&path, NAME_LIMIT));
    }
}

/// Rules for the spec, whoever writes it.
pub(super) fn spec(judge: &mut Judge, cluster: &Cluster<'_>) {
    let path = Path::new("spec");
    image(judge, cluster.image, &path.child("image"));
    image(judge, cluster.pilot_image, &path.child("pilotImage"));
    run_as_user(judge, cluster.security_context, &path);
    config::judge(judge, cluster.config, cluster.reserved, &path.child("config"));
    jvm(judge, cluster.jvm, &path.child("jvm"));
    pod_template::judge(judge, cluster.pod_template, &path.child("podTemplate"));
    update_strategy(judge, cluster, &path.child("updateStrategy"));
    services(judge, cluster.services, &path.child("services").child("client"));
    for (index, pool) in cluster.pools.iter().enumerate() {
        node_pool(judge, cluster, pool, &pool_path(index));
    }
    heap_fits(judge, cluster);
}

fn node_pool(judge: &mut Judge, cluster: &Cluster<'_>, pool: &Pool<'_>, path: &Path) {
    pool_name(judge, cluster, pool, &path.child("name"));
    if let Some(replicas) = pool.replicas {
        let path = path.child("replicas");
        if replicas < 0 {
            judge.invalid(&path, replicas, "must be greater than or equal to 0");
        } else if replicas > MOST_REPLICAS {
            judge.invalid(&path, replicas, "must be less than or equal to 1000");
        }
    }
    resources(judge, pool.resources, &path.child("resources"));
    persistence(judge, pool.persistence, &path.child("persistence"));
    config::judge(judge, pool.config, cluster.reserved, &path.child("config"));
    jvm(judge, pool.jvm, &path.child("jvm"));
    pod_template::judge(judge, pool.pod_template, &path.child("podTemplate"));
    if let Some(zone) = pool.zone {
        judge.invalid_each(&path.child("zone"), zone, &format::label_value(zone));
    }
}

/// V2, V3
fn pool_name(judge: &mut Judge, cluster: &Cluster<'_>, pool: &Pool<'_>, path: &Path) {
    if pool.name.is_empty() {
        judge.required(path, "");
        return;
    }
    let wrong = format::dns_subdomain(pool.name);
    if wrong.is_empty() {
        judge.beta(|judge| judge.invalid_each(path, pool.name, &format::dns_label(pool.name)));
    }
    judge.invalid_each(path, pool.name, &wrong);
    let cluster_name = cluster.metadata.name.as_deref().unwrap_or_default();
    let room = STATEFUL_SET_LIMIT.saturating_sub((cluster.stateful_set)(cluster_name, "").len());
    if room == 0 {
        let text = "the name of the cluster leaves no room for that of a node pool";
        judge.beta(|judge| judge.invalid(path, pool.name, text));
    } else if pool.name.len() > room {
        judge.beta(|judge| judge.too_long(path, room));
    }
}

/// V7, V8
fn image(judge: &mut Judge, image: Option<&ImageSpec>, path: &Path) {
    let Some(ImageSpec { repository, tag, digest, pull_policy: _ }) = image else { return };
    if repository.is_empty() {
        judge.required(&path.child("repository"), "");
    }
    match digest.as_deref() {
        Some(digest) => {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let text = "must be sha256: followed by 64 hexadecimal characters";
                judge.invalid(&path.child("digest"), digest, text);
            }
        }
        None if tag.as_deref().unwrap_or_default().is_empty() => {
            judge.required(&path.child("tag"), "tag or digest must be specified");
        }
        None => {}
    }
}

/// V12
fn run_as_user(judge: &mut Judge, context: Option<&SecurityContext>, path: &Path) {
    let path = path.child("securityContext").child("runAsUser");
    match context.and_then(|context| context.run_as_user) {
        Some(user) if user < 0 => judge.invalid(&path, user, "must be greater than or equal to 0"),
        Some(0) => judge.beta(|judge| {
            judge.forbidden(
                &path,
                "databases are not run as root; leave it out to use the default user",
            );
        }),
        _ => {}
    }
}

/// V14
fn persistence(judge: &mut Judge, persistence: Option<&Persistence>, path: &Path) {
    let Some(persistence) = persistence else { return };
    metadata::labels(judge, persistence.labels.iter(), &path.child("labels"));
    metadata::annotations(judge, persistence.annotations.iter(), &path.child("annotations"));
    let path = path.child("size");
    match &persistence.size {
        None if persistence.enabled == Some(false) => {}
        None => judge.required(&path, ""),
        Some(size) => positive(judge, size, &path),
    }
}

/// V17
fn resources(judge: &mut Judge, resources: Option<&ResourceRequirements>, path: &Path) {
    let Some(resources) = resources else { return };
    let limits = resources.limits.clone().unwrap_or_default();
    for (name, limit) in &limits {
        not_negative(judge, limit, &path.child("limits").key(name));
    }
    for (name, request) in resources.requests.iter().flatten() {
        let path = path.child("requests").key(name);
        not_negative(judge, request, &path);
        let Some(limit) = limits.get(name) else { continue };
        if quantity::nanos(&request.0) > quantity::nanos(&limit.0) {
            let text = format!("must be less than or equal to {name} limit of {}", limit.0);
            judge.invalid(&path, request.0.as_str(), &text);
        }
    }
}

fn not_negative(judge: &mut Judge, value: &Quantity, path: &Path) {
    match quantity::nanos(&value.0) {
        None => judge.invalid(path, value.0.as_str(), format::NOT_A_QUANTITY),
        Some(nanos) if nanos < 0 => {
            judge.invalid(path, value.0.as_str(), "must be greater than or equal to 0");
        }
        Some(_) => {}
    }
}

fn positive(judge: &mut Judge, value: &Quantity, path: &Path) {
    match quantity::nanos(&value.0) {
        None => judge.invalid(path, value.0.as_str(), format::NOT_A_QUANTITY),
        Some(nanos) if nanos <= 0 => {
            judge.invalid(path, value.0.as_str(), "must be greater than zero");
        }
        Some(_) => {}
    }
}

/// V31
fn jvm(judge: &mut Judge, jvm: Option<&Jvm>, path: &Path) {
    let Some(Jvm { heap, options }) = jvm else { return };
    if let Some(heap) = heap {
        positive(judge, heap, &path.child("heap"));
    }
    for (index, option) in options.iter().enumerate() {
        let path = path.child("options").index(index);
        if option.starts_with("-Xms") || option.starts_with("-Xmx") {
            judge.forbidden(&path, "use jvm.heap");
        } else if !option.starts_with('-') {
            judge.invalid(&path, option.as_str(), "must start with '-'");
        }
    }
}

/// V31: the heap that holds for a pool lies below its memory limit.
fn heap_fits(judge: &mut Judge, cluster: &Cluster<'_>) {
    let mut said = false;
    let common = cluster.jvm.and_then(|jvm| jvm.heap.as_ref());
    for (index, pool) in cluster.pools.iter().enumerate() {
        let own = pool.jvm.and_then(|jvm| jvm.heap.as_ref());
        let (Some(heap), Some(limit)) = (own.or(common), pool.memory_limit()) else { continue };
        let (Some(bytes), Some(most)) = (quantity::nanos(&heap.0), quantity::nanos(limit)) else {
            continue;
        };
        if bytes >= most && (own.is_some() || !said) {
            let path = if own.is_some() { pool_path(index) } else { Path::new("spec") };
            let text = format!("must be less than the memory limit of {limit}");
            judge.invalid(&path.child("jvm").child("heap"), heap.0.as_str(), &text);
            said |= own.is_none();
        }
    }
}

/// V32–V34
fn update_strategy(judge: &mut Judge, cluster: &Cluster<'_>, path: &Path) {
    let Some(strategy) = cluster.update_strategy else { return };
    max_unavailable(judge, strategy.max_unavailable.as_ref(), &path.child("maxUnavailable"));
    if let Some(canary) = &strategy.canary {
        let path = path.child("canary");
        if canary.replicas < 0 {
            let text = "must be greater than or equal to 0";
            judge.invalid(&path.child("replicas"), canary.replicas, text);
        }
        let pools: HashSet<&str> = cluster.pools.iter().map(|pool| pool.name).collect();
        for (index, name) in canary.node_pools.iter().enumerate() {
            if !pools.contains(name.as_str()) {
                judge.not_found(&path.child("nodePools").index(index), name.as_str());
            }
        }
    }
    if let Some(seconds) = strategy.progress_deadline_seconds
        && !(60..=86_400).contains(&seconds)
    {
        let text = "must be between 60 and 86400, inclusive";
        judge.invalid(&path.child("progressDeadlineSeconds"), seconds, text);
    }
}

fn max_unavailable(judge: &mut Judge, value: Option<&IntOrString>, path: &Path) {
    match value {
        Some(IntOrString::Int(number)) if *number <= 0 => {
            judge.invalid(path, *number, "must be greater than 0");
        }
        Some(IntOrString::String(text)) => {
            let wrong = format::percent(text);
            judge.invalid_each(path, text, &wrong);
            let digits = text.trim_end_matches('%');
            if wrong.is_empty() && digits.bytes().all(|digit| digit == b'0') {
                judge.invalid(path, text.as_str(), "must be greater than 0");
            } else if wrong.is_empty() && !digits.parse::<u32>().is_ok_and(|percent| percent <= 100)
            {
                judge.invalid(path, text.as_str(), "must not be greater than 100%");
            }
        }
        Some(IntOrString::Int(_)) | None => {}
    }
}

/// V35, in the words of core/v1 Services.
fn services(judge: &mut Judge, services: Option<&Services>, path: &Path) {
    let Some(client) = services.and_then(|services| services.client.as_ref()) else { return };
    metadata::labels(judge, client.labels.iter(), &path.child("labels"));
    metadata::annotations(judge, client.annotations.iter(), &path.child("annotations"));
    let type_ = client.type_.as_deref().unwrap_or("ClusterIP");
    let only_balancers = "may only be used when `type` is 'LoadBalancer'";
    if let Some(class) = &client.load_balancer_class {
        let path = path.child("loadBalancerClass");
        if type_ == "LoadBalancer" {
            judge.invalid_each(&path, class, &format::qualified_name(class));
        } else {
            judge.forbidden(&path, only_balancers);
        }
    }
    let ranges = path.child("loadBalancerSourceRanges");
    if type_ != "LoadBalancer" && !client.load_balancer_source_ranges.is_empty() {
        judge.forbidden(&ranges, only_balancers);
    }
    for (index, range) in client.load_balancer_source_ranges.iter().enumerate() {
        judge.invalid_each(&ranges.index(index), range, &format::cidr(range));
    }
    if let Some(policy) = client.external_traffic_policy.as_deref().filter(|_| type_ == "ClusterIP")
    {
        let text = "may only be set for externally-accessible services";
        judge.invalid(&path.child("externalTrafficPolicy"), policy, text);
    }
}
