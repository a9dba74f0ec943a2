//! Validation rules that all cluster kinds share, over one view of any cluster.

use std::collections::HashSet;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};

use serde_json::{Value, json};

use super::{
    cluster_rules::ClusterRules,
    cluster_view::{ClusterView, PoolView, pool_path},
    config, format, metadata, object_names, pod_template, ratchet,
    schema_rules::{self, EnumPolicy},
    security, status,
    transition::{self, UnsafeOverrides},
    validator::Validator,
    warning,
};
use crate::{
    api::{
        V1ALPHA1,
        schema::SchemaSet,
        v1beta1::{
            self, ClusterSpec, ImageSpec, Jvm, NodePool, Persistence, PilotSettings,
            SecurityContext, Services,
        },
    },
    machinery::{
        field_error::FieldPath,
        quantity,
        served_kind::{ObjectPart, ServedVersion, ValidationResult},
    },
};

/// Most bytes of a cluster's status as JSON.
const STATUS_LIMIT: usize = 64 * 1024;

/// Longest name of a cluster in bytes. It leaves room for what is appended in the names of the
/// cluster's objects.
const NAME_LIMIT: usize = 40;
/// Longest name of a cluster in v1alpha1, in bytes; some leave no room for a pool's name.
const OLDER_NAME_LIMIT: usize = 50;
/// Longest name of a StatefulSet, in bytes, whose pods still get their revision label.
const STATEFUL_SET_LIMIT: usize = 52;
const MOST_REPLICAS: i32 = 1000;

/// Builds the view of a cluster. Names every field, so that leaving a new field without rules is a
/// decision.
fn build_view<K: ClusterRules>(cluster: &v1beta1::Cluster<K>) -> ClusterView<'_> {
    let v1beta1::Cluster { metadata, spec, status } = cluster;
    let ClusterSpec {
        version,
        image,
        pilot_image,
        paused: _,
        stopped: _,
        restarted_at: _,
        security_context,
        config,
        jvm,
        pod_template,
        update_strategy,
        services,
        security,
        pilot_settings,
        // The database's own fields are validated by the kind's rules.
        own: _,
        node_pools,
    } = spec;
    ClusterView {
        metadata,
        names: K::NAMES,
        is_managed: K::is_managed,
        is_restated: K::is_restated,
        support: K::SECURITY,
        version,
        image: image.as_ref(),
        pilot_image: pilot_image.as_ref(),
        security_context: security_context.as_ref(),
        config,
        jvm: jvm.as_ref(),
        pod_template,
        update_strategy: update_strategy.as_ref(),
        services: services.as_ref(),
        security: security.as_ref().map(|security| &security.shared),
        role_names: security
            .iter()
            .flat_map(|security| &security.roles)
            .map(|role| role.name.as_str())
            .collect(),
        pilot_settings: pilot_settings.as_ref(),
        pools: node_pools.iter().map(view_pool).collect(),
        status,
    }
}

fn view_pool<K: ClusterRules>(pool: &NodePool<K>) -> PoolView<'_> {
    let keeps_data = K::keeps_data(pool);
    let NodePool {
        name,
        replicas,
        zone,
        resources,
        persistence,
        restarted_at: _,
        config,
        jvm,
        pod_template,
        // The database's own fields are validated by the kind's rules.
        own: _,
    } = pool;
    PoolView {
        name,
        replicas: *replicas,
        zone: zone.as_deref(),
        resources: resources.as_ref(),
        persistence: persistence.as_ref(),
        config,
        jvm: jvm.as_ref(),
        pod_template,
        keeps_data,
        topology: pool.topology_fields(),
    }
}

/// Validates a new cluster that was written in `version`.
pub fn validate_create<K: ClusterRules>(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    new: &v1beta1::Cluster<K>,
) -> ValidationResult {
    let mut validator = Validator::new(version, schemas);
    metadata::validate_create(&mut validator, &new.metadata);
    let view = build_view(new);
    validate_name(&mut validator, &view);
    validate_cluster(&mut validator, new, &view, &json!(new));
    K::validate_create(&mut validator, new);
    security::validate_unused_logins(&mut validator, &view, None);
    add_warnings(&mut validator, new, &view);
    validator.into_result()
}

/// Returns why a new cluster that says nothing of encryption and logins cannot have them (W26);
/// `None` for one that can.
pub(in crate::api) fn reason_to_stay_open<K: ClusterRules>(
    new: &v1beta1::Cluster<K>,
) -> Option<String> {
    security::reason_to_stay_open(&build_view(new)).or_else(|| K::reason_to_stay_open(new))
}

/// Validates an update of the cluster `old` through `part`, written in `version`.
pub fn validate_update<K: ClusterRules>(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    part: ObjectPart,
    new: &v1beta1::Cluster<K>,
    old: &v1beta1::Cluster<K>,
) -> ValidationResult {
    let (value, old_value) = (json!(new), json!(old));
    let (new_view, old_view) = (build_view(new), build_view(old));
    let mut validator = Validator::new(version, schemas);
    let mut old_validator = Validator::new(version, schemas);
    match part {
        ObjectPart::Main => {
            validate_cluster(&mut validator, new, &new_view, &value);
            validate_cluster(&mut old_validator, old, &old_view, &old_value);
        }
        ObjectPart::Status | ObjectPart::Other(_) => {
            for (validator, object) in [(&mut validator, new), (&mut old_validator, old)] {
                let report = &object.status;
                status::validate_status(
                    validator,
                    K::NAMES.kind,
                    report,
                    &report.conditions,
                    STATUS_LIMIT,
                );
            }
        }
    }
    ratchet::remove_old_problems(&mut validator, &value, &old_validator, &old_value);
    if part == ObjectPart::Main {
        metadata::validate_update(&mut validator, &new.metadata, &old.metadata);
        let overrides = UnsafeOverrides::from_view(&new_view);
        transition::validate_transition(&mut validator, &new_view, &old_view, &overrides);
        security::validate_change(&mut validator, &new_view, &old_view);
        security::validate_unused_logins(&mut validator, &new_view, Some(&old_view));
        overrides.check_unless_allowed("skip-version", &mut validator, |validator| {
            transition::check_skipped_version(
                validator,
                &new_view,
                &old_view,
                K::intermediate_version,
            );
        });
        K::validate_change(&mut validator, new, old, &overrides);
        add_warnings(&mut validator, new, &new_view);
        warning::warn_about_update(&mut validator, &new_view, &old_view);
    }
    validator.into_result()
}

/// Runs all rules for the spec of a new or updated cluster. `value` is the cluster as JSON.
fn validate_cluster<K: ClusterRules>(
    validator: &mut Validator,
    cluster: &v1beta1::Cluster<K>,
    view: &ClusterView<'_>,
    value: &Value,
) {
    schema_rules::validate_schema(
        validator,
        K::NAMES.kind,
        "spec",
        &value["spec"],
        EnumPolicy::Check,
    );
    K::validate_version(validator, view.version, &FieldPath::new("spec").child("version"));
    validate_spec(validator, view);
    K::validate_own_fields(validator, cluster, &UnsafeOverrides::from_view(view));
}

fn add_warnings<K: ClusterRules>(
    validator: &mut Validator,
    cluster: &v1beta1::Cluster<K>,
    view: &ClusterView<'_>,
) {
    warning::warn_about_spec(validator, view);
    K::add_warnings(validator, cluster);
}

/// Validates a cluster's name (V1), on top of what the name of any object must satisfy.
fn validate_name(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let path = FieldPath::new("metadata").child("name");
    if !name.is_empty() && format::check_dns_subdomain(name).is_empty() {
        validator.require_in_beta(|validator| {
            validator.invalid_each(&path, name, &format::check_dns_label(name));
        });
    }
    if validator.version == V1ALPHA1 && name.len() > OLDER_NAME_LIMIT {
        validator.too_long(&path, OLDER_NAME_LIMIT);
    } else if name.len() > NAME_LIMIT {
        validator.require_in_beta(|validator| validator.too_long(&path, NAME_LIMIT));
    }
}

/// Validates the fields of a spec that all cluster kinds share.
fn validate_spec(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let path = FieldPath::new("spec");
    validate_image(validator, cluster.image, &path.child("image"));
    validate_image(validator, cluster.pilot_image, &path.child("pilotImage"));
    validate_run_as_user(validator, cluster.security_context, &path);
    let is_managed = |key: &str, value: &Value| cluster.is_managed(key, value);
    config::validate_config(validator, cluster.config, is_managed, &path.child("config"));
    validate_jvm(validator, cluster.jvm, &path.child("jvm"));
    pod_template::validate_pod_template(
        validator,
        cluster,
        cluster.pod_template,
        &path.child("podTemplate"),
    );
    validate_update_strategy(validator, cluster, &path.child("updateStrategy"));
    validate_pilot_settings(validator, cluster.pilot_settings, &path.child("pilotSettings"));
    validate_services(validator, cluster.services, &path.child("services").child("client"));
    security::validate_security(validator, cluster, &path.child("security"));
    object_names::validate_users(validator, cluster, &path.child("security").child("users"));
    for (index, pool) in cluster.pools.iter().enumerate() {
        validate_node_pool(validator, cluster, pool, &pool_path(index));
    }
    validate_heap(validator, cluster);
}

fn validate_node_pool(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    pool: &PoolView<'_>,
    path: &FieldPath,
) {
    validate_pool_name(validator, cluster, pool, &path.child("name"));
    if let Some(replicas) = pool.replicas {
        let path = path.child("replicas");
        if replicas < 0 {
            validator.invalid(&path, replicas, "must be greater than or equal to 0");
        } else if replicas > MOST_REPLICAS {
            validator.invalid(&path, replicas, "must be less than or equal to 1000");
        }
    }
    validate_resources(validator, pool.resources, &path.child("resources"));
    validate_persistence(validator, pool.persistence, &path.child("persistence"));
    let is_managed = |key: &str, value: &Value| cluster.is_managed(key, value);
    config::validate_config(validator, pool.config, is_managed, &path.child("config"));
    validate_jvm(validator, pool.jvm, &path.child("jvm"));
    pod_template::validate_pod_template(
        validator,
        cluster,
        pool.pod_template,
        &path.child("podTemplate"),
    );
    if let Some(zone) = pool.zone {
        validator.invalid_each(&path.child("zone"), zone, &format::check_label_value(zone));
    }
}

/// Validates the name of a node pool (V2, V3).
fn validate_pool_name(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    pool: &PoolView<'_>,
    path: &FieldPath,
) {
    if pool.name.is_empty() {
        validator.required(path, "");
        return;
    }
    let problems = format::check_dns_subdomain(pool.name);
    if problems.is_empty() {
        validator.require_in_beta(|validator| {
            validator.invalid_each(path, pool.name, &format::check_dns_label(pool.name));
        });
    }
    validator.invalid_each(path, pool.name, &problems);
    let cluster_name = cluster.metadata.name.as_deref().unwrap_or_default();
    let max_len =
        STATEFUL_SET_LIMIT.saturating_sub(cluster.names.stateful_set(cluster_name, "").len());
    if max_len == 0 {
        let text = "the name of the cluster leaves no room for that of a node pool";
        validator.require_in_beta(|validator| validator.invalid(path, pool.name, text));
    } else if pool.name.len() > max_len {
        validator.require_in_beta(|validator| validator.too_long(path, max_len));
    }
}

/// Validates an image's repository, tag and digest (V7, V8).
fn validate_image(validator: &mut Validator, image: Option<&ImageSpec>, path: &FieldPath) {
    let Some(ImageSpec { repository, tag, digest, pull_policy: _ }) = image else { return };
    if repository.is_empty() {
        validator.required(&path.child("repository"), "");
    }
    match digest.as_deref() {
        Some(digest) => {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let text = "must be sha256: followed by 64 hexadecimal characters";
                validator.invalid(&path.child("digest"), digest, text);
            }
        }
        None if tag.as_deref().unwrap_or_default().is_empty() => {
            validator.required(&path.child("tag"), "tag or digest must be specified");
        }
        None => {}
    }
}

/// Validates the user id that the database runs as (V12).
fn validate_run_as_user(
    validator: &mut Validator,
    context: Option<&SecurityContext>,
    path: &FieldPath,
) {
    let path = path.child("securityContext").child("runAsUser");
    match context.and_then(|context| context.run_as_user) {
        Some(user) if user < 0 => {
            validator.invalid(&path, user, "must be greater than or equal to 0");
        }
        Some(0) => validator.require_in_beta(|validator| {
            validator.forbidden(
                &path,
                "databases are not run as root; leave it out to use the default user",
            );
        }),
        _ => {}
    }
}

/// Validates the volumes of a node pool (V14).
fn validate_persistence(
    validator: &mut Validator,
    persistence: Option<&Persistence>,
    path: &FieldPath,
) {
    let Some(persistence) = persistence else { return };
    metadata::validate_labels(validator, persistence.labels.iter(), &path.child("labels"));
    metadata::validate_annotations(
        validator,
        persistence.annotations.iter(),
        &path.child("annotations"),
    );
    let path = path.child("size");
    match &persistence.size {
        None if persistence.enabled == Some(false) => {}
        None => validator.required(&path, ""),
        Some(size) => require_positive(validator, size, &path),
    }
}

/// Validates resource requests and limits (V17).
fn validate_resources(
    validator: &mut Validator,
    resources: Option<&ResourceRequirements>,
    path: &FieldPath,
) {
    let Some(resources) = resources else { return };
    let limits = resources.limits.clone().unwrap_or_default();
    for (name, limit) in &limits {
        require_not_negative(validator, limit, &path.child("limits").key(name));
    }
    for (name, request) in resources.requests.iter().flatten() {
        let path = path.child("requests").key(name);
        require_not_negative(validator, request, &path);
        let Some(limit) = limits.get(name) else { continue };
        if quantity::parse_nanos(&request.0) > quantity::parse_nanos(&limit.0) {
            let text = format!("must be less than or equal to {name} limit of {}", limit.0);
            validator.invalid(&path, request.0.as_str(), &text);
        }
    }
}

fn require_not_negative(validator: &mut Validator, value: &Quantity, path: &FieldPath) {
    match quantity::parse_nanos(&value.0) {
        None => validator.invalid(path, value.0.as_str(), format::NOT_A_QUANTITY),
        Some(nanos) if nanos < 0 => {
            validator.invalid(path, value.0.as_str(), "must be greater than or equal to 0");
        }
        Some(_) => {}
    }
}

fn require_positive(validator: &mut Validator, value: &Quantity, path: &FieldPath) {
    match quantity::parse_nanos(&value.0) {
        None => validator.invalid(path, value.0.as_str(), format::NOT_A_QUANTITY),
        Some(nanos) if nanos <= 0 => {
            validator.invalid(path, value.0.as_str(), "must be greater than zero");
        }
        Some(_) => {}
    }
}

/// Validates heap and JVM options (V31).
fn validate_jvm(validator: &mut Validator, jvm: Option<&Jvm>, path: &FieldPath) {
    let Some(Jvm { heap, options }) = jvm else { return };
    if let Some(heap) = heap {
        require_positive(validator, heap, &path.child("heap"));
    }
    for (index, option) in options.iter().enumerate() {
        let path = path.child("options").index(index);
        if option.starts_with("-Xms") || option.starts_with("-Xmx") {
            validator.forbidden(&path, "use jvm.heap");
        } else if !option.starts_with('-') {
            validator.invalid(&path, option.as_str(), "must start with '-'");
        }
    }
}

/// Checks that the heap that applies to a pool lies below the pool's memory limit (V31).
fn validate_heap(validator: &mut Validator, cluster: &ClusterView<'_>) {
    let mut is_reported = false;
    let cluster_heap = cluster.jvm.and_then(|jvm| jvm.heap.as_ref());
    for (index, pool) in cluster.pools.iter().enumerate() {
        let pool_heap = pool.jvm.and_then(|jvm| jvm.heap.as_ref());
        let (Some(heap), Some(limit)) = (pool_heap.or(cluster_heap), pool.memory_limit()) else {
            continue;
        };
        let (Some(bytes), Some(limit_bytes)) =
            (quantity::parse_nanos(&heap.0), quantity::parse_nanos(limit))
        else {
            continue;
        };
        if bytes >= limit_bytes && (pool_heap.is_some() || !is_reported) {
            let path = if pool_heap.is_some() { pool_path(index) } else { FieldPath::new("spec") };
            let text = format!("must be less than the memory limit of {limit}");
            validator.invalid(&path.child("jvm").child("heap"), heap.0.as_str(), &text);
            is_reported |= pool_heap.is_none();
        }
    }
}

/// Validates the update strategy (V32–V34).
fn validate_update_strategy(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    path: &FieldPath,
) {
    let Some(strategy) = cluster.update_strategy else { return };
    validate_max_unavailable(
        validator,
        strategy.max_unavailable.as_ref(),
        &path.child("maxUnavailable"),
    );
    if let Some(canary) = &strategy.canary {
        let path = path.child("canary");
        if canary.replicas < 0 {
            let text = "must be greater than or equal to 0";
            validator.invalid(&path.child("replicas"), canary.replicas, text);
        }
        let pools: HashSet<&str> = cluster.pools.iter().map(|pool| pool.name).collect();
        for (index, name) in canary.node_pools.iter().enumerate() {
            if !pools.contains(name.as_str()) {
                validator.not_found(&path.child("nodePools").index(index), name.as_str());
            }
        }
    }
    if let Some(seconds) = strategy.progress_deadline_seconds
        && !(60..=86_400).contains(&seconds)
    {
        let text = "must be between 60 and 86400, inclusive";
        validator.invalid(&path.child("progressDeadlineSeconds"), seconds, text);
    }
}

fn validate_max_unavailable(
    validator: &mut Validator,
    value: Option<&IntOrString>,
    path: &FieldPath,
) {
    match value {
        Some(IntOrString::Int(number)) if *number <= 0 => {
            validator.invalid(path, *number, "must be greater than 0");
        }
        Some(IntOrString::String(text)) => {
            let problems = format::check_percent(text);
            validator.invalid_each(path, text, &problems);
            let digits = text.trim_end_matches('%');
            if problems.is_empty() && digits.bytes().all(|digit| digit == b'0') {
                validator.invalid(path, text.as_str(), "must be greater than 0");
            } else if problems.is_empty()
                && !digits.parse::<u32>().is_ok_and(|percent| percent <= 100)
            {
                validator.invalid(path, text.as_str(), "must not be greater than 100%");
            }
        }
        Some(IntOrString::Int(_)) | None => {}
    }
}

/// Validates the settings of the pilot (V37).
pub(super) fn validate_pilot_settings(
    validator: &mut Validator,
    settings: Option<&PilotSettings>,
    path: &FieldPath,
) {
    let seconds = settings.and_then(|settings| settings.silence_limit_seconds);
    if let Some(seconds) = seconds.filter(|seconds| !(10..=3600).contains(seconds)) {
        let text = "must be between 10 and 3600, inclusive";
        validator.invalid(&path.child("silenceLimitSeconds"), seconds, text);
    }
}

/// Validates the client Service (V35), in the words of core/v1 Services.
fn validate_services(validator: &mut Validator, services: Option<&Services>, path: &FieldPath) {
    let Some(client) = services.and_then(|services| services.client.as_ref()) else { return };
    metadata::validate_labels(validator, client.labels.iter(), &path.child("labels"));
    metadata::validate_annotations(
        validator,
        client.annotations.iter(),
        &path.child("annotations"),
    );
    let type_ = client.type_.as_deref().unwrap_or("ClusterIP");
    let message = "may only be used when `type` is 'LoadBalancer'";
    if let Some(class) = &client.load_balancer_class {
        let path = path.child("loadBalancerClass");
        if type_ == "LoadBalancer" {
            validator.invalid_each(&path, class, &format::check_qualified_name(class));
        } else {
            validator.forbidden(&path, message);
        }
    }
    let ranges = path.child("loadBalancerSourceRanges");
    if type_ != "LoadBalancer" && !client.load_balancer_source_ranges.is_empty() {
        validator.forbidden(&ranges, message);
    }
    for (index, range) in client.load_balancer_source_ranges.iter().enumerate() {
        validator.invalid_each(&ranges.index(index), range, &format::check_cidr(range));
    }
    if let Some(policy) = client.external_traffic_policy.as_deref().filter(|_| type_ == "ClusterIP")
    {
        let text = "may only be set for externally-accessible services";
        validator.invalid(&path.child("externalTrafficPolicy"), policy, text);
    }
}
