//! The client that pilots speak to Cassandra with: it logs in, makes a role of an awkward name, and
//! reads what the tables about roles say.

use std::{net::IpAddr, time::Duration};

use navigator::databases::cassandra::{
    names::port,
    pilot::cql::{
        Consistency, CqlClient, CqlError, CqlLogin, CqlStatement, CqlTarget, quote_name, quote_text,
    },
};
use serde_json::json;

use super::{
    VERSION,
    ring::{Ring, SOON},
};
use crate::{report::Told, support::wait::until};

/// What ends a name or a text too early, if it can. There is no `'` in the name: Cassandra makes such
/// a role, and then writes its own statement for `GRANT role TO it` without doubling the quote (5.0.6).
const NAME: &str = "A \"role\"; --";
const PASSWORD: &str = "pass'; DROP ROLE cassandra; --";
const BAD_CREDENTIALS: Option<i32> = Some(0x0100);
const UNAUTHORIZED: Option<i32> = Some(0x2100);

pub(crate) async fn roles_are_made_and_read_by_the_pilots_client(told: &Told) {
    for (version, net) in [(VERSION, 50), ("4.1.10", 51)] {
        let spec = json!({"config": {
            "authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer",
        }});
        let mut ring = Ring::new(version, net, spec).await;
        ring.grow(1).await;
        let address = ring.address(0);
        let mut owner = until("the first role is there", SOON, async || {
            log_in(address, "cassandra", "cassandra").await.map_err(|error| error.to_string())
        })
        .await;
        assert!(owner.asked_for_login());
        let stranger = CqlClient::connect(&target(address, None)).await.err();
        assert!(matches!(stranger, Some(CqlError::LoginNeeded(_))), "{stranger:?}");
        let wrong = log_in(address, "cassandra", "wrong").await.err();
        assert_eq!(wrong.and_then(|error| error.code()), BAD_CREDENTIALS);
        told.claim(format!("{version}: a login is taken, none and a wrong one are not"));

        makes_a_role(&mut owner, address).await;
        told.claim(format!(
            "{version}: a role whose name and password have quotes is made as such"
        ));
        reads_the_tables(&mut owner).await;
        told.claim(format!(
            "{version}: texts, booleans, sets, maps and uuids of the tables are read"
        ));
    }
}

fn target(address: IpAddr, login: Option<(&str, &str)>) -> CqlTarget {
    let login = login
        .map(|(name, password)| CqlLogin { name: name.to_owned(), password: password.to_owned() });
    CqlTarget {
        address: (address, port::CQL).into(),
        tls: None,
        login,
        timeout: Duration::from_secs(30),
    }
}

async fn log_in(address: IpAddr, name: &str, password: &str) -> Result<CqlClient, CqlError> {
    CqlClient::connect(&target(address, Some((name, password)))).await
}

fn statement(text: &str) -> CqlStatement {
    CqlStatement::new(text, Consistency::One)
}

async fn makes_a_role(owner: &mut CqlClient, address: IpAddr) {
    let (name, password) = (quote_name(NAME), quote_text(PASSWORD));
    for text in [
        "CREATE ROLE readers".to_owned(),
        format!("CREATE ROLE {name} WITH PASSWORD = {password} AND LOGIN = true"),
        format!("GRANT readers TO {name}"),
    ] {
        assert!(owner.run_statement(&statement(&text)).await.unwrap().is_empty());
    }
    let listed = owner.run_statement(&statement("LIST ROLES")).await.unwrap();
    let names: Vec<_> = listed.iter().filter_map(|row| row.text("role")).collect();
    assert!(names.contains(&NAME) && names.contains(&"cassandra"), "{names:?}");

    let mut role = log_in(address, NAME, PASSWORD).await.unwrap();
    let asked = statement("SELECT role FROM system_auth.roles");
    let refused = role.run_statement(&asked).await.unwrap_err();
    assert_eq!(refused.code(), UNAUTHORIZED, "{refused}");
    let allowed =
        role.run_statement(&statement("SELECT cluster_name FROM system.local")).await.unwrap();
    assert_eq!(allowed.iter().next().unwrap().text("cluster_name"), Some("demo"));
}

async fn reads_the_tables(owner: &mut CqlClient) {
    let asked = statement("SELECT * FROM system_auth.roles WHERE role = ?").bind_text(NAME);
    let rows = owner.run_statement(&asked).await.unwrap();
    let rows: Vec<_> = rows.iter().collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].boolean("can_login"), Some(true));
    assert_eq!(rows[0].boolean("is_superuser"), Some(false));
    assert_eq!(rows[0].text_list("member_of"), ["readers"]);
    assert!(rows[0].text("salted_hash").unwrap().starts_with("$2a$10$"));
    let absent = statement("SELECT * FROM system_auth.roles WHERE role = ?").bind_text("' OR ''='");
    assert!(owner.run_statement(&absent).await.unwrap().is_empty());

    let insert = "INSERT INTO system_auth.roles (role, can_login, is_superuser) VALUES (?, ?, ?)";
    let insert = statement(insert).bind_text("by-row").bind_boolean(true).bind_boolean(false);
    owner.run_statement(&insert).await.unwrap();
    let asked =
        statement("SELECT can_login FROM system_auth.roles WHERE role = ?").bind_text("by-row");
    let rows = owner.run_statement(&asked).await.unwrap();
    assert_eq!(rows.iter().next().unwrap().boolean("can_login"), Some(true));

    let asked = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows = owner.run_statement(&statement(asked).bind_text("system_auth")).await.unwrap();
    let replication = rows.iter().next().unwrap().text_map("replication");
    assert!(replication.contains(&("replication_factor", "1")), "{replication:?}");
    let rows = owner.run_statement(&statement("SELECT host_id FROM system.local")).await.unwrap();
    assert!(rows.iter().next().unwrap().uuid("host_id").is_some());
}
