//! Makes the installed plugins those of the spec, before the node starts.
//!
//! Owns which of the plugins Navigator installed: only those are ever removed, because the vendor's
//! image may bring its own. Starts nothing: it names the runs of `elasticsearch-plugin` that are
//! needed, and records how each ended. Elasticsearch refuses to start beside a half-installed or
//! half-removed plugin, so the remains of an interrupted run are cleared first.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha512};

use super::{
    configure,
    state::{InstalledPlugin, NodeState, PluginInstallation},
};
use crate::{
    databases::elasticsearch::v1beta1::{ElasticsearchNode, ElasticsearchPlugin, PluginStatus},
    pilot::{
        driver::{DatabaseNode, Error, PreparationProgram, ProcessSpec},
        volume::state_file::StateFile,
    },
};

/// Most bytes of `status.elasticsearch.plugins[].message`.
const MESSAGE: usize = 256;

/// The steps that are needed to install and remove plugins, and each plugin's state for the report.
#[derive(Debug, Default)]
pub(super) struct PluginPlan {
    steps: Vec<PluginStep>,
    plugins: Vec<PluginStatus>,
}

#[derive(Debug)]
enum PluginStep {
    /// Remove the plugin in `folder`. `source`: the plugin's name in the status.
    Remove {
        folder: String,
        source: String,
    },
    Install(ElasticsearchPlugin),
}

impl PluginPlan {
    /// Compares the plugins of the spec with those on the disk.
    pub(super) fn for_node(node: &DatabaseNode) -> Result<Self, Error> {
        let mut state = NodeState::load(&node.data)?;
        let half_removed = clear_leftovers(&node.home)?;
        adopt_installed(&mut state, &plugin_dirs(&node.home));
        state.save(&node.data)?;

        let present = plugin_dirs(&node.home);
        let spec = node.pilot.spec.part::<ElasticsearchNode>();
        let desired = spec.map(|spec| spec.plugins).unwrap_or_default();
        let is_current = |installed: &InstalledPlugin| {
            !half_removed.contains(&installed.folder)
                && is_compatible(&node.home, &installed.folder)
                && desired.iter().any(|plugin| {
                    plugin.name == installed.source
                        && (plugin.sha512.is_none() || plugin.sha512 == installed.sha512)
                })
        };
        let (kept_plugins, dropped_plugins): (Vec<&InstalledPlugin>, Vec<&InstalledPlugin>) = state
            .plugins
            .iter()
            .filter(|plugin| present.contains(&plugin.folder))
            .partition(|plugin| is_current(plugin));
        let mut plan = Self::default();
        for InstalledPlugin { source, folder, .. } in &dropped_plugins {
            plan.steps.push(PluginStep::Remove { folder: folder.clone(), source: source.clone() });
            if !desired.iter().any(|plugin| plugin.name == *source) {
                plan.plugins.push(plugin_status(source, "Removing"));
            }
        }
        for plugin in desired {
            let folder = folder_name(&plugin.name);
            let is_foreign = present.contains(folder)
                && !state.plugins.iter().any(|installed| installed.folder == folder);
            if is_foreign || kept_plugins.iter().any(|installed| installed.source == plugin.name) {
                plan.plugins.push(plugin_status(&plugin.name, "Installed"));
            } else {
                plan.steps.push(PluginStep::Install(plugin.clone()));
                plan.plugins.push(plugin_status(&plugin.name, "Pending"));
            }
        }
        Ok(plan)
    }

    /// Compares each archive that is to be installed with the checksum in the spec.
    pub(super) fn check_archives(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for step in &self.steps {
            let PluginStep::Install(plugin) = step else { continue };
            if let Err(reason) = check_archive(plugin) {
                set_status(&mut self.plugins, &plugin.name, "Failed", Some(&reason));
                let message = format!("plugin {}: {reason}", plugin.name);
                result = result.and(Err(Error::Unprepared(message)));
            }
        }
        result
    }

    /// Returns the runs of the vendor's program, one for each step.
    pub(super) fn build_programs(
        &self,
        node: &DatabaseNode,
    ) -> Result<Vec<PreparationProgram>, Error> {
        let release = configure::node_release(node)?;
        let mut env = configure::build_environment(node, release);
        if release.major == 5 {
            env.insert("CONF_DIR".to_owned(), node.config.display().to_string());
        }
        let plugin_program = |what: String, args: &[&str]| PreparationProgram {
            what,
            program: ProcessSpec {
                program: node.home.join("bin/elasticsearch-plugin"),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                env: env.clone(),
                working_directory: Some(node.home.clone()),
                config_hash: String::new(),
                ..ProcessSpec::default()
            },
            input: None,
        };
        self.record_installation(node, 0)?;
        let programs = self.steps.iter().map(|step| match step {
            PluginStep::Remove { folder, .. } => {
                plugin_program(format!("remove plugin {folder}"), &["remove", folder])
            }
            PluginStep::Install(ElasticsearchPlugin { name, .. }) => {
                plugin_program(format!("install plugin {name}"), &["install", "--batch", name])
            }
        });
        Ok(programs.collect())
    }

    /// Records how a step ended, on the disk and for the report.
    pub(super) fn record_outcome(
        &mut self,
        node: &DatabaseNode,
        index: usize,
        outcome: Result<(), &str>,
    ) -> Result<(), Error> {
        let Some(step) = self.steps.get(index) else { return Ok(()) };
        let mut state = NodeState::load(&node.data)?;
        match (step, outcome) {
            (PluginStep::Remove { folder, source }, Ok(())) => {
                state.plugins.retain(|installed| installed.folder != *folder);
                self.plugins.retain(|plugin| {
                    plugin.name != *source || plugin.status.as_deref() != Some("Removing")
                });
            }
            (PluginStep::Install(plugin), Ok(())) => {
                adopt_installed(&mut state, &plugin_dirs(&node.home));
                set_status(&mut self.plugins, &plugin.name, "Installed", None);
            }
            (
                PluginStep::Remove { source: name, .. }
                | PluginStep::Install(ElasticsearchPlugin { name, .. }),
                Err(message),
            ) => {
                state.installing = None;
                set_status(&mut self.plugins, name, "Failed", Some(message));
            }
        }
        state.save(&node.data)?;
        self.record_installation(node, index + 1)
    }

    /// Is the program at `index` one of this plan?
    pub(super) fn has_step(&self, index: usize) -> bool {
        index < self.steps.len()
    }

    pub(super) fn statuses(&self) -> Vec<PluginStatus> {
        self.plugins.clone()
    }

    /// Records what the next step will install, before it begins.
    fn record_installation(&self, node: &DatabaseNode, index: usize) -> Result<(), Error> {
        let Some(PluginStep::Install(ElasticsearchPlugin { name, sha512 })) = self.steps.get(index)
        else {
            return Ok(());
        };
        let mut state = NodeState::load(&node.data)?;
        state.installing = Some(PluginInstallation {
            source: name.clone(),
            sha512: sha512.clone(),
            before: plugin_dirs(&node.home),
        });
        state.save(&node.data)
    }
}

/// Records the plugin of an interrupted or finished installation: its folder is the one that was
/// not there before.
fn adopt_installed(state: &mut NodeState, present: &BTreeSet<String>) {
    let Some(PluginInstallation { source, sha512, before: old_folders }) = state.installing.take()
    else {
        return;
    };
    if let Some(folder) = present.difference(&old_folders).next() {
        state.plugins.retain(|installed| installed.folder != *folder);
        state.plugins.push(InstalledPlugin { source, folder: folder.clone(), sha512 });
    }
}

fn plugin_status(name: &str, status: &str) -> PluginStatus {
    PluginStatus {
        name: name.to_owned(),
        status: Some(status.to_owned()),
        ..PluginStatus::default()
    }
}

fn set_status(plugins: &mut [PluginStatus], name: &str, status: &str, message: Option<&str>) {
    for plugin in plugins.iter_mut().filter(|plugin| plugin.name == name) {
        plugin.status = Some(status.to_owned());
        plugin.message = message.map(truncate_message);
    }
}

/// Returns the end of a text, at most [`MESSAGE`] bytes, which says what went wrong.
fn truncate_message(text: &str) -> String {
    let mut start = text.len().saturating_sub(MESSAGE);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

/// Returns the folders of whole plugins. Elasticsearch's own marker folders begin with a dot.
fn plugin_dirs(home: &Path) -> BTreeSet<String> {
    plugin_entries(home)
        .filter(|(name, path)| !name.starts_with('.') && path.is_dir())
        .map(|(name, _)| name)
        .collect()
}

fn plugin_entries(home: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(home.join("plugins")).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
}

/// Clears what interrupted runs left; returns the plugins that were half removed.
fn clear_leftovers(home: &Path) -> Result<BTreeSet<String>, Error> {
    let mut half_removed = BTreeSet::new();
    for (name, path) in plugin_entries(home) {
        let removed_plugin = name.strip_prefix(".removing-");
        if removed_plugin.is_none() && !name.starts_with(".installing-") {
            continue;
        }
        let removal =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removal.map_err(|source| Error::Write { path, source })?;
        half_removed.extend(removed_plugin.map(str::to_owned));
    }
    Ok(half_removed)
}

/// Was the plugin built for the installed server? A plugin for another version would keep the
/// server from starting.
fn is_compatible(home: &Path, folder: &str) -> bool {
    let path = home.join("plugins").join(folder).join("plugin-descriptor.properties");
    let text = fs::read_to_string(path).unwrap_or_default();
    let built_for = text.lines().find_map(|line| line.strip_prefix("elasticsearch.version="));
    built_for.is_none_or(|version| {
        let jar = |version: &str| home.join(format!("lib/elasticsearch-{version}.jar")).is_file();
        jar(version.trim())
    })
}

fn check_archive(plugin: &ElasticsearchPlugin) -> Result<(), String> {
    let Some(desired_digest) = &plugin.sha512 else { return Ok(()) };
    let Some(path) = local_archive(&plugin.name) else {
        return Err("its sha512 can be checked of a file:// archive only; leave sha512 out, or \
                    bring the archive into the image or a volume"
            .to_owned());
    };
    let read_error = |error: io::Error| format!("failed to read {}: {error}", path.display());
    let mut file = fs::File::open(&path).map_err(read_error)?;
    let mut digest = Sha512::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let length = file.read(&mut chunk).map_err(read_error)?;
        if length == 0 {
            break;
        }
        digest.update(&chunk[..length]);
    }
    let actual_digest = format!("{:x}", digest.finalize());
    if actual_digest.eq_ignore_ascii_case(desired_digest) {
        return Ok(());
    }
    Err(format!("{} has the sha512 {actual_digest}, not that of the spec", path.display()))
}

/// Returns the path of a local archive: `file:///x.zip` and `file:/x.zip` → `/x.zip`.
fn local_archive(source: &str) -> Option<PathBuf> {
    let rest = source.strip_prefix("file:")?;
    Some(PathBuf::from(rest.strip_prefix("//").unwrap_or(rest)))
}

/// Returns the folder that a plugin is installed into, by the name of its archive: `analysis-icu`,
/// `https://…/my-plugin-8.19.4.zip` → `my-plugin`, `org.example:my-plugin:1.0` → `my-plugin`.
fn folder_name(source: &str) -> &str {
    if source.contains('/') {
        let file = source.rsplit('/').next().unwrap_or(source);
        let stem = file.strip_suffix(".zip").unwrap_or(file);
        let version = stem
            .match_indices('-')
            .find(|(index, _)| stem[index + 1..].starts_with(|c: char| c.is_ascii_digit()));
        return version.map_or(stem, |(index, _)| &stem[..index]);
    }
    let mut parts = source.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(artifact), Some(_)) => artifact,
        _ => source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::elasticsearch::pilot::tests::node_in;

    fn node(place: &Path, wanted: &[(&str, Option<&str>)]) -> DatabaseNode {
        let mut node = node_in(place);
        let plugin = |(name, sha512): &(&str, Option<&str>)| ElasticsearchPlugin {
            name: (*name).to_owned(),
            sha512: sha512.map(str::to_owned),
        };
        let plugins = wanted.iter().map(plugin).collect();
        node.pilot.spec.change_part::<ElasticsearchNode>(|part| part.plugins = plugins);
        node
    }

    fn put(node: &DatabaseNode, folder: &str) {
        fs::create_dir_all(node.home.join("plugins").join(folder)).unwrap();
    }

    fn installed(node: &DatabaseNode, plugins: &[(&str, &str)]) {
        let plugins = plugins.iter().map(|(source, folder)| {
            put(node, folder);
            InstalledPlugin { source: (*source).into(), folder: (*folder).into(), sha512: None }
        });
        NodeState { plugins: plugins.collect(), ..NodeState::default() }.save(&node.data).unwrap();
    }

    fn args(plan: &PluginPlan, node: &DatabaseNode) -> Vec<String> {
        plan.build_programs(node).unwrap().iter().map(|one| one.program.args.join(" ")).collect()
    }

    fn told(plan: &PluginPlan) -> Vec<(String, String)> {
        plan.statuses().into_iter().map(|told| (told.name, told.status.unwrap())).collect()
    }

    #[test]
    fn a_plugin_is_known_by_the_name_of_its_folder() {
        for (source, name) in [
            ("analysis-icu", "analysis-icu"),
            ("https://example.org/my-plugin-8.19.4.zip", "my-plugin"),
            ("file:///plugins/demo.zip", "demo"),
            ("org.example:my-plugin:1.0", "my-plugin"),
        ] {
            assert_eq!(folder_name(source), name);
        }
    }

    #[test]
    fn only_what_we_installed_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let node = node(place.path(), &[("analysis-icu", None), ("vendor-own", None)]);
        installed(&node, &[("file:///old.zip", "old")]);
        put(&node, "vendor-own");
        let plan = PluginPlan::for_node(&node).unwrap();
        assert_eq!(args(&plan, &node), ["remove old", "install --batch analysis-icu"]);
        let told = told(&plan);
        let told: Vec<_> = told.iter().map(|(name, how)| (name.as_str(), how.as_str())).collect();
        assert_eq!(
            told,
            [
                ("file:///old.zip", "Removing"),
                ("analysis-icu", "Pending"),
                ("vendor-own", "Installed")
            ]
        );
    }

    #[test]
    fn an_installed_plugin_is_known_again_whatever_its_archive_is_called() {
        let place = tempfile::tempdir().unwrap();
        let node = node(place.path(), &[("file:///tmp/x.zip", None)]);
        let mut plan = PluginPlan::for_node(&node).unwrap();
        assert_eq!(args(&plan, &node), ["install --batch file:///tmp/x.zip"]);
        put(&node, "its-own-name");
        // Whether the pilot ends here or goes on, the next plan has nothing to do.
        assert!(PluginPlan::for_node(&node).unwrap().steps.is_empty());
        plan.record_outcome(&node, 0, Ok(())).unwrap();
        assert!(PluginPlan::for_node(&node).unwrap().steps.is_empty());
        assert_eq!(NodeState::load(&node.data).unwrap().plugins[0].folder, "its-own-name");
        // A new container has only the plugins of the image.
        fs::remove_dir_all(node.home.join("plugins")).unwrap();
        assert_eq!(PluginPlan::for_node(&node).unwrap().steps.len(), 1);
    }

    #[test]
    fn a_plugin_of_another_version_of_the_server_or_of_the_archive_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node(place.path(), &[("file:///demo.zip", None)]);
        installed(&node, &[("file:///demo.zip", "demo")]);
        assert!(PluginPlan::for_node(&node).unwrap().steps.is_empty());
        let both = ["remove demo", "install --batch file:///demo.zip"];
        let descriptor = node.home.join("plugins/demo/plugin-descriptor.properties");
        fs::write(&descriptor, "name=demo\nelasticsearch.version=7.17.28\n").unwrap();
        assert_eq!(args(&PluginPlan::for_node(&node).unwrap(), &node), both);
        fs::remove_file(descriptor).unwrap();
        node.pilot.spec.change_part::<ElasticsearchNode>(|part| {
            part.plugins[0].sha512 = Some("00".into());
        });
        assert_eq!(args(&PluginPlan::for_node(&node).unwrap(), &node), both);
    }

    #[test]
    fn what_interrupted_runs_left_is_cleared() {
        let place = tempfile::tempdir().unwrap();
        let node = node(place.path(), &[("file:///demo.zip", None)]);
        installed(&node, &[("file:///demo.zip", "demo")]);
        for leftover in [".installing-123", ".removing-demo"] {
            put(&node, leftover);
        }
        let plan = PluginPlan::for_node(&node).unwrap();
        assert_eq!(plugin_dirs(&node.home).len(), plugin_entries(&node.home).count());
        assert_eq!(args(&plan, &node), ["remove demo", "install --batch file:///demo.zip"]);
    }

    #[test]
    fn an_archive_is_installed_only_when_it_is_the_one_that_was_meant() {
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("demo.zip");
        fs::write(&archive, "abc").unwrap();
        let name = format!("file://{}", archive.display());
        // The hash is that of the example "abc" in FIPS 180-2.
        let right = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                     2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        for (name, sha512, word) in [
            (name.as_str(), Some(right), None),
            (name.as_str(), None, None),
            (name.as_str(), Some("00"), Some("not that of the spec")),
            ("file:///nonexistent.zip", Some("00"), Some("failed to read")),
            ("https://example.org/demo.zip", Some("00"), Some("can be checked of a file://")),
        ] {
            let mut plan = PluginPlan::for_node(&node(place.path(), &[(name, sha512)])).unwrap();
            let checked = plan.check_archives().map_err(|error| error.to_string());
            let told = plan.statuses().remove(0);
            match word {
                None => assert_eq!(checked, Ok(())),
                Some(word) => {
                    assert!(checked.as_ref().unwrap_err().contains(word), "{checked:?}");
                    assert_eq!(told.status.as_deref(), Some("Failed"));
                    assert!(told.message.unwrap().len() <= MESSAGE);
                }
            }
        }
    }
}
