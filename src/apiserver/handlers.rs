//! The handlers of requests: for resources, discovery, OpenAPI, health and metrics.
//!
//! Owns the way from a request to the registry and back to a response. Dispatches on the
//! [`ResourceOperation`] that was authorized. Expects [`User`], `Arc<RequestInfo>` and [`Warnings`]
//! in the request's extensions; the filters put them there.

pub(super) mod cache_metrics;
pub(super) mod metrics;
mod read;
mod watch;
mod write;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::State as FromState};
use http::{HeaderMap, Method, Request, Response, request::Parts};

pub use self::watch::LEAST as LEAST_WATCH;
use self::{cache_metrics::CacheMetrics, metrics::RequestMetrics};
use super::{
    admission::{AdmissionPlugin, AdmissionRemarks},
    audit::AuditSubject,
    authn::User,
    authz::Authorizer,
    capacity::{self, Capacity, CapacityBounds},
    discovery::Discovery,
    filters::Warnings,
    health::{self, HealthChecker},
    metrics::Metrics,
    negotiate,
    operation::{ResourceAction, ResourceOperation},
    options::WriteOptions,
    registry::{Registry, RegistryCall},
    request_cost::read_body,
    request_info::RequestInfo,
    status::{ApiError, Result},
    storage::Storage,
    store_identity::StoreGuard,
    url::Query,
};
use crate::{
    machinery::{
        served_kind::{ObjectPart, ServedVersion},
        served_kinds::ServedKinds,
    },
    runtime::{Runtime, Shutdown},
};

/// State that the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<HandlerState>);

struct HandlerState {
    /// Registries by group and plural.
    registries: BTreeMap<(&'static str, &'static str), Arc<Registry>>,
    guard: StoreGuard,
    storage: Arc<dyn Storage>,
    health: HealthChecker,
    discovery: Discovery,
    requests: RequestMetrics,
    metrics: prometheus::Registry,
    /// Least time that a watch without `timeoutSeconds` lasts.
    least_watch: Duration,
    /// Ends watches when it is triggered.
    shutdown: Shutdown,
}

impl AppState {
    /// Serves every kind of the scheme out of `storage`, within `bounds`, and starts to fill the
    /// caches. Watches end when `watch_shutdown` is triggered, before the caches that they read
    /// from do.
    pub fn start(
        scheme: &'static ServedKinds,
        (storage, bounds): (&Arc<dyn Storage>, CapacityBounds),
        admission: &Arc<dyn AdmissionPlugin>,
        guard: StoreGuard,
        server_metrics: &Metrics,
        rt: &Runtime,
        watch_shutdown: &Shutdown,
    ) -> Self {
        let capacity = Capacity::new(bounds);
        let mut registries = BTreeMap::new();
        for kind in scheme.kinds() {
            let (store, admission) = (Arc::clone(storage), Arc::clone(admission));
            let registry = Registry::new(*kind, store, admission, &capacity);
            let readiness_handle = rt.readiness().add("informer-sync");
            rt.tasks().spawn_vital(
                "cache",
                Arc::clone(registry.cache()).run(rt.shutdown(), readiness_handle),
            );
            registries.insert((kind.group(), kind.plural()), Arc::new(registry));
        }
        let capacity_metrics = Box::new(capacity::CapacityMetrics::new(capacity));
        rt.metrics().register(capacity_metrics).expect("every metric has a name of its own");
        let objects = CacheMetrics::new(registries.values().cloned().collect());
        rt.metrics().register(Box::new(objects)).expect("every metric has a name of its own");
        let readiness = rt.readiness().clone();
        let health = HealthChecker::new(
            guard.clone(),
            Arc::clone(storage),
            readiness,
            watch_shutdown.clone(),
        );
        Self(Arc::new(HandlerState {
            registries,
            guard,
            storage: Arc::clone(storage),
            health,
            discovery: Discovery::new(scheme),
            requests: RequestMetrics::register(
                rt.metrics(),
                scheme,
                server_metrics.requests.clone(),
            ),
            metrics: rt.metrics().clone(),
            least_watch: watch::LEAST,
            shutdown: watch_shutdown.clone(),
        }))
    }

    /// Sets how long a watch without `timeoutSeconds` lasts at least; must not be zero.
    #[must_use]
    pub fn watching_at_least(mut self, time: Duration) -> Self {
        let state = Arc::get_mut(&mut self.0).expect("no connection is served yet");
        state.least_watch = time;
        self
    }
}

/// Returns the router, which leads every request to the handlers.
pub fn build_router(state: AppState) -> Router {
    Router::new().fallback(handle_request).with_state(state)
}

async fn handle_request(
    FromState(AppState(state)): FromState<AppState>,
    request: Request<Body>,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let info = parts.extensions.remove::<Arc<RequestInfo>>();
    let parse = || Arc::new(RequestInfo::parse(&parts.method, &parts.uri, &parts.headers));
    let info = info.unwrap_or_else(parse);
    let error_response = |error| negotiate::respond_error(&parts.headers, &info.query, &error);
    let running_request = state.requests.start_request(&info, &parts.extensions);
    let outcome = match &info.operation {
        Some(operation) => handle_resource(&state, &info, operation, &parts, body).await,
        None => handle_non_resource(&state, &info, &parts.headers).await,
    };
    let response = outcome.unwrap_or_else(error_response);
    running_request.finish(&response);
    response
}

/// A resource request whose kind, version and part are served, with what its handler needs.
struct RequestScope<'a> {
    registry: &'a Arc<Registry>,
    version: ServedVersion,
    part: ObjectPart,
    info: &'a RequestInfo,
    operation: &'a ResourceOperation,
    authorizer: Option<&'a Arc<Authorizer>>,
    user: &'a User,
    headers: &'a HeaderMap,
    query: &'a Query,
    warnings: Warnings,
    subject: Option<&'a AuditSubject>,
    remarks: AdmissionRemarks,
    guard: &'a StoreGuard,
    least_watch: Duration,
    shutdown: &'a Shutdown,
    requests: &'a RequestMetrics,
}

impl RequestScope<'_> {
    fn registry_call(&self) -> RegistryCall<'_> {
        RegistryCall {
            version: self.version,
            namespace: &self.operation.namespace,
            user: self.user,
            manager: manager_of(self.query, self.headers),
            field_manager: self.query.text("fieldManager"),
            warnings: Vec::new(),
            remarks: &self.remarks,
        }
    }

    /// Fails unless the user may create the object; for an apply to an object that does not exist.
    async fn may_create(&self) -> Result<()> {
        let authorizer = self.authorizer.ok_or_else(|| {
            ApiError::internal_error("the API server cannot tell whether the object may be created")
        })?;
        let mut info = self.info.clone();
        if let Some(operation) = &mut info.operation {
            operation.action = ResourceAction::Create(Ok(WriteOptions::default()));
        }
        authorizer.authorize(self.user, &info).await.outcome
    }

    /// Adds the registry's warnings to the response.
    fn add_warnings(&self, call: RegistryCall<'_>) {
        for text in call.warnings {
            self.warnings.add(text);
        }
    }
}

/// Most bytes of a field manager's name that is taken from the user agent.
const MAX_MANAGER: usize = 128;

/// Returns the field manager of a write: the query's `fieldManager`, or else the program that the
/// user agent names.
fn manager_of(query: &Query, headers: &HeaderMap) -> String {
    let query_manager = query.text("fieldManager");
    if !query_manager.is_empty() {
        return query_manager.to_owned();
    }
    let agent = headers.get(http::header::USER_AGENT).map_or(&[][..], |value| value.as_bytes());
    let agent = String::from_utf8_lossy(agent);
    let program = agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for c in program.chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() > MAX_MANAGER {
            break;
        }
        name.push(c);
    }
    name
}

async fn handle_resource(
    state: &HandlerState,
    info: &RequestInfo,
    operation: &ResourceOperation,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>> {
    let registry = state
        .registries
        .get(&(operation.group.as_str(), operation.resource.as_str()))
        .ok_or_else(ApiError::no_such_resource)?;
    let version =
        registry.kind().find_version(&operation.version).ok_or_else(ApiError::no_such_resource)?;
    let target = RequestScope {
        registry,
        version,
        part: part_of(registry, operation)?,
        info,
        operation,
        authorizer: parts.extensions.get::<Arc<Authorizer>>(),
        // Fails closed: a request that no filter has seen has no user.
        user: parts.extensions.get::<User>().ok_or_else(ApiError::unauthorized)?,
        headers: &parts.headers,
        query: &info.query,
        warnings: parts.extensions.get::<Warnings>().cloned().unwrap_or_default(),
        subject: parts.extensions.get::<AuditSubject>(),
        remarks: AdmissionRemarks::default(),
        guard: &state.guard,
        least_watch: state.least_watch,
        shutdown: &state.shutdown,
        requests: &state.requests,
    };
    let is_named = operation.is_named();
    let kind = registry.kind();
    // The path of a Namespace object names it as the request's namespace, too.
    let has_no_namespace = operation.namespace.is_empty() || operation.resource == "namespaces";
    if !kind.is_namespaced() && !has_no_namespace {
        return Err(ApiError::no_such_resource());
    }
    let is_across_namespaces = kind.is_namespaced() && operation.namespace.is_empty();
    if is_named && is_across_namespaces {
        return Err(ApiError::no_such_resource());
    }
    state.guard.check()?;
    let outcome = dispatch_action(&target, parts, body).await;
    for text in target.remarks.take_warnings() {
        target.warnings.add(text);
    }
    if let Some(subject) = target.subject {
        subject.add_annotations(target.remarks.take_annotations());
    }
    outcome
}

async fn dispatch_action(
    target: &RequestScope<'_>,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>> {
    let operation = target.operation;
    let is_named = operation.is_named();
    let is_across_namespaces =
        target.registry.kind().is_namespaced() && operation.namespace.is_empty();
    match &operation.action {
        ResourceAction::Watch(options) => {
            watch::watch_objects(target, require_options(options)?).await
        }
        ResourceAction::List(options) => {
            read::list_objects(target, require_options(options)?).await
        }
        ResourceAction::Get(consistency) => {
            read::get_object(target, *require_options(consistency)?).await
        }
        ResourceAction::Create(options) if !is_named && !is_across_namespaces => {
            write::create_object(target, *require_options(options)?, read_body(body).await?).await
        }
        ResourceAction::Update(options) if is_named => {
            write::update_object(target, *require_options(options)?, read_body(body).await?).await
        }
        ResourceAction::Patch(form, options) if is_named => {
            write::patch_object(target, *form, options, read_body(body).await?).await
        }
        ResourceAction::Apply(options) if is_named => {
            write::apply_object(target, options, read_body(body).await?).await
        }
        ResourceAction::Delete if target.part == ObjectPart::Main => {
            write::delete_object(target, read_body(body).await?).await
        }
        ResourceAction::DeleteCollection(options) if !is_across_namespaces => {
            write::delete_collection(target, require_options(options)?, read_body(body).await?)
                .await
        }
        _ => Err(operation.method_error(&parts.method)),
    }
}

/// Returns the parsed options, or their error. The client receives the error only now that it is
/// authorized.
fn require_options<T>(options: &Result<T>) -> Result<&T> {
    options.as_ref().map_err(ApiError::clone)
}

/// Returns the part of the object that a path names: the object itself or one of its subresources.
/// An empty segment is an error: what was authorized as a collection must not be read as an object.
fn part_of(registry: &Registry, operation: &ResourceOperation) -> Result<ObjectPart> {
    if operation.parts.iter().any(String::is_empty) {
        return Err(ApiError::no_such_resource());
    }
    match &operation.parts[1..] {
        [] | [_] => Ok(ObjectPart::Main),
        // A subresource is no collection, so no client can watch it.
        [_, _] if matches!(operation.action, ResourceAction::Watch(_)) => {
            Err(ApiError::no_such_resource())
        }
        [_, subresource] if subresource == "status" && registry.kind().has_status() => {
            Ok(ObjectPart::Status)
        }
        [_, subresource] => {
            let subresources = registry.kind().subresources().iter();
            let subresource_name =
                subresources.map(|candidate| candidate.name).find(|name| name == subresource);
            subresource_name.map(ObjectPart::Other).ok_or_else(ApiError::no_such_resource)
        }
        _ => Err(ApiError::no_such_resource()),
    }
}

/// Answers requests for paths that are no resources: health, metrics, discovery.
async fn handle_non_resource(
    state: &HandlerState,
    info: &RequestInfo,
    headers: &HeaderMap,
) -> Result<Response<Body>> {
    if !matches!(info.method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    if let Some(response) = health::respond_to_check(&state.health, &info.path, &info.query).await {
        return Ok(response);
    }
    match info.path.as_str() {
        "/metrics" => {
            state.requests.set_store_size(state.storage.disk_size().await);
            return Ok(metrics::scrape_response(&state.metrics));
        }
        "/metrics/slis" => return Ok(metrics::scrape_response(state.health.metrics())),
        _ => {}
    }
    state.discovery.respond(&info.path, headers, &info.query)
}
