//! Commands of `kubectl navigator` that change something.

use std::{pin::pin, time::Duration};

use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    args::{
        ChangeArgs as Args, CleanupArgs, ClusterArgs, CommonArgs, DryRun, FenceArgs, GiveUpArgs,
        OutputFormat, RestartArgs, ScaleArgs, UnsafeBootstrapArgs, UpgradeArgs,
    },
    output::{check_format, output_style, print_message, print_object, print_output},
};
use crate::{
    api::{
        names::condition::CLEANUP_DUE,
        picture::NodePicture,
        predicate::PEERS_READY,
        v1beta1::{Pilot, PilotIntent, PilotPhase},
    },
    error::exit,
    plugin::{
        change::{ChangeResult, ClusterChange},
        error::Error,
        lookup::{ClusterName, ClusterObject, PluginSession, find_node, name_of},
        predicates::{self, HoldingPredicate},
    },
};

/// Pause between reads of a node that a command waits for.
const LOOK: Duration = Duration::from_secs(1);

impl Args {
    fn is_dry(self) -> bool {
        self.dry_run == DryRun::Server
    }
}

/// Prints what was done, or `unchanged` where nothing changed.
fn print_change(args: Args, result: &ChangeResult, outcome: &str) -> Result<(), Error> {
    for warning in &result.warnings {
        print_message(&format!("Warning: {warning}"));
    }
    let outcome = if result.changed { outcome } else { "unchanged" };
    let suffix = if args.is_dry() { " (server dry run)" } else { "" };
    match check_format(args.form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name])? {
        Some(OutputFormat::Name) => print_output(&format!("{}\n", result.reference)),
        Some(form) => print_object(form, &result.object),
        None => print_output(&format!("{} {outcome}{suffix}\n", result.reference)),
    }
}

async fn apply_change(
    session: &PluginSession,
    name: &ClusterName,
    args: Args,
    change: &ClusterChange,
    outcome: &str,
) -> Result<u8, Error> {
    let cluster = session.find_cluster(name).await?;
    let result = session.change_cluster(&cluster, change, args.is_dry()).await?;
    print_change(args, &result, outcome)?;
    Ok(exit::OK)
}

pub(super) async fn restart_cluster(
    session: &PluginSession,
    args: &RestartArgs,
) -> Result<u8, Error> {
    apply_change(
        session,
        &args.name,
        args.change,
        &ClusterChange::Restart,
        "restarts, one node at a time",
    )
    .await
}

pub(super) async fn set_paused(
    session: &PluginSession,
    args: &ClusterArgs,
    is_paused: bool,
) -> Result<u8, Error> {
    let outcome = if is_paused { "paused" } else { "resumed" };
    apply_change(session, &args.name, args.change, &ClusterChange::Paused(is_paused), outcome).await
}

pub(super) async fn set_stopped(
    session: &PluginSession,
    args: &ClusterArgs,
    is_stopped: bool,
) -> Result<u8, Error> {
    let outcome = if is_stopped { "stops" } else { "starts" };
    apply_change(session, &args.name, args.change, &ClusterChange::Stopped(is_stopped), outcome)
        .await
}

pub(super) async fn scale_pool(session: &PluginSession, args: &ScaleArgs) -> Result<u8, Error> {
    let (pool, replicas) = args.size.clone();
    let outcome = format!("scaled: {pool} to {replicas}");
    apply_change(
        session,
        &args.name,
        args.change,
        &ClusterChange::Replicas { pool, replicas },
        &outcome,
    )
    .await
}

pub(super) async fn fence_node(session: &PluginSession, args: &FenceArgs) -> Result<u8, Error> {
    let (_, pilot) = session.find_cluster_node(&args.name, &args.node).await?;
    let (intent, outcome) =
        if args.off { (PilotIntent::Running, "unfenced") } else { (PilotIntent::Fenced, "fenced") };
    let result = session.set_intent(&pilot, &intent, args.change.is_dry()).await?;
    print_change(args.change, &result, outcome)?;
    Ok(exit::OK)
}

pub(super) async fn discard_data(session: &PluginSession, args: &GiveUpArgs) -> Result<u8, Error> {
    let (cluster, pilot) = session.find_cluster_node(&args.name, &args.node).await?;
    if NodePicture::new(&pilot).is_serving() && !session.is_gone(&pilot).await {
        let (name, cluster_name) = (name_of(&pilot), cluster.name());
        return Err(Error::Held(format!(
            "{name} serves: it leaves with its data when its pool has fewer replicas (kubectl \
             navigator scale {cluster_name})"
        )));
    }
    if let Some(data) = session.data_uid(&cluster, &pilot).await.filter(|data| *data != args.data) {
        let name = name_of(&pilot);
        return Err(Error::Usage(format!(
            "the data of {name} have the uid {data}, not {}: nothing is given up",
            args.data
        )));
    }
    let result = session.discard_data(&pilot, &args.data, args.change.is_dry()).await?;
    print_change(args.change, &result, "given up")?;
    Ok(exit::OK)
}

pub(super) async fn unsafe_bootstrap(
    session: &PluginSession,
    args: &UnsafeBootstrapArgs,
) -> Result<u8, Error> {
    let (cluster, pilot) = session.find_cluster_node(&args.name, &args.node).await?;
    let (name, cluster_name) = (name_of(&pilot), cluster.name());
    let Some(lost_data) =
        session.database(cluster.kind).and_then(|database| database.lost_with_quorum)
    else {
        let kind = cluster.kind.kind();
        return Err(Error::Usage(format!("the nodes of a {kind} elect no leader")));
    };
    let pilots = session.list_pilots(&cluster).await?;
    if let Some(serving_pilot) = pilots.iter().find(|pilot| NodePicture::new(pilot).is_serving()) {
        return Err(Error::Held(format!(
            "{} serves, so {cluster_name} has an elected leader: give lost nodes up instead (kubectl \
             navigator give-up {cluster_name} NODE)",
            name_of(serving_pilot)
        )));
    }
    let identity = pilot.status.identity.as_ref();
    let Some(id) = identity.and_then(|identity| identity.cluster_id.as_deref()) else {
        return Err(Error::Held(format!("{name} was no node of the database cluster yet")));
    };
    match args.cluster_id.as_deref() {
        Some(requested_id) if requested_id == id => {
            let result = session.request_unsafe_bootstrap(&pilot, id, args.change.is_dry()).await?;
            print_change(args.change, &result, "is asked to begin the cluster anew")?;
            Ok(exit::OK)
        }
        Some(requested_id) => Err(Error::Held(format!(
            "{name} is of database cluster {id:?}, not of {requested_id:?}"
        ))),
        None => Err(Error::Held(format!(
            "{name} would begin {cluster_name} anew from what it has. This cannot be taken back. Lost for \
             good are:\n{lost_data}\nMake sure that no lost node still runs. Then type:\n  kubectl \
             navigator unsafe-bootstrap {cluster_name} {name} --cluster-id {id}"
        ))),
    }
}

pub(super) async fn request_cleanup(
    session: &PluginSession,
    args: &CleanupArgs,
) -> Result<u8, Error> {
    let output = check_format(
        args.change.form,
        &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name],
    )?;
    let cluster = session.find_cluster(&args.name).await?;
    if session.database(cluster.kind).is_some_and(|database| !database.cleans_up) {
        let kind = cluster.kind.kind();
        return Err(Error::Usage(format!("nodes of a {kind} keep nothing that they gave away")));
    }
    let pilots = session.list_pilots(&cluster).await?;
    let selected_pilots = match &args.node {
        Some(node_name) => vec![find_node(cluster.name(), &pilots, node_name)?],
        None => pilots.iter().filter(|pilot| needs_cleanup(pilot)).collect(),
    };
    if selected_pilots.is_empty() && output.is_none() {
        print_output(&format!(
            "{}: nothing is due, or it is asked for already\n",
            cluster.reference()
        ))?;
        return Ok(exit::OK);
    }
    let results = session.request_cleanup(&selected_pilots, args.change.is_dry()).await?;
    if let Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) = output {
        let items: Vec<_> = results.into_iter().map(|result| result.object).collect();
        print_object(form, &json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        return Ok(exit::OK);
    }
    for result in &results {
        print_change(args.change, result, "is to be cleaned up")?;
    }
    Ok(exit::OK)
}

/// May the node hold rows that other nodes own now, without a cleanup being requested?
fn needs_cleanup(pilot: &Pilot) -> bool {
    let condition = pilot.status.conditions.iter().find(|condition| condition.type_ == CLEANUP_DUE);
    condition.is_some_and(|condition| {
        let is_requested =
            ["CleanupInProgress", "CleanupWaits"].contains(&condition.reason.as_str());
        condition.status != "False" && !is_requested
    })
}

pub(super) async fn upgrade_cluster(
    common: &CommonArgs,
    session: &PluginSession,
    args: &UpgradeArgs,
) -> Result<u8, Error> {
    let version_change = ClusterChange::Version(args.to.clone());
    if !args.check {
        let outcome = format!("upgrades to {}", args.to);
        return apply_change(session, &args.name, args.change, &version_change, &outcome).await;
    }
    let output = check_format(args.change.form, &[OutputFormat::Json, OutputFormat::Yaml])?;
    let cluster = session.find_cluster(&args.name).await?;
    // The server judges the version, and the way to it from the nodes' own versions.
    let result = session.change_cluster(&cluster, &version_change, true).await?;
    for warning in &result.warnings {
        print_message(&format!("Warning: {warning}"));
    }
    let pilots = session.list_pilots(&cluster).await?;
    let blockers = predicates::find_blockers(&cluster, &pilots, session.now);
    if let Some(form) = output {
        print_object(form, &predicates::blockers_json(&cluster, &blockers))?;
    } else {
        let version = &args.to;
        let is_current = |pilot: &&Pilot| pilot.status.version.as_deref() == Some(version.as_str());
        let upgraded_nodes = pilots.iter().filter(is_current).count();
        print_output(&format!(
            "The server accepts {version} for {}; {upgraded_nodes} of {} nodes run it.\n{}",
            cluster.reference(),
            pilots.len(),
            predicates::render_blockers(&cluster, &blockers, session.now, output_style(common))
        ))?;
    }
    Ok(if blockers.iter().all(|blocker| blocker.skipped) { exit::OK } else { exit::NOT_READY })
}

/// Restarts one node: fences it, and lets it run again. The controller leaves the cluster alone
/// meanwhile.
pub(super) async fn restart_node(session: &PluginSession, args: &RestartArgs) -> Result<u8, Error> {
    let node_name = args.node.as_deref().unwrap_or_default();
    let cluster = session.find_cluster(&args.name).await?;
    let pilots = session.list_pilots(&cluster).await?;
    let pilot = find_node(cluster.name(), &pilots, node_name)?;
    if !args.force
        && let Some(reason) = find_stop_blocker(&cluster, &pilots, pilot, session)
    {
        return Err(Error::Held(format!("{reason}; --force restarts it all the same")));
    }
    let fence_result =
        session.set_intent(pilot, &PilotIntent::Fenced, args.change.is_dry()).await?;
    if args.change.is_dry() {
        print_change(args.change, &fence_result, "restarted")?;
        return Ok(exit::OK);
    }
    let deadline = Instant::now() + Duration::from_secs(args.deadline);
    let name = name_of(pilot);
    print_message(&format!("{name} stops"));
    let stop_result = wait_for_node(session, pilot, deadline, is_fenced);
    let stop_result = unless_interrupted(stop_result).await;
    // The node may run again, whether or not it stopped in time.
    let unfence_result = session.set_intent(pilot, &PilotIntent::Running, false).await?;
    let generation =
        unfence_result.object.pointer("/metadata/generation").and_then(serde_json::Value::as_i64);
    stop_result?;
    print_message(&format!("{name} starts"));
    let is_serving = |pilot: &Pilot| is_serving_generation(pilot, generation);
    unless_interrupted(wait_for_node(session, pilot, deadline, is_serving)).await?;
    print_change(args.change, &ChangeResult { changed: true, ..unfence_result }, "restarted")?;
    Ok(exit::OK)
}

/// Returns why a node should not be stopped now.
fn find_stop_blocker(
    cluster: &ClusterObject,
    pilots: &[Pilot],
    pilot: &Pilot,
    session: &PluginSession,
) -> Option<String> {
    let name = name_of(pilot);
    if let Some(operation) = &cluster.picture().operation {
        return Some(format!("{} is in progress", operation.type_));
    }
    if let Some(unready_pilot) = pilots
        .iter()
        .find(|candidate| name_of(candidate) != name && !NodePicture::new(candidate).is_serving())
    {
        return Some(format!("{} is not ready", name_of(unready_pilot)));
    }
    let blockers = predicates::find_blockers(cluster, pilots, session.now);
    // Each pilot reports what speaks against stopping its own node; of other nodes it only matters
    // whether their pilots report.
    let is_relevant = |blocker: &&HoldingPredicate| {
        blocker.is_stop_blocker()
            && (blocker.node.as_deref() == Some(name) || blocker.name == PEERS_READY.name)
    };
    let blocker = blockers.iter().find(is_relevant)?;
    Some(format!("{}: {}", blocker.name, blocker.message))
}

fn is_fenced(pilot: &Pilot) -> bool {
    pilot.status.phase == Some(PilotPhase::Fenced)
}

/// Does the node serve, and has its pilot seen the spec of this generation?
fn is_serving_generation(pilot: &Pilot, generation: Option<i64>) -> bool {
    pilot.status.observed_generation >= generation
        && pilot.status.phase == Some(PilotPhase::Running)
        && NodePicture::new(pilot).is_serving()
}

async fn wait_for_node(
    session: &PluginSession,
    pilot: &Pilot,
    deadline: Instant,
    is_done: impl Fn(&Pilot) -> bool,
) -> Result<(), Error> {
    let api = session.pilot_api(pilot.metadata.namespace.as_deref().unwrap_or_default());
    let name = name_of(pilot);
    let mut last_state = String::new();
    let polling = timeout_at(deadline, async {
        loop {
            match api.get(name).await {
                Ok(current_pilot) if is_done(&current_pilot) => return,
                Ok(current_pilot) => {
                    let phase = current_pilot.status.phase.clone().unwrap_or_default();
                    let message = NodePicture::new(&current_pilot)
                        .ready_condition()
                        .map_or("", |condition| condition.message);
                    last_state = format!("it is {phase}: {message}");
                }
                // The API may be unreachable for a moment; the pilot still follows its spec.
                Err(error) => last_state = crate::plugin::error::server_message(&error),
            }
            sleep(LOOK).await;
        }
    });
    polling
        .await
        .map_err(|_| Error::Held(format!("{name} took longer than --deadline; {last_state}")))
}

async fn unless_interrupted(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let mut work = pin!(work);
    tokio::select! {
        ended = &mut work => ended,
        _ = tokio::signal::ctrl_c() => Err(Error::Held("interrupted; the node may run".to_owned())),
    }
}
