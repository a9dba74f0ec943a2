//! Commands of `kubectl navigator` that change nothing.

use std::{
    io::{BufRead, Write, stdin, stdout},
    path::PathBuf,
};

use kube::ResourceExt as _;
use serde_json::json;

use super::{
    args::{CommonArgs, LogsArgs, OutputArgs, OutputFormat, ReportArgs, StatusArgs},
    output::{object, only, print, say, style},
};
use crate::{
    api::{containership::PROVISION_GROUP, names},
    database::{DatabaseList, shown},
    error::exit,
    plugin::{
        bundle,
        certificates::ClusterCertificates,
        error::{Error, said},
        install_check,
        logs::{LogOptions, LogOutput, pretty::pretty, short_name},
        lookup::{ClusterName, PluginSession, node},
        machines, predicates, status,
        text::clean,
    },
    runtime::build_info,
};

pub(super) async fn status(
    common: &CommonArgs,
    session: &PluginSession,
    args: &StatusArgs,
) -> Result<u8, Error> {
    let output = args.form.output;
    let wide = output == Some(OutputFormat::Wide);
    if let Some(name) = &args.name {
        let snapshot = session.snapshot(name).await?;
        match output {
            Some(OutputFormat::Name) => print(&format!("{}\n", snapshot.found.reference()))?,
            Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
                object(form, &snapshot.json())?;
            }
            None | Some(OutputFormat::Wide) => {
                print(&snapshot.screen(session.now, wide, style(common)))?;
            }
        }
        return Ok(code(snapshot.picture().is_ready()));
    }
    let namespace = (!args.all_namespaces).then_some(session.namespace.as_str());
    let found = session.all(namespace).await?;
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            object(form, &status::list_json(&found))?;
        }
        Some(OutputFormat::Name) => {
            let names = found.iter().map(|found| format!("{}\n", found.reference()));
            print(&names.collect::<String>())?;
        }
        None | Some(OutputFormat::Wide) if found.is_empty() => match namespace {
            Some(namespace) => say(&format!("There are no clusters in namespace {namespace}.")),
            None => say("There are no clusters."),
        },
        None | Some(OutputFormat::Wide) => {
            let all = args.all_namespaces;
            print(&status::list(&found, session.now, all, wide, style(common)))?;
        }
    }
    Ok(code(found.iter().all(|found| found.picture().is_ready())))
}

fn code(ready: bool) -> u8 {
    if ready { exit::OK } else { exit::NOT_READY }
}

pub(super) async fn machines(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
) -> Result<u8, Error> {
    let runs = session.upgrades(common.namespace.as_deref()).await?;
    match form.output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            object(form, &machines::list_json(&runs))?;
        }
        Some(OutputFormat::Name) => {
            let names = runs
                .iter()
                .map(|run| format!("clusterupgrade.{PROVISION_GROUP}/{}\n", run.name_any()));
            print(&names.collect::<String>())?;
        }
        None | Some(OutputFormat::Wide) if runs.is_empty() => {
            say("There are no upgrades of machines.");
        }
        None | Some(OutputFormat::Wide) => {
            print(&machines::screen(&runs, session.now, style(common)))?;
        }
    }
    Ok(code(machines::are_well(&runs)))
}

pub(super) async fn logs(
    common: &CommonArgs,
    session: &PluginSession,
    args: &LogsArgs,
) -> Result<u8, Error> {
    let wanted = args.name.as_ref().expect("clap requires it where no filter is asked for");
    let found = session.cluster(wanted).await?;
    let mut pilots = session.pilots(&found).await?;
    if let Some(name) = &args.node {
        pilots = vec![node(found.name(), &pilots, name)?.clone()];
    }
    if pilots.is_empty() {
        say(&format!("{} has no nodes.", found.reference()));
        return Ok(exit::FAILURE);
    }
    let alone = pilots.len() == 1;
    let extent = LogOptions {
        follow: args.follow,
        tail: args.tail,
        previous: args.previous,
        since: args.since.map(std::time::Duration::from_secs),
    };
    let style = style(common);
    let (mut said, work) = session.logs(&found, &pilots, &extent);
    let show = async {
        let mut code = exit::OK;
        while let Some(next) = said.recv().await {
            match next {
                LogOutput::Line { node, line } => {
                    let line = if args.pretty { pretty(&line, style) } else { format!("{line}\n") };
                    let name = short_name(found.name(), &node);
                    let prefix = if alone { String::new() } else { format!("[{name}] ") };
                    print(&prefixed(&prefix, &line))?;
                }
                LogOutput::Trouble { node, why } => {
                    say(&format!("{node}: {why}"));
                    code = exit::FAILURE;
                }
            }
        }
        Ok(code)
    };
    tokio::pin!(work);
    tokio::pin!(show);
    // The readers end first when all logs have ended; the printing ends first when it fails.
    tokio::select! {
        code = &mut show => code,
        () = &mut work => show.await,
    }
}

/// Puts `prefix` before each line.
fn prefixed(prefix: &str, lines: &str) -> String {
    lines.split_inclusive('\n').flat_map(|line| [prefix, line]).collect()
}

/// Filters standard input: turns JSON lines into lines for people.
pub(super) fn pretty_filter(common: &CommonArgs) -> Result<u8, Error> {
    let style = style(common);
    let mut out = stdout().lock();
    for line in stdin().lock().split(b'\n') {
        let line =
            line.map_err(|source| Error::ReadLog { pod: "standard input".into(), source })?;
        let line = String::from_utf8_lossy(&line);
        out.write_all(pretty(&line, style).as_bytes())
            .and_then(|()| out.flush())
            .map_err(Error::Write)?;
    }
    Ok(exit::OK)
}

pub(super) fn predicates(
    common: &CommonArgs,
    form: OutputArgs,
    databases: DatabaseList,
) -> Result<u8, Error> {
    let shown = shown(databases);
    match only(
        form,
        &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name, OutputFormat::Wide],
    )? {
        Some(OutputFormat::Name) => {
            let names = predicates::all(&shown);
            let names = names.iter().map(|(_, predicate)| format!("{}\n", predicate.name));
            print(&names.collect::<String>())?;
        }
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            object(form, &predicates::list_json(&shown))?;
        }
        None | Some(OutputFormat::Wide) => print(&predicates::list(&shown, style(common)))?,
    }
    Ok(exit::OK)
}

pub(super) async fn holding(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    name: &ClusterName,
) -> Result<u8, Error> {
    let output = only(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let found = session.cluster(name).await?;
    let pilots = session.pilots(&found).await?;
    let held = predicates::holding(&found, &pilots, session.now);
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            object(form, &predicates::held_json(&found, &held))?;
        }
        _ => print(&predicates::held_table(&found, &held, session.now, style(common)))?,
    }
    Ok(code(held.iter().all(|one| one.skipped)))
}

pub(super) async fn certificates(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    name: &ClusterName,
) -> Result<u8, Error> {
    let output = only(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let found = session.cluster(name).await?;
    if !found.security().wanted().encrypts() {
        return Err(Error::NoTls(found.reference()));
    }
    let pilots = session.pilots(&found).await?;
    let all = ClusterCertificates::new(&found, &pilots);
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => object(form, &all.json())?,
        _ => print(&all.screen(session.now, style(common)))?,
    }
    Ok(code(all.are_well(session.now)))
}

pub(super) async fn report(session: &PluginSession, args: &ReportArgs) -> Result<u8, Error> {
    let name = bundle::default_name(session, args.name.as_ref());
    let settings = bundle::ReportSettings {
        cluster: args.name.clone(),
        install: args.install_namespace.clone(),
        tail: args.tail,
        most: usize::from(args.max_size) << 20,
    };
    let bundle = session.bundle(&settings, &name).await?;
    for problem in &bundle.problems {
        say(&clean(problem));
    }
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let packed = bundle.archive.finish().map_err(Error::Write)?;
    if path.as_os_str() == "-" {
        let mut out = stdout().lock();
        out.write_all(&packed).and_then(|()| out.flush()).map_err(Error::Write)?;
    } else {
        write_private(&path, &packed)?;
        print(&format!("{}\n", path.display()))?;
    }
    say("Secrets were taken out as far as they could be told; look before you pass it on.");
    Ok(exit::OK)
}

/// Writes a file that only this user may read: the user decides who else gets the report.
fn write_private(path: &std::path::Path, content: &[u8]) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(content))
        .map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

pub(super) async fn check(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    install: &str,
) -> Result<u8, Error> {
    let output = only(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let all = session.check(install).await;
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            object(form, &install_check::json(&all))?;
        }
        _ => print(&install_check::table(&all, style(common)))?,
    }
    Ok(code(install_check::is_good(&all)))
}

pub(super) fn client_version(form: OutputArgs) -> Result<u8, Error> {
    let version = format!("v{}", build_info::VERSION);
    match only(form, &[OutputFormat::Json, OutputFormat::Yaml])? {
        Some(form) => object(form, &json!({"plugin": version}))?,
        None => print(&format!("plugin      {version}\n"))?,
    }
    Ok(exit::OK)
}

pub(super) async fn version(form: OutputArgs, session: &PluginSession) -> Result<u8, Error> {
    let output = only(form, &[OutputFormat::Json, OutputFormat::Yaml])?;
    let plugin = format!("v{}", build_info::VERSION);
    let kubernetes = session.client.apiserver_version().await;
    let images = session.images(names::NAMESPACE).await;
    let known = kubernetes.as_ref().map(|info| info.git_version.clone()).ok();
    if let Some(form) = output {
        object(form, &json!({"plugin": plugin, "kubernetes": known, "navigator": images}))?;
    } else {
        let rows = [("plugin".to_owned(), plugin)].into_iter().chain(images);
        let rows = rows.chain(known.map(|version| ("Kubernetes".to_owned(), version)));
        let rows: Vec<String> = rows.map(|(name, what)| format!("{name:<11} {what}\n")).collect();
        print(&rows.concat())?;
    }
    match kubernetes {
        Ok(_) => Ok(exit::OK),
        Err(error) => {
            say(&format!("error: {}", said(&error)));
            Ok(exit::FAILURE)
        }
    }
}
