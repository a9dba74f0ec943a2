use std::{os::unix::fs::PermissionsExt, sync::Arc};

use super::*;
use crate::{
    databases::{
        cassandra::pilot::{
            roles::is_kept,
            tests::{driver, node_in},
        },
        testing::serve,
    },
    pilot::clients::jolokia,
};

fn row(name: &str, hash: &str, member_of: &[&str]) -> RoleRow {
    RoleRow {
        name: name.to_owned(),
        can_login: true,
        superuser: false,
        hash: Some(hash.to_owned()),
        member_of: member_of.iter().map(|group| (*group).to_owned()).collect(),
    }
}

fn app(hash: &str) -> RoleRow {
    row("app", hash, &["navigator_users_a"])
}

fn names(record: &PasswordRecord) -> Vec<String> {
    record.changed_hashes().0.into_keys().collect()
}

#[test]
fn a_login_is_outdated_when_its_password_has_changed_and_for_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let record = PasswordRecord::new(place.path());
    let note = |rows: &[RoleRow]| record.record_rows(rows, is_kept).unwrap();
    note(&[app("1"), row("navigator_a", "1", &[]), row("dba", "1", &[])]);
    assert_eq!(names(&record), [""; 0], "the first look");
    let closed = RoleRow { can_login: false, superuser: true, ..app("1") };
    note(&[RoleRow { member_of: ["navigator_users_a".into(), "r".into()].into(), ..closed }]);
    assert_eq!(names(&record), [""; 0], "all but the password");
    note(&[row("dba", "2", &[]), row("new", "2", &["navigator_users_a"])]);
    assert_eq!(names(&record), [""; 0], "a person's role, and a user that is new");
    note(&[app("2")]);
    assert_eq!(names(&record), ["app"]);
    note(&[app("1")]);
    assert_eq!(names(&record), ["app"], "who came in with the one between is still there");
    note(&[row("navigator_a", "2", &[])]);
    assert_eq!(names(&record), ["app", "navigator_a"]);
    // A user of another cluster of the ring is let in by this node, too.
    note(&[row("theirs", "1", &["navigator_users_b"])]);
    note(&[row("theirs", "2", &["navigator_users_b"])]);
    assert_eq!(names(&record), ["app", "navigator_a", "theirs"]);
    // A role of people's that becomes a user has another password from then on.
    record.record_rows(&[row("dba", "3", &[])], |row| row.name == "dba").unwrap();
    assert_eq!(names(&record), ["app", "dba", "navigator_a", "theirs"]);
}

#[test]
fn a_password_that_changes_while_connections_are_closed_has_them_closed_once_more() {
    let place = tempfile::tempdir().unwrap();
    let record = PasswordRecord::new(place.path());
    let note = |hash| record.record_rows(&[app(hash)], is_kept).unwrap();
    note("1");
    note("2");
    let closed = record.changed_hashes().0;
    note("3");
    record.update(|seen| seen.remove_closed(&closed)).unwrap();
    assert_eq!(names(&record), ["app"]);
    let closed = record.changed_hashes().0;
    record.update(|seen| seen.remove_closed(&closed)).unwrap();
    note("3");
    assert_eq!(names(&record), [""; 0]);
}

#[test]
fn the_next_program_goes_on_and_the_next_run_of_the_database_begins_again() {
    let place = tempfile::tempdir().unwrap();
    let program = || PasswordRecord::new(place.path());
    let first = program();
    first.record_rows(&[app("1")], is_kept).unwrap();
    program().record_rows(&[app("hash-2")], is_kept).unwrap();
    assert_eq!(names(&program()), ["app"]);
    let about = fs::metadata(place.path().join(FILE)).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let last = program();
    assert_eq!(names(&last), ["app"]);
    assert!(!format!("{last:?}").contains("hash-2"));
    last.clear().unwrap();
    last.clear().unwrap();
    assert_eq!((names(&last), names(&program())), (vec![], vec![]));
    last.record_rows(&[app("3")], is_kept).unwrap();
    assert_eq!(names(&last), [""; 0]);
}

#[test]
fn nodes_of_a_ring_take_turns_and_the_last_of_many_waits_ten_minutes_at_most() {
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    let ring = |nodes: &[(&str, &[u8])]| {
        let of = |(name, nodes): &(&str, &[u8])| {
            ((*name).to_owned(), nodes.iter().copied().map(address).collect())
        };
        nodes.iter().map(of).collect::<LiveNodes>()
    };
    let live = ring(&[("eu", &[1, 3]), ("us", &[2])]);
    let turns = [1, 2, 3].map(|last| restart_delay(address(last), &live).as_secs());
    assert_eq!(turns, [0, 20, 40]);
    assert_eq!(restart_delay(address(1), &LiveNodes::new()), Duration::ZERO);
    let all: Vec<u8> = (1..=200).collect();
    let last = restart_delay(address(200), &ring(&[("eu", &all)]));
    assert_eq!(last, Duration::from_secs(597));
}

/// A node whose management agent is scripted.
struct Stage {
    driver: CassandraDriver,
    node: DatabaseNode,
    access: NodeAccess,
    agent: Arc<Mutex<Agent>>,
    _place: tempfile::TempDir,
}

struct Agent {
    mode: &'static str,
    /// Users that are connected.
    users: Vec<&'static str>,
    /// An operation that the database refuses.
    refuses: &'static str,
    /// Operations that it was asked for.
    ran: Vec<String>,
}

impl Agent {
    fn part(&mut self, part: &Value) -> Value {
        let Some(operation) = part["operation"].as_str() else {
            let connection = |(port, user): (usize, &&str)| json!({"address": format!("/10.0.0.9:{port}"), "user": user, "ssl": "true"});
            let all: Value = self.users.iter().enumerate().map(connection).collect();
            return json!({"status": 200, "value": {"OperationMode": self.mode, "Value": all}});
        };
        self.ran.push(operation.to_owned());
        if operation == self.refuses {
            return json!({"status": 500, "error": "scripted"});
        }
        if operation == "stopNativeTransport()" {
            self.users.clear();
        }
        json!({"status": 200, "value": null})
    }
}

impl Stage {
    /// Clients of these names are connected as the password of `app` changes.
    async fn set(users: &[&'static str]) -> Self {
        let agent = Arc::new(Mutex::new(Agent {
            mode: "NORMAL",
            users: users.to_vec(),
            refuses: "",
            ran: Vec::new(),
        }));
        let scripted = Arc::clone(&agent);
        let answer = move |_: &str, _: &str, body: &axum::body::Bytes| {
            let request: Value = serde_json::from_slice(body).unwrap();
            let mut agent = scripted.lock().unwrap();
            Ok(match &request {
                Value::Array(parts) => parts.iter().map(|part| agent.part(part)).collect(),
                part => agent.part(part),
            })
        };
        let address = serve(jolokia::PORT, Box::new(answer)).await;
        let place = tempfile::tempdir().unwrap();
        let node = DatabaseNode { address, ..node_in(place.path()) };
        fs::create_dir_all(&node.config).unwrap();
        let way = format!("host={address}\npassword=p\n");
        fs::write(node.config.join(jolokia::SETTINGS), way).unwrap();
        let mut driver = driver(&node);
        driver.passwords.login = Duration::ZERO;
        let access = NodeAccess {
            address,
            internode: true,
            client: true,
            serves_both: false,
            asks_passwords: true,
            founding: false,
        };
        let stage = Self { driver, node, access, agent, _place: place };
        stage.note("1");
        assert_eq!(stage.close().await, Ok(()));
        assert_eq!(stage.ran(), [""; 0], "at the first look");
        stage.note("2");
        stage
    }

    fn note(&self, hash: &str) {
        self.driver.passwords.record_rows(&[app(hash)], is_kept).unwrap();
    }

    async fn close(&self) -> Result<(), String> {
        let closed = self.driver.close_outdated(&self.node, &self.access).await;
        closed.map_err(|error| match error {
            // Anything else would count as a refusal of the users, or as silence.
            Error::NotYet(why) => why,
            other => panic!("{other:?}"),
        })
    }

    /// Returns what ran since the last call.
    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.agent.lock().unwrap().ran)
    }
}

const FORGET: &str = "invalidate()";

#[tokio::test]
async fn the_native_transport_is_restarted_once_where_a_login_is_connected_whose_password_changed()
{
    let stage = Stage::set(&["other", "app"]).await;
    assert_eq!(stage.close().await, Ok(()));
    assert_eq!(stage.ran(), [FORGET, RESTART[0], RESTART[1]]);
    // With its present password it may be there.
    stage.agent.lock().unwrap().users = vec!["app"];
    stage.note("2");
    assert_eq!((stage.close().await, stage.ran()), (Ok(()), vec![]));
    stage.note("3");
    assert_eq!(stage.close().await, Ok(()));
    assert_eq!(stage.ran().len(), 3);
}

#[tokio::test]
async fn connections_of_others_stay_where_that_login_is_not_connected() {
    let stage = Stage::set(&["other", "undefined"]).await;
    assert_eq!((stage.close().await, stage.ran()), (Ok(()), vec![FORGET.to_owned()]));
    stage.agent.lock().unwrap().users.push("app");
    assert_eq!((stage.close().await, stage.ran()), (Ok(()), vec![]), "it came later");
}

#[tokio::test]
async fn what_was_not_restarted_is_tried_again_and_told() {
    let stage = Stage::set(&["app"]).await;
    let refuse = |operation| stage.agent.lock().unwrap().refuses = operation;
    refuse(FORGET);
    assert!(stage.close().await.unwrap_err().contains("scripted"));
    assert_eq!(stage.ran(), [FORGET], "somebody could log in with the former password");
    refuse(RESTART[0]);
    assert!(stage.close().await.unwrap_err().contains("scripted"));
    assert_eq!(stage.ran(), [FORGET, RESTART[0], RESTART[1]]);
    refuse("");
    stage.agent.lock().unwrap().mode = "LEAVING";
    assert!(stage.close().await.unwrap_err().contains("while the node is LEAVING"));
    assert_eq!(stage.ran(), [FORGET], "it would not start again");
    stage.agent.lock().unwrap().mode = "NORMAL";
    assert_eq!(stage.close().await, Ok(()));
    assert_eq!(stage.ran(), [FORGET, RESTART[0], RESTART[1]]);
}

#[tokio::test]
async fn a_native_transport_that_was_not_started_again_is_started_also_by_the_next_program() {
    let stage = Stage::set(&["app"]).await;
    let finish = async |driver: &CassandraDriver| {
        driver.finish_restart().await.map_err(|error| error.to_string())
    };
    assert_eq!((finish(&stage.driver).await, stage.ran()), (Ok(()), vec![]), "it was not stopped");
    let refuse = |operation| stage.agent.lock().unwrap().refuses = operation;
    refuse(RESTART[1]);
    assert!(stage.close().await.unwrap_err().contains("scripted"));
    stage.ran();
    let next = driver(&stage.node);
    assert!(finish(&next).await.unwrap_err().contains("does not start: scripted"));
    refuse("");
    assert_eq!(finish(&next).await, Ok(()));
    assert_eq!(stage.ran(), [RESTART[1], RESTART[1]]);
    assert_eq!((finish(&next).await, stage.ran()), (Ok(()), vec![]));
}

#[tokio::test]
async fn a_node_waits_for_its_turn_unless_it_has_nothing_to_close() {
    let stage = Stage::set(&["app"]).await;
    let first = IpAddr::from([127, 0, 0, 1]);
    let live = LiveNodes::from([("eu".to_owned(), [first, stage.node.address].into())]);
    stage.driver.driver_state().live = live;
    let why = stage.close().await.unwrap_err();
    assert!(why.contains("connections of app") && why.contains("closed in 20 s"), "{why}");
    assert_eq!(stage.ran(), [FORGET]);
    stage.driver.passwords.lock_passwords().since = Instant::now().checked_sub(TURN);
    assert_eq!(stage.close().await, Ok(()));
    assert_eq!(stage.ran(), [FORGET, RESTART[0], RESTART[1]]);
    stage.note("3");
    assert_eq!((stage.close().await, stage.ran()), (Ok(()), vec![FORGET.to_owned()]));
}

#[tokio::test]
async fn a_node_that_asks_for_no_password_is_left_alone() {
    let mut stage = Stage::set(&["app"]).await;
    stage.access.asks_passwords = false;
    assert_eq!((stage.close().await, stage.ran()), (Ok(()), vec![]));
}

#[test]
fn the_pilots_own_connection_is_none_to_close() {
    let all = [
        json!({"address": "/127.0.0.1:33102", "user": "navigator_a"}),
        json!({"address": "/10.0.0.7:41214", "user": "app"}),
    ];
    let changed = ["navigator_a", "app"].map(|name| (name.to_owned(), "2".to_owned())).into();
    let own = "127.0.0.1:33102".parse().ok();
    assert_eq!(connected_users(&all, &changed, own), ["app".to_owned()].into());
    assert_eq!(connected_users(&all, &changed, None).len(), 2);
}
