//! Scripted Cassandras and the ring that they form: a folder plays the network. What the script
//! does, and how it is made to misbehave, is said at the head of `scripted-cassandra.pl`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use navigator::{api::v1beta1::Pilot, databases::cassandra::names::label};
use serde_json::{Value, json};

use super::{
    bed::{Bed, member_of},
    executable,
    nodes::{Cluster, Nodes},
    seat::Seat,
};

const SCRIPT: &str = include_str!("scripted-cassandra.pl");

/// One network with its nodes' folders.
pub(crate) struct Ring {
    root: PathBuf,
    home: PathBuf,
    cluster: String,
}

/// What the ring knows of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) mode: String,
    pub(crate) id: String,
    pub(crate) cluster: String,
}

impl Ring {
    /// The ring of a cluster object of this name; everything lies below `root`.
    pub(crate) fn new(root: &Path, cluster: &str) -> Self {
        let home = root.join("home");
        install(&home);
        fs::create_dir_all(root.join("ring")).unwrap();
        Self { root: root.to_owned(), home, cluster: cluster.to_owned() }
    }

    /// A host for a node of this ring.
    pub(crate) fn seat(&self, name: &str, address: [u8; 4]) -> Seat {
        let mut seat = Seat::new("cassandra", name, address, &self.home, &self.root);
        fs::write(seat.place.join("shared/jolokia.jar"), "").unwrap();
        fs::create_dir_all(seat.place.join("switches")).unwrap();
        seat.env.push(("SCRIPT_RING".to_owned(), self.root.join("ring").display().to_string()));
        seat
    }

    /// Seats for so many nodes on 127.x.`net`.1 and on; no node is made or started.
    pub(crate) fn nodes(&self, bed: &Rc<Bed>, net: u8, count: u8) -> Nodes {
        let mut nodes = Nodes::new(bed, self.cluster());
        for number in 0..count {
            let name = format!("cass-{}-a-{number}", self.cluster);
            nodes.push(self.seat(&name, [127, 0, net, number + 1]));
        }
        nodes
    }

    /// The Pilot of a node, as the controller would write it.
    pub(crate) fn pilot(&self, name: &str) -> Pilot {
        let Cluster { kind, label, name: cluster, spec, .. } = self.cluster();
        member_of(&cluster, kind, label, name, &spec)
    }

    /// The cluster object.
    fn cluster(&self) -> Cluster {
        Cluster {
            kind: "CassandraCluster",
            label: label::CLUSTER,
            name: self.cluster.clone(),
            lease: format!("cassandra-{}-leaderelection", self.cluster),
            spec: json!({
                "version": "5.0.6", "jvm": {"heap": "384Mi"},
                "cassandra": {"clusterName": self.cluster, "datacenter": "d", "rack": "r"},
            }),
        }
    }

    /// Clusters that were founded, and by which node.
    pub(crate) fn foundings(&self) -> Vec<String> {
        self.lines("foundings")
    }

    /// Broken rules that the scripts noted.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.lines("wrongs")
    }

    /// Gives the ring a users' keyspace.
    pub(crate) fn set_keyspace(&self, name: &str, factor: u32) {
        fs::write(self.root.join("ring/keyspaces"), format!("{name} {factor}\n")).unwrap();
    }

    /// Nodes by address.
    pub(crate) fn members(&self) -> BTreeMap<String, Member> {
        let Ok(entries) = fs::read_dir(self.root.join("ring/members")) else {
            return BTreeMap::new();
        };
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            let text = fs::read_to_string(entry.path()).ok()?;
            let [mode, id, cluster] = text.split_whitespace().collect::<Vec<_>>()[..] else {
                return None;
            };
            let member = Member { mode: mode.into(), id: id.into(), cluster: cluster.into() };
            (!name.contains("new")).then_some((name, member))
        };
        entries.flatten().filter_map(read).collect()
    }

    /// Addresses of the nodes in this mode.
    pub(crate) fn in_mode(&self, mode: &str) -> Vec<String> {
        let members = self.members().into_iter();
        members.filter(|(_, member)| member.mode == mode).map(|(address, _)| address).collect()
    }

    /// Removes all members from the network, as if the nodes were of another ring.
    pub(crate) fn forget_members(&self) {
        fs::remove_dir_all(self.root.join("ring/members")).unwrap();
    }

    /// What the ring knows of the node of a seat.
    pub(crate) fn member_path(&self, seat: &Seat) -> PathBuf {
        self.root.join("ring/members").join(seat.address.to_string())
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.root.join("ring").join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Lays the script out as an installed Cassandra.
pub(crate) fn install(home: &Path) {
    fs::create_dir_all(home.join("bin")).unwrap();
    fs::create_dir_all(home.join("conf")).unwrap();
    executable::write(&home.join("bin/cassandra"), SCRIPT);
}

/// Makes the node of a seat misbehave, until [`unset`].
pub(crate) fn set(seat: &Seat, switch: &str, content: &str) {
    fs::write(seat.place.join("switches").join(switch), content).unwrap();
}

pub(crate) fn unset(seat: &Seat, switch: &str) {
    fs::remove_file(seat.place.join("switches").join(switch)).unwrap();
}

/// What happened to a seat's database, in order.
pub(crate) fn notes(seat: &Seat) -> Vec<String> {
    let text = fs::read_to_string(seat.place.join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// How often this was noted.
pub(crate) fn count(seat: &Seat, word: &str) -> usize {
    notes(seat).iter().filter(|line| line.split(' ').next() == Some(word)).count()
}

/// What a Pilot's spec says that it shall do.
pub(crate) fn phase(word: &str) -> Value {
    json!({ "phase": word })
}

/// Gauges of a Cassandra node that docs/metrics.md names.
pub(crate) fn documented_gauges() -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let names = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names = names.filter(|name| name.starts_with("navigator_cassandra_"));
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(!names.is_empty());
    names
}
