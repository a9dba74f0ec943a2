//! A Redis' part in the cluster as one look shows it, and what pilots leave there for each other.
//!
//! A function in the data records which node is primary: it is replicated and kept in order with
//! the writes, and no client's FLUSHALL removes it. What a pilot says of its own node, and what the
//! leading pilot asks of that node, stand in two settings of Redis Cluster, which change nothing here.

use std::net::{IpAddr, SocketAddr};

use navigator::pilot::{
    clients::resp::{RespReply, RespServer},
    driver::Error,
    query_answer::UnansweredQuery,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Setting by which a node's pilot says what it released.
pub(crate) const SAYS: &str = "cluster-announce-ip";
/// Setting by which the leading pilot asks the node to succeed the primary of an epoch.
pub(crate) const ASKED: &str = "cluster-announce-hostname";
/// A node without a primary follows this port of its own, where no process listens.
pub(crate) const NOWHERE: u16 = 1;

/// Seconds. A primary sends something to its replicas each second.
const IN_TOUCH: i64 = 5;

/// Names the primary. Ordered by age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Counts the primaries, from 1: no two have the same.
    pub(crate) epoch: u64,
    /// Counts the starts of one primary. Offsets of one epoch and run can be compared.
    pub(crate) run: u64,
    /// Name of the primary's Pilot.
    pub(crate) primary: String,
}

/// A promise: this node takes no writes any more from the primary of this epoch or an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Released {
    pub(crate) epoch: u64,
    /// How much of the primary's writes the node has. Unknown when it was started after it got
    /// them.
    pub(crate) offset: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    pub(crate) master: bool,
    pub(crate) follows: Option<SocketAddr>,
    /// The node has all that its primary had, and gets what is new.
    pub(crate) linked: bool,
    pub(crate) offset: Option<u64>,
    pub(crate) record: Option<Record>,
    pub(crate) released: Released,
    /// The node was asked to succeed the primary of this epoch.
    pub(crate) asked: Option<u64>,
    pub(crate) version: Option<String>,
}

impl View {
    pub(crate) async fn of(at: &RespServer) -> Result<Self, Error> {
        let (info, settings) = (["INFO", "server", "replication"], ["CONFIG", "GET", SAYS, ASKED]);
        let replies = at.send_commands(&[&info, &settings]).await?;
        let record = match at.send_commands(&[&["FCALL_RO", "navigator", "0"]]).await {
            Err(Error::Refused(why)) if why.contains("not found") => None,
            record => Some(recorded(&record?[0])?),
        };
        Ok(Self { record, ..Self::parse(&replies[0], &replies[1])? })
    }

    /// A missing field does not count as an absent one: a Redis that says no role is no replica.
    fn parse(info: &RespReply, settings: &RespReply) -> Result<Self, UnansweredQuery> {
        let info = info.text();
        let lines = || info.lines().filter_map(|line| line.split_once(':'));
        let field = |key: &str| {
            let found = lines().find(|(name, _)| *name == key).map(|(_, value)| value);
            found.ok_or_else(|| UnansweredQuery::new("INFO", format!("says no {key}")))
        };
        let number = |key: &str| {
            field(key)?
                .parse::<i64>()
                .map_err(|error| UnansweredQuery::new("INFO", format!("{key}: {error}")))
        };
        let set = |key: &str| {
            let value = match settings {
                RespReply::List(all) => all.chunks(2).find(|one| one[0].text() == key),
                _ => None,
            };
            let value = value.and_then(|one| one.get(1)).map(RespReply::text);
            value.ok_or_else(|| UnansweredQuery::new("CONFIG GET", format!("says no {key}")))
        };
        let master = match field("role")? {
            "master" => true,
            "slave" => false,
            other => {
                return Err(UnansweredQuery::new("INFO", format!("the role {other:?} is unknown")));
            }
        };
        let (mut follows, mut linked) = (None, false);
        if !master {
            let host: Option<IpAddr> = field("master_host")?.parse().ok();
            let port = u16::try_from(number("master_port")?).ok().filter(|port| *port != NOWHERE);
            follows = host.zip(port).map(SocketAddr::from);
            linked = port.is_some()
                && field("master_link_status")? == "up"
                && field("master_sync_in_progress")? == "0"
                && (0..=IN_TOUCH).contains(&number("master_last_io_seconds_ago")?);
        }
        let offset = number(if master { "master_repl_offset" } else { "slave_repl_offset" })?;
        Ok(Self {
            master,
            follows,
            linked,
            // A replica that was started and not linked since counts from 1.
            offset: u64::try_from(offset).ok().filter(|offset| master || *offset > 1),
            record: None,
            released: read(set(SAYS)?).unwrap_or_default(),
            asked: read(set(ASKED)?),
            version: field("redis_version").ok().map(str::to_owned),
        })
    }

    /// Is the node the primary, as it should be? A master whose own data name another node is none.
    pub(crate) fn is_primary(&self, name: &str) -> bool {
        self.master && self.record.as_ref().is_some_and(|record| record.primary == name)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.epoch)
    }
}

impl Record {
    /// Writes the record into the data of the master at this address.
    pub(crate) async fn write(&self, at: &RespServer) -> Result<(), Error> {
        let library = format!(
            "#!lua name=navigator\nredis.register_function{{function_name='navigator', \
             callback=function() return '{}' end, flags={{'no-writes'}}}}",
            written(self)
        );
        // Neither a full memory nor replicas that wait for this record may forbid it.
        let get =
            at.send_commands(&[&["CONFIG", "GET", "maxmemory", "min-replicas-to-write"]]).await?;
        let RespReply::List(limits) = &get[0] else { return Ok(()) };
        let lift = ["CONFIG", "SET", "maxmemory", "0", "min-replicas-to-write", "0"];
        let restore: Vec<&str> =
            ["CONFIG", "SET"].into_iter().chain(limits.iter().map(RespReply::text)).collect();
        at.send_commands(&[&lift, &["FUNCTION", "LOAD", "REPLACE", &library], &restore])
            .await
            .map(drop)
    }
}

/// Text that is no record is not the absence of one.
fn recorded(reply: &RespReply) -> Result<Record, UnansweredQuery> {
    let unread = || {
        let why = "the function navigator says no record; delete it, and its pilot writes it anew";
        UnansweredQuery::new("FCALL_RO navigator", why)
    };
    read(reply.text()).ok_or_else(unread)
}

/// The text of a record or a promise, as it stands in a function or a setting.
pub(crate) fn written(what: &impl Serialize) -> String {
    serde_json::to_string(what).expect("plain fields are JSON")
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// Changes a setting of a running Redis.
pub(crate) async fn set(at: &RespServer, name: &str, value: &str) -> Result<(), Error> {
    at.send_commands(&[&["CONFIG", "SET", name, value]]).await.map(drop)
}

/// Lets a Redis follow a primary, or none.
pub(crate) async fn follow(own: &RespServer, primary: Option<SocketAddr>) -> Result<(), Error> {
    let to = primary.unwrap_or(SocketAddr::new(own.address.ip(), NOWHERE));
    let (ip, port) = (to.ip().to_string(), to.port().to_string());
    own.send_commands(&[&["REPLICAOF", &ip, &port]]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const REPLICA: &str = "# Server\r\nredis_version:7.0.15\r\n# Replication\r\nrole:slave\r\n\
        master_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:up\r\n\
        master_last_io_seconds_ago:1\r\nmaster_sync_in_progress:0\r\nslave_repl_offset:70\r\n";
    const RECORD: &str = r#"{"epoch":3,"run":1,"primary":"a"}"#;

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn settings() -> String {
        let released = bulk(r#"{"epoch":2,"offset":60}"#);
        format!("*4\r\n{}{released}{}{}", bulk(SAYS), bulk(ASKED), bulk("3"))
    }

    /// Answers `INFO` and `CONFIG GET`, which come together, and `FCALL_RO`; counts the requests.
    async fn serve(info: String, function: String) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, count) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let came = Arc::clone(&count);
        #[expect(clippy::disallowed_methods, reason = "lives as long as the test's runtime")]
        tokio::spawn(async move {
            loop {
                let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 4096];
                let read = stream.read(&mut asked).await.unwrap();
                let is_info = asked[..read].windows(4).any(|part| part == b"INFO");
                came.fetch_add(1, Ordering::Relaxed);
                let answer = if is_info { &info } else { &function };
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        (at, count)
    }

    #[tokio::test]
    async fn a_view_is_what_was_said() {
        let (at, asked) = serve(bulk(REPLICA) + &settings(), bulk(RECORD)).await;
        let view = View::of(&RespServer::without_tls(at)).await.unwrap();
        let record = Record { epoch: 3, run: 1, primary: "a".to_owned() };
        let expected = View {
            master: false,
            follows: "10.0.0.1:6379".parse().ok(),
            linked: true,
            offset: Some(70),
            record: Some(record),
            released: Released { epoch: 2, offset: Some(60) },
            asked: Some(3),
            version: Some("7.0.15".to_owned()),
        };
        assert_eq!((view, asked.load(Ordering::Relaxed)), (expected, 2));
        let none = "-ERR Function not found\r\n".to_owned();
        let (at, _) = serve(bulk(REPLICA) + &settings(), none).await;
        assert_eq!(View::of(&RespServer::without_tls(at)).await.unwrap().record, None);
    }

    /// Each question fails in each way: no missing answer is taken for "none".
    #[tokio::test]
    async fn what_was_not_heard_is_no_view() {
        let heard = bulk(REPLICA) + &settings();
        let without = |key: &str| {
            let lines = REPLICA.split_inclusive("\r\n").filter(|line| !line.starts_with(key));
            (bulk(&lines.collect::<String>()) + &settings(), bulk(RECORD))
        };
        let mut cases = vec![
            (String::new(), bulk(RECORD)),
            ("-LOADING Redis is loading\r\n".to_owned(), bulk(RECORD)),
            (heard[..heard.len() - 9].to_owned(), bulk(RECORD)),
            ("$-1\r\n".to_owned() + &settings(), bulk(RECORD)),
            (bulk(REPLICA) + "*0\r\n", bulk(RECORD)),
            (bulk(REPLICA) + "$-1\r\n", bulk(RECORD)),
            (heard.clone(), String::new()),
            (heard.clone(), "-LOADING Redis is loading\r\n".to_owned()),
            (heard.clone(), "$-1\r\n".to_owned()),
            (heard, bulk("{]")),
        ];
        cases.extend(
            ["role", "master_host", "master_port", "master_link_status", "slave_repl_offset"]
                .map(without),
        );
        for (info, function) in cases {
            let (at, _) = serve(info.clone(), function.clone()).await;
            let view = View::of(&RespServer::without_tls(at)).await;
            assert!(view.is_err(), "{info:?} {function:?}: {view:?}");
        }
    }
}
