//! Commands of `kubectl navigator` that change something.

use std::{pin::pin, time::Duration};

use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    args::{
        ChangeArgs as Args, CleanupArgs, ClusterArgs, CommonArgs, DryRun, FenceArgs, GiveUpArgs,
        OutputFormat, RestartArgs, ScaleArgs, UnsafeBootstrapArgs, UpgradeArgs,
    },
    output::{object, only, print, say, style},
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
        lookup::{ClusterName, ClusterObject, PluginSession, name_of, node},
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
fn tell(args: Args, changed: &ChangeResult, done: &str) -> Result<(), Error> {
    for warning in &changed.warnings {
        say(&format!("Warning: {warning}"));
    }
    let done = if changed.changed { done } else { "unchanged" };
    let dry = if args.is_dry() { " (server dry run)" } else { "" };
    match only(args.form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name])? {
        Some(OutputFormat::Name) => print(&format!("{}\n", changed.reference)),
        Some(form) => object(form, &changed.object),
        None => print(&format!("{} {done}{dry}\n", changed.reference)),
    }
}

async fn change(
    session: &PluginSession,
    name: &ClusterName,
    args: Args,
    change: &ClusterChange,
    done: &str,
) -> Result<u8, Error> {
    let found = session.cluster(name).await?;
    let changed = session.change(&found, change, args.is_dry()).await?;
    tell(args, &changed, done)?;
    Ok(exit::OK)
}

pub(super) async fn restart(session: &PluginSession, args: &RestartArgs) -> Result<u8, Error> {
    change(
        session,
        &args.name,
        args.change,
        &ClusterChange::Restart,
        "restarts, one node at a time",
    )
    .await
}

pub(super) async fn pause(
    session: &PluginSession,
    args: &ClusterArgs,
    on: bool,
) -> Result<u8, Error> {
    let done = if on { "paused" } else { "resumed" };
    change(session, &args.name, args.change, &ClusterChange::Paused(on), done).await
}

pub(super) async fn stop(
    session: &PluginSession,
    args: &ClusterArgs,
    on: bool,
) -> Result<u8, Error> {
    let done = if on { "stops" } else { "starts" };
    change(session, &args.name, args.change, &ClusterChange::Stopped(on), done).await
}

pub(super) async fn scale(session: &PluginSession, args: &ScaleArgs) -> Result<u8, Error> {
    let (pool, replicas) = args.size.clone();
    let done = format!("scaled: {pool} to {replicas}");
    change(session, &args.name, args.change, &ClusterChange::Replicas { pool, replicas }, &done)
        .await
}

pub(super) async fn fence(session: &PluginSession, args: &FenceArgs) -> Result<u8, Error> {
    let (_, pilot) = session.member(&args.name, &args.node).await?;
    let (intent, done) =
        if args.off { (PilotIntent::Running, "unfenced") } else { (PilotIntent::Fenced, "fenced") };
    let changed = session.tell(&pilot, &intent, args.change.is_dry()).await?;
    tell(args.change, &changed, done)?;
    Ok(exit::OK)
}

pub(super) async fn give_up(session: &PluginSession, args: &GiveUpArgs) -> Result<u8, Error> {
    let (found, pilot) = session.member(&args.name, &args.node).await?;
    if NodePicture::new(&pilot).serves() && !session.is_gone(&pilot).await {
        let (name, cluster) = (name_of(&pilot), found.name());
        return Err(Error::Held(format!(
            "{name} serves: it leaves with its data when its pool has fewer replicas (kubectl \
             navigator scale {cluster})"
        )));
    }
    if let Some(data) = session.data_of(&found, &pilot).await.filter(|data| *data != args.data) {
        let name = name_of(&pilot);
        return Err(Error::Usage(format!(
            "the data of {name} have the uid {data}, not {}: nothing is given up",
            args.data
        )));
    }
    let changed = session.give_up(&pilot, &args.data, args.change.is_dry()).await?;
    tell(args.change, &changed, "given up")?;
    Ok(exit::OK)
}

pub(super) async fn unsafe_bootstrap(
    session: &PluginSession,
    args: &UnsafeBootstrapArgs,
) -> Result<u8, Error> {
    let (found, pilot) = session.member(&args.name, &args.node).await?;
    let (name, cluster) = (name_of(&pilot), found.name());
    let Some(lost) = session.database(found.kind).and_then(|database| database.lost_with_quorum)
    else {
        let kind = found.kind.kind();
        return Err(Error::Usage(format!("the nodes of a {kind} elect no leader")));
    };
    let pilots = session.pilots(&found).await?;
    if let Some(serves) = pilots.iter().find(|pilot| NodePicture::new(pilot).serves()) {
        return Err(Error::Held(format!(
            "{} serves, so {cluster} has an elected leader: give lost nodes up instead (kubectl \
             navigator give-up {cluster} NODE)",
            name_of(serves)
        )));
    }
    let identity = pilot.status.identity.as_ref();
    let Some(id) = identity.and_then(|identity| identity.cluster_id.as_deref()) else {
        return Err(Error::Held(format!("{name} was no node of the database cluster yet")));
    };
    match args.cluster_id.as_deref() {
        Some(given) if given == id => {
            let changed = session.begin_anew(&pilot, id, args.change.is_dry()).await?;
            tell(args.change, &changed, "is asked to begin the cluster anew")?;
            Ok(exit::OK)
        }
        Some(given) => {
            Err(Error::Held(format!("{name} is of database cluster {id:?}, not of {given:?}")))
        }
        None => Err(Error::Held(format!(
            "{name} would begin {cluster} anew from what it has. This cannot be taken back. Lost for \
             good are:\n{lost}\nMake sure that no lost node still runs. Then type:\n  kubectl \
             navigator unsafe-bootstrap {cluster} {name} --cluster-id {id}"
        ))),
    }
}

pub(super) async fn cleanup(session: &PluginSession, args: &CleanupArgs) -> Result<u8, Error> {
    let output =
        only(args.change.form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name])?;
    let found = session.cluster(&args.name).await?;
    if session.database(found.kind).is_some_and(|database| !database.cleans_up) {
        let kind = found.kind.kind();
        return Err(Error::Usage(format!("nodes of a {kind} keep nothing that they gave away")));
    }
    let pilots = session.pilots(&found).await?;
    let asked = match &args.node {
        Some(wanted) => vec![node(found.name(), &pilots, wanted)?],
        None => pilots.iter().filter(|pilot| owes_cleanup(pilot)).collect(),
    };
    if asked.is_empty() && output.is_none() {
        print(&format!("{}: nothing is due, or it is asked for already\n", found.reference()))?;
        return Ok(exit::OK);
    }
    let changed = session.ask_for_cleanup(&asked, args.change.is_dry()).await?;
    if let Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) = output {
        let items: Vec<_> = changed.into_iter().map(|changed| changed.object).collect();
        object(form, &json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
        return Ok(exit::OK);
    }
    for changed in &changed {
        tell(args.change, changed, "is to be cleaned up")?;
    }
    Ok(exit::OK)
}

/// May the node hold rows that other nodes own now, without a cleanup being requested?
fn owes_cleanup(pilot: &Pilot) -> bool {
    let found = pilot.status.conditions.iter().find(|found| found.type_ == CLEANUP_DUE);
    found.is_some_and(|found| {
        let asked = ["CleanupInProgress", "CleanupWaits"].contains(&found.reason.as_str());
        found.status != "False" && !asked
    })
}

pub(super) async fn upgrade(
    common: &CommonArgs,
    session: &PluginSession,
    args: &UpgradeArgs,
) -> Result<u8, Error> {
    let wanted = ClusterChange::Version(args.to.clone());
    if !args.check {
        let done = format!("upgrades to {}", args.to);
        return change(session, &args.name, args.change, &wanted, &done).await;
    }
    let output = only(args.change.form, &[OutputFormat::Json, OutputFormat::Yaml])?;
    let found = session.cluster(&args.name).await?;
    // The server judges the version, and the way to it from the nodes' own versions.
    let changed = session.change(&found, &wanted, true).await?;
    for warning in &changed.warnings {
        say(&format!("Warning: {warning}"));
    }
    let pilots = session.pilots(&found).await?;
    let held = predicates::holding(&found, &pilots, session.now);
    if let Some(form) = output {
        object(form, &predicates::held_json(&found, &held))?;
    } else {
        let to = &args.to;
        let current = |pilot: &&Pilot| pilot.status.version.as_deref() == Some(to.as_str());
        let there = pilots.iter().filter(current).count();
        print(&format!(
            "The server accepts {to} for {}; {there} of {} nodes run it.\n{}",
            found.reference(),
            pilots.len(),
            predicates::held_table(&found, &held, session.now, style(common))
        ))?;
    }
    Ok(if held.iter().all(|one| one.skipped) { exit::OK } else { exit::NOT_READY })
}

/// Restarts one node: fences it, and lets it run again. The controller leaves the cluster alone
/// meanwhile.
pub(super) async fn restart_node(session: &PluginSession, args: &RestartArgs) -> Result<u8, Error> {
    let wanted = args.node.as_deref().unwrap_or_default();
    let found = session.cluster(&args.name).await?;
    let pilots = session.pilots(&found).await?;
    let pilot = node(found.name(), &pilots, wanted)?;
    if !args.force
        && let Some(why) = forbids(&found, &pilots, pilot, session)
    {
        return Err(Error::Held(format!("{why}; --force restarts it all the same")));
    }
    let fenced = session.tell(pilot, &PilotIntent::Fenced, args.change.is_dry()).await?;
    if args.change.is_dry() {
        tell(args.change, &fenced, "restarted")?;
        return Ok(exit::OK);
    }
    let deadline = Instant::now() + Duration::from_secs(args.deadline);
    let name = name_of(pilot);
    say(&format!("{name} stops"));
    let stopped = wait(session, pilot, deadline, is_fenced);
    let stopped = unless_interrupted(stopped).await;
    // The node may run again, whether or not it stopped in time.
    let freed = session.tell(pilot, &PilotIntent::Running, false).await?;
    let generation =
        freed.object.pointer("/metadata/generation").and_then(serde_json::Value::as_i64);
    stopped?;
    say(&format!("{name} starts"));
    let serves = |pilot: &Pilot| serves(pilot, generation);
    unless_interrupted(wait(session, pilot, deadline, serves)).await?;
    tell(args.change, &ChangeResult { changed: true, ..freed }, "restarted")?;
    Ok(exit::OK)
}

/// Returns why a node should not be stopped now.
fn forbids(
    found: &ClusterObject,
    pilots: &[Pilot],
    pilot: &Pilot,
    session: &PluginSession,
) -> Option<String> {
    let name = name_of(pilot);
    if let Some(operation) = &found.picture().operation {
        return Some(format!("{} is in progress", operation.type_));
    }
    if let Some(other) =
        pilots.iter().find(|other| name_of(other) != name && !NodePicture::new(other).serves())
    {
        return Some(format!("{} is not ready", name_of(other)));
    }
    let held = predicates::holding(found, pilots, session.now);
    // Each pilot reports what speaks against stopping its own node; of other nodes it only matters
    // whether their pilots report.
    let speaks = |held: &&HoldingPredicate| {
        held.holds_a_stop() && (held.node.as_deref() == Some(name) || held.name == PEERS_READY.name)
    };
    let held = held.iter().find(speaks)?;
    Some(format!("{}: {}", held.name, held.message))
}

fn is_fenced(pilot: &Pilot) -> bool {
    pilot.status.phase == Some(PilotPhase::Fenced)
}

/// Does the node serve, and has its pilot seen the spec of this generation?
fn serves(pilot: &Pilot, generation: Option<i64>) -> bool {
    pilot.status.observed_generation >= generation
        && pilot.status.phase == Some(PilotPhase::Running)
        && NodePicture::new(pilot).serves()
}

async fn wait(
    session: &PluginSession,
    pilot: &Pilot,
    deadline: Instant,
    shows: impl Fn(&Pilot) -> bool,
) -> Result<(), Error> {
    let api = session.pilots_of(pilot.metadata.namespace.as_deref().unwrap_or_default());
    let name = name_of(pilot);
    let mut last = String::new();
    let seen = timeout_at(deadline, async {
        loop {
            match api.get(name).await {
                Ok(now) if shows(&now) => return,
                Ok(now) => {
                    let phase = now.status.phase.clone().unwrap_or_default();
                    let why = NodePicture::new(&now).ready().map_or("", |ready| ready.message);
                    last = format!("it is {phase}: {why}");
                }
                // The API may be unreachable for a moment; the pilot still follows its spec.
                Err(error) => last = crate::plugin::error::said(&error),
            }
            sleep(LOOK).await;
        }
    });
    seen.await.map_err(|_| Error::Held(format!("{name} took longer than --deadline; {last}")))
}

async fn unless_interrupted(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let mut work = pin!(work);
    tokio::select! {
        ended = &mut work => ended,
        _ = tokio::signal::ctrl_c() => Err(Error::Held("interrupted; the node may run".to_owned())),
    }
}
