//! What one look at a Redis shows of its part in the cluster, and what pilots leave there for each
//! other.
//!
//! Who is primary is recorded by a function in the data: it is replicated and kept in order with
//! the writes, and no client's FLUSHALL removes it. What a pilot says of its own node, and what the
//! leading pilot asks of it, stand in two settings that change nothing here: one is of Redis
//! Cluster, one counts together with a password only.

use std::net::{IpAddr, SocketAddr};

use navigator::pilot::driver::Error;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::resp::{Reply, ask};

/// Where a node's pilot says what it released.
pub(crate) const SAYS: &str = "cluster-announce-ip";
/// Where the leading pilot asks it to succeed the primary of an epoch.
pub(crate) const ASKED: &str = "masteruser";
/// A node that follows nobody follows this port of its own, where nobody listens.
pub(crate) const NOWHERE: u16 = 1;

/// Seconds. A primary says something each second.
const IN_TOUCH: u64 = 5;

/// Who is primary. Ordered by age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Counts the primaries, from 1: no two have the same.
    pub(crate) epoch: u64,
    /// Counts the starts of one primary. Offsets of one epoch and run can be compared.
    pub(crate) run: u64,
    /// Name of its Pilot.
    pub(crate) primary: String,
}

/// A promise: this node takes nothing any more from the primary of this epoch or an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Released {
    pub(crate) epoch: u64,
    /// How much of the primary's writes it has. Unknown when it was started since it got them.
    pub(crate) offset: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    pub(crate) master: bool,
    pub(crate) follows: Option<SocketAddr>,
    /// It has all that whom it follows had, and gets what is new.
    pub(crate) linked: bool,
    pub(crate) offset: Option<u64>,
    pub(crate) record: Option<Record>,
    pub(crate) released: Released,
    /// To succeed the primary of this epoch.
    pub(crate) asked: Option<u64>,
    pub(crate) version: Option<String>,
}

impl View {
    pub(crate) async fn of(at: SocketAddr) -> Result<Self, Error> {
        let (info, settings) = (["INFO", "server", "replication"], ["CONFIG", "GET", SAYS, ASKED]);
        let replies = ask(at, &[&info, &settings]).await?;
        let record = match ask(at, &[&["FCALL_RO", "navigator", "0"]]).await {
            Err(Error::Refused(why)) if why.contains("not found") => None,
            record => read(record?[0].text()),
        };
        Ok(Self { record, ..Self::parse(replies[0].text(), &replies[1]) })
    }

    fn parse(info: &str, settings: &Reply) -> Self {
        let lines = || info.lines().filter_map(|line| line.split_once(':'));
        let field = |key: &str| lines().find(|(name, _)| *name == key).map(|(_, value)| value);
        let number = |key| field(key)?.parse::<u64>().ok();
        let set = |key: &str| match settings {
            Reply::List(all) => all.chunks(2).find(|one| one[0].text() == key)?.get(1),
            _ => None,
        };
        let master = field("role") == Some("master");
        let host: Option<IpAddr> = field("master_host").and_then(|host| host.parse().ok());
        let port = number("master_port").and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| *port != NOWHERE);
        Self {
            master,
            follows: host.zip(port).map(SocketAddr::from),
            linked: port.is_some()
                && field("master_link_status") == Some("up")
                && field("master_sync_in_progress") == Some("0")
                && number("master_last_io_seconds_ago").is_some_and(|ago| ago <= IN_TOUCH),
            // One that was started and has not been linked since counts from 1.
            offset: number(if master { "master_repl_offset" } else { "slave_repl_offset" })
                .filter(|offset| master || *offset > 1),
            record: None,
            released: set(SAYS).and_then(|text| read(text.text())).unwrap_or_default(),
            asked: set(ASKED).and_then(|text| read(text.text())),
            version: field("redis_version").map(str::to_owned),
        }
    }

    /// Is it the primary, as it should be? A master that its own data name otherwise is none.
    pub(crate) fn is_primary(&self, name: &str) -> bool {
        self.master && self.record.as_ref().is_some_and(|record| record.primary == name)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.epoch)
    }
}

impl Record {
    /// Writes it into the data of the master at this address.
    pub(crate) async fn write(&self, at: SocketAddr) -> Result<(), Error> {
        let library = format!(
            "#!lua name=navigator\nredis.register_function{{function_name='navigator', \
             callback=function() return '{}' end, flags={{'no-writes'}}}}",
            written(self)
        );
        // Neither a full memory nor replicas that wait for this record may forbid it.
        let get = ask(at, &[&["CONFIG", "GET", "maxmemory", "min-replicas-to-write"]]).await?;
        let Reply::List(limits) = &get[0] else { return Ok(()) };
        let lift = ["CONFIG", "SET", "maxmemory", "0", "min-replicas-to-write", "0"];
        let restore: Vec<&str> =
            ["CONFIG", "SET"].into_iter().chain(limits.iter().map(Reply::text)).collect();
        ask(at, &[&lift, &["FUNCTION", "LOAD", "REPLACE", &library], &restore]).await.map(drop)
    }
}

/// As it stands in a setting or a function.
pub(crate) fn written(what: &impl Serialize) -> String {
    serde_json::to_string(what).expect("plain fields are JSON")
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// Changes a setting of a running Redis.
pub(crate) async fn set(at: SocketAddr, name: &str, value: &str) -> Result<(), Error> {
    ask(at, &[&["CONFIG", "SET", name, value]]).await.map(drop)
}

/// Lets a Redis follow another, or nobody.
pub(crate) async fn follow(own: SocketAddr, primary: Option<SocketAddr>) -> Result<(), Error> {
    let to = primary.unwrap_or(SocketAddr::new(own.ip(), NOWHERE));
    let (ip, port) = (to.ip().to_string(), to.port().to_string());
    ask(own, &[&["REPLICAOF", &ip, &port]]).await.map(drop)
}
