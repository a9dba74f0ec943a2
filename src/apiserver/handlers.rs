//! Everything that is served: resources, discovery, OpenAPI, health, metrics.
//!
//! Owns the way from a request to the registry and back to a response. Dispatches on
//! [`RequestInfo`], so that what was authorized is what is done. Expects [`User`], `RequestInfo`
//! and [`Warnings`] in the request's extensions; the filters put them there.

pub(super) mod metrics;
mod read;
mod watch;
mod write;

use std::{collections::BTreeMap, sync::Arc};

use axum::{Router, body::Body, extract::State as FromState};
use http::{HeaderMap, Method, Request, Response, request::Parts};

use self::metrics::RequestMetrics;
use super::{
    admission::Admit,
    authn::User,
    discovery::Discovery,
    filters::{Warnings, audit::Subject},
    health::{self, Health},
    identity::Guard,
    load::read_body,
    negotiate,
    registry::{Call, Registry},
    request_info::RequestInfo,
    status::{ApiError, Resource, Result},
    storage::Storage,
};
use crate::{
    api::{
        kind::{Part, Version},
        scheme::Scheme,
    },
    runtime::{Runtime, Shutdown},
};

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<State>);

struct State {
    /// By group and plural.
    registries: BTreeMap<(&'static str, &'static str), Arc<Registry>>,
    guard: Guard,
    health: Health,
    discovery: Discovery,
    requests: RequestMetrics,
    metrics: prometheus::Registry,
    /// Ends watches.
    shutdown: Shutdown,
}

impl AppState {
    /// Serves every kind of the scheme out of `storage`, and starts to fill the caches.
    /// Watches end with `closing`, before what they read from does.
    pub fn start(
        scheme: &'static Scheme,
        storage: &Arc<dyn Storage>,
        admission: &Arc<dyn Admit>,
        guard: Guard,
        rt: &Runtime,
        closing: &Shutdown,
    ) -> Self {
        let mut registries = BTreeMap::new();
        for kind in scheme.kinds() {
            let registry = Registry::new(*kind, Arc::clone(storage), Arc::clone(admission));
            let ready = rt.readiness().add("informer-sync");
            rt.tasks().spawn_vital("cache", Arc::clone(registry.cache()).run(rt.shutdown(), ready));
            registries.insert((kind.group(), kind.plural()), Arc::new(registry));
        }
        let readiness = rt.readiness().clone();
        let health = Health::new(guard.clone(), Arc::clone(storage), readiness, closing.clone());
        Self(Arc::new(State {
            registries,
            guard,
            health,
            discovery: Discovery::new(scheme),
            requests: RequestMetrics::register(rt.metrics(), scheme),
            metrics: rt.metrics().clone(),
            shutdown: closing.clone(),
        }))
    }
}

/// All routes.
pub fn router(state: AppState) -> Router {
    Router::new().fallback(handle).with_state(state)
}

async fn handle(
    FromState(AppState(state)): FromState<AppState>,
    request: Request<Body>,
) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let info = parts.extensions.remove::<RequestInfo>();
    let info = info.unwrap_or_else(|| RequestInfo::parse(&parts.method, &parts.uri));
    if info.is_resource {
        let running = state.requests.begin(&info, parts.uri.query().unwrap_or_default());
        let outcome = resource(&state, &info, &parts, body).await;
        let response = outcome.unwrap_or_else(|error| respond_error(&parts, &error));
        running.end(response.status());
        return response;
    }
    other(&state, &info, &parts).await.unwrap_or_else(|error| respond_error(&parts, &error))
}

fn respond_error(parts: &Parts, error: &ApiError) -> Response<Body> {
    negotiate::respond_error(&parts.headers, parts.uri.query().unwrap_or_default(), error)
}

/// What a resource request is about, once it is known that it is served.
struct Target<'a> {
    registry: &'a Arc<Registry>,
    version: Version,
    part: Part,
    info: &'a RequestInfo,
    user: &'a User,
    headers: &'a HeaderMap,
    query: &'a str,
    warnings: Warnings,
    subject: Option<&'a Subject>,
    guard: &'a Guard,
    shutdown: &'a Shutdown,
    requests: &'a RequestMetrics,
}

impl Target<'_> {
    fn call(&self) -> Call<'_> {
        Call {
            version: self.version,
            namespace: &self.info.namespace,
            user: self.user,
            warnings: Vec::new(),
        }
    }

    /// Passes on what the registry had to say.
    fn warn(&self, call: Call<'_>) {
        for text in call.warnings {
            self.warnings.add(text);
        }
    }
}

async fn resource(
    state: &State,
    info: &RequestInfo,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>> {
    if info.refused {
        // The filters have said so before; nothing may come to rest on them alone.
        return Err(info.refusal(&parts.method));
    }
    let version = Version::parse(&info.version).ok_or_else(ApiError::no_such_resource)?;
    let registry = state
        .registries
        .get(&(info.group.as_str(), info.resource.as_str()))
        .filter(|registry| registry.kind().versions().contains(&version))
        .ok_or_else(ApiError::no_such_resource)?;
    let target = Target {
        registry,
        version,
        part: part_of(registry, info)?,
        info,
        // Fails closed: a request that no filter has seen has no user.
        user: parts.extensions.get::<User>().ok_or_else(ApiError::unauthorized)?,
        headers: &parts.headers,
        query: parts.uri.query().unwrap_or_default(),
        warnings: parts.extensions.get::<Warnings>().cloned().unwrap_or_default(),
        subject: parts.extensions.get::<Subject>(),
        guard: &state.guard,
        shutdown: &state.shutdown,
        requests: &state.requests,
    };
    let named = info.parts.len() > 1;
    let kind = registry.kind();
    // The path of a namespace names it as the namespace, too.
    let nowhere = info.namespace.is_empty() || info.resource == "namespaces";
    if !kind.is_namespaced() && !nowhere {
        return Err(ApiError::no_such_resource());
    }
    let everywhere = kind.is_namespaced() && info.namespace.is_empty();
    if named && everywhere {
        return Err(ApiError::no_such_resource());
    }
    state.guard.check()?;
    // The method decides, not the verb: a HEAD must not have a body, an unknown method no verb.
    match (&parts.method, named, target.part) {
        (&Method::GET, _, Part::Main) if info.verb == "watch" => watch::watch(&target).await,
        (&Method::GET, false, _) => read::list(&target).await,
        (&Method::GET, true, _) => read::get(&target).await,
        (&Method::POST, false, _) if !everywhere => {
            write::create(&target, read_body(body).await?).await
        }
        (&Method::PUT, true, _) => write::update(&target, read_body(body).await?).await,
        (&Method::PATCH, true, _) => write::patch(&target, read_body(body).await?).await,
        (&Method::DELETE, true, Part::Main) => write::delete(&target, read_body(body).await?).await,
        (&Method::DELETE, false, _) if !everywhere => {
            write::delete_collection(&target, read_body(body).await?).await
        }
        (method, ..) => {
            let action = method.as_str().to_ascii_lowercase();
            let resource = Resource { group: kind.group(), resource: kind.plural() };
            Err(ApiError::method_not_supported(resource, &action))
        }
    }
}

/// The resource itself or one of its subresources. An empty segment names neither: what was
/// authorized as a collection must not be read as an object.
fn part_of(registry: &Registry, info: &RequestInfo) -> Result<Part> {
    if info.parts.iter().any(String::is_empty) {
        return Err(ApiError::no_such_resource());
    }
    match &info.parts[1..] {
        [] | [_] => Ok(Part::Main),
        // A subresource is no collection, so nobody can watch it.
        [_, _] if info.verb == "watch" => Err(ApiError::no_such_resource()),
        [_, subresource] if subresource == "status" && registry.kind().has_status() => {
            Ok(Part::Status)
        }
        [_, subresource] => {
            let known = registry.kind().subresources().iter();
            let known = known.map(|known| known.name).find(|name| name == subresource);
            known.map(Part::Other).ok_or_else(ApiError::no_such_resource)
        }
        _ => Err(ApiError::no_such_resource()),
    }
}

/// Paths that are no resources.
async fn other(state: &State, info: &RequestInfo, parts: &Parts) -> Result<Response<Body>> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    let query = parts.uri.query().unwrap_or_default();
    if let Some(response) = health::respond(&state.health, &info.path, query).await {
        return Ok(response);
    }
    if info.path == "/metrics" {
        return Ok(metrics::scrape(&state.metrics));
    }
    state.discovery.respond(&info.path, &parts.headers, query)
}
