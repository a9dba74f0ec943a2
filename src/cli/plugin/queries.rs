//! Commands of `kubectl navigator` that change nothing.

use std::{
    io::{BufRead, Write, stdin, stdout},
    path::PathBuf,
};

use kube::ResourceExt as _;
use serde_json::json;

use super::{
    args::{CommonArgs, LogsArgs, OutputArgs, OutputFormat, ReportArgs, StatusArgs},
    output::{check_format, output_style, print_message, print_object, print_output},
};
use crate::{
    api::{containership::PROVISION_GROUP, names},
    database::{DatabaseList, shown_databases},
    error::exit,
    plugin::{
        bundle,
        certificates::ClusterCertificates,
        error::{Error, server_message},
        install_check,
        logs::{LogOptions, LogOutput, pretty::format_line, short_name},
        lookup::{ClusterName, PluginSession, find_node},
        machines, predicates, status,
        text::clean_text,
    },
    runtime::build_info,
};

pub(super) async fn print_status(
    common: &CommonArgs,
    session: &PluginSession,
    args: &StatusArgs,
) -> Result<u8, Error> {
    let output = args.form.output;
    let is_wide = output == Some(OutputFormat::Wide);
    if let Some(name) = &args.name {
        let snapshot = session.read_snapshot(name).await?;
        match output {
            Some(OutputFormat::Name) => print_output(&format!("{}\n", snapshot.found.reference()))?,
            Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
                print_object(form, &snapshot.json())?;
            }
            None | Some(OutputFormat::Wide) => {
                print_output(&snapshot.render(session.now, is_wide, output_style(common)))?;
            }
        }
        return Ok(readiness_code(snapshot.picture().is_ready()));
    }
    let namespace = (!args.all_namespaces).then_some(session.namespace.as_str());
    let clusters = session.list_clusters(namespace).await?;
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &status::list_json(&clusters))?;
        }
        Some(OutputFormat::Name) => {
            let names = clusters.iter().map(|cluster| format!("{}\n", cluster.reference()));
            print_output(&names.collect::<String>())?;
        }
        None | Some(OutputFormat::Wide) if clusters.is_empty() => match namespace {
            Some(namespace) => {
                print_message(&format!("There are no clusters in namespace {namespace}."));
            }
            None => print_message("There are no clusters."),
        },
        None | Some(OutputFormat::Wide) => {
            let needs_namespace = args.all_namespaces;
            print_output(&status::render_clusters(
                &clusters,
                session.now,
                needs_namespace,
                is_wide,
                output_style(common),
            ))?;
        }
    }
    Ok(readiness_code(clusters.iter().all(|cluster| cluster.picture().is_ready())))
}

fn readiness_code(is_ready: bool) -> u8 {
    if is_ready { exit::OK } else { exit::NOT_READY }
}

pub(super) async fn print_machines(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
) -> Result<u8, Error> {
    let upgrades = session.list_upgrades(common.namespace.as_deref()).await?;
    match form.output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &machines::list_json(&upgrades))?;
        }
        Some(OutputFormat::Name) => {
            let names = upgrades.iter().map(|upgrade| {
                format!("clusterupgrade.{PROVISION_GROUP}/{}\n", upgrade.name_any())
            });
            print_output(&names.collect::<String>())?;
        }
        None | Some(OutputFormat::Wide) if upgrades.is_empty() => {
            print_message("There are no upgrades of machines.");
        }
        None | Some(OutputFormat::Wide) => {
            print_output(&machines::render_upgrades(&upgrades, session.now, output_style(common)))?;
        }
    }
    Ok(readiness_code(machines::are_well(&upgrades)))
}

pub(super) async fn print_logs(
    common: &CommonArgs,
    session: &PluginSession,
    args: &LogsArgs,
) -> Result<u8, Error> {
    let cluster_name = args.name.as_ref().expect("clap requires it where no filter is asked for");
    let cluster = session.find_cluster(cluster_name).await?;
    let mut pilots = session.list_pilots(&cluster).await?;
    if let Some(name) = &args.node {
        pilots = vec![find_node(cluster.name(), &pilots, name)?.clone()];
    }
    if pilots.is_empty() {
        print_message(&format!("{} has no nodes.", cluster.reference()));
        return Ok(exit::FAILURE);
    }
    let is_single = pilots.len() == 1;
    let extent = LogOptions {
        follow: args.follow,
        tail: args.tail,
        previous: args.previous,
        since: args.since.map(std::time::Duration::from_secs),
    };
    let style = output_style(common);
    let (mut receiver, work) = session.stream_logs(&cluster, &pilots, &extent);
    let show = async {
        let mut code = exit::OK;
        while let Some(next) = receiver.recv().await {
            match next {
                LogOutput::Line { node, line } => {
                    let line =
                        if args.pretty { format_line(&line, style) } else { format!("{line}\n") };
                    let name = short_name(cluster.name(), &node);
                    let prefix = if is_single { String::new() } else { format!("[{name}] ") };
                    print_output(&prefix_lines(&prefix, &line))?;
                }
                LogOutput::Trouble { node, why } => {
                    print_message(&format!("{node}: {why}"));
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
fn prefix_lines(prefix: &str, lines: &str) -> String {
    lines.split_inclusive('\n').flat_map(|line| [prefix, line]).collect()
}

/// Filters standard input: turns JSON lines into lines for people.
pub(super) fn pretty_filter(common: &CommonArgs) -> Result<u8, Error> {
    let style = output_style(common);
    let mut out = stdout().lock();
    for line in stdin().lock().split(b'\n') {
        let line =
            line.map_err(|source| Error::ReadLog { pod: "standard input".into(), source })?;
        let line = String::from_utf8_lossy(&line);
        out.write_all(format_line(&line, style).as_bytes())
            .and_then(|()| out.flush())
            .map_err(Error::Write)?;
    }
    Ok(exit::OK)
}

pub(super) fn print_predicates(
    common: &CommonArgs,
    form: OutputArgs,
    databases: DatabaseList,
) -> Result<u8, Error> {
    let shown_databases = shown_databases(databases);
    match check_format(
        form,
        &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Name, OutputFormat::Wide],
    )? {
        Some(OutputFormat::Name) => {
            let names = predicates::all_predicates(&shown_databases);
            let names = names.iter().map(|(_, predicate)| format!("{}\n", predicate.name));
            print_output(&names.collect::<String>())?;
        }
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &predicates::list_json(&shown_databases))?;
        }
        None | Some(OutputFormat::Wide) => {
            print_output(&predicates::render_predicates(&shown_databases, output_style(common)))?;
        }
    }
    Ok(exit::OK)
}

pub(super) async fn print_blockers(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    name: &ClusterName,
) -> Result<u8, Error> {
    let output = check_format(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let cluster = session.find_cluster(name).await?;
    let pilots = session.list_pilots(&cluster).await?;
    let blockers = predicates::find_blockers(&cluster, &pilots, session.now);
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &predicates::blockers_json(&cluster, &blockers))?;
        }
        _ => print_output(&predicates::render_blockers(
            &cluster,
            &blockers,
            session.now,
            output_style(common),
        ))?,
    }
    Ok(readiness_code(blockers.iter().all(|blocker| blocker.skipped)))
}

pub(super) async fn print_certificates(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    name: &ClusterName,
) -> Result<u8, Error> {
    let output = check_format(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let cluster = session.find_cluster(name).await?;
    if !cluster.security().desired_modes().has_encryption() {
        return Err(Error::NoTls(cluster.reference()));
    }
    let pilots = session.list_pilots(&cluster).await?;
    let certificates = ClusterCertificates::new(&cluster, &pilots);
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &certificates.json())?;
        }
        _ => print_output(&certificates.render(session.now, output_style(common)))?,
    }
    Ok(readiness_code(certificates.are_well(session.now)))
}

pub(super) async fn write_report(session: &PluginSession, args: &ReportArgs) -> Result<u8, Error> {
    let name = bundle::default_name(session, args.name.as_ref());
    let settings = bundle::ReportSettings {
        cluster: args.name.clone(),
        install: args.install_namespace.clone(),
        tail: args.tail,
        most: usize::from(args.max_size) << 20,
    };
    let bundle = session.gather_report(&settings, &name).await?;
    for problem in &bundle.problems {
        print_message(&clean_text(problem));
    }
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let archive_bytes = bundle.archive.finish().map_err(Error::Write)?;
    if path.as_os_str() == "-" {
        let mut out = stdout().lock();
        out.write_all(&archive_bytes).and_then(|()| out.flush()).map_err(Error::Write)?;
    } else {
        write_private(&path, &archive_bytes)?;
        print_output(&format!("{}\n", path.display()))?;
    }
    print_message(
        "Secrets were taken out as far as they could be told; look before you pass it on.",
    );
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

pub(super) async fn check_install(
    common: &CommonArgs,
    form: OutputArgs,
    session: &PluginSession,
    install_namespace: &str,
) -> Result<u8, Error> {
    let output = check_format(form, &[OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Wide])?;
    let checks = session.check_install(install_namespace).await;
    match output {
        Some(form @ (OutputFormat::Json | OutputFormat::Yaml)) => {
            print_object(form, &install_check::checks_json(&checks))?;
        }
        _ => print_output(&install_check::render_checks(&checks, output_style(common)))?,
    }
    Ok(readiness_code(install_check::is_good(&checks)))
}

pub(super) fn client_version(form: OutputArgs) -> Result<u8, Error> {
    let version = format!("v{}", build_info::VERSION);
    match check_format(form, &[OutputFormat::Json, OutputFormat::Yaml])? {
        Some(form) => print_object(form, &json!({"plugin": version}))?,
        None => print_output(&format!("plugin      {version}\n"))?,
    }
    Ok(exit::OK)
}

pub(super) async fn print_version(form: OutputArgs, session: &PluginSession) -> Result<u8, Error> {
    let output = check_format(form, &[OutputFormat::Json, OutputFormat::Yaml])?;
    let plugin = format!("v{}", build_info::VERSION);
    let kubernetes = session.client.apiserver_version().await;
    let images = session.list_images(names::NAMESPACE).await;
    let server_version = kubernetes.as_ref().map(|info| info.git_version.clone()).ok();
    if let Some(form) = output {
        print_object(
            form,
            &json!({"plugin": plugin, "kubernetes": server_version, "navigator": images}),
        )?;
    } else {
        let rows = [("plugin".to_owned(), plugin)].into_iter().chain(images);
        let rows = rows.chain(server_version.map(|version| ("Kubernetes".to_owned(), version)));
        let rows: Vec<String> =
            rows.map(|(name, version)| format!("{name:<11} {version}\n")).collect();
        print_output(&rows.concat())?;
    }
    match kubernetes {
        Ok(_) => Ok(exit::OK),
        Err(error) => {
            print_message(&format!("error: {}", server_message(&error)));
            Ok(exit::FAILURE)
        }
    }
}
