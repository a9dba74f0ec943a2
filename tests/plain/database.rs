//! The database of this test: a script that notes down its signals, and what pilots know of it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use navigator::{
    api::database_names::DatabaseNames,
    engine::exit_explanation::ExitExplanation,
    pilot::{
        database::DrivenDatabase,
        driver::{
            DatabaseNode, DecommissionState, Driver, Error, FailedCheck, NodeObservation,
            ProcessSpec, ReplicationRole, StopPlan,
        },
    },
};
use nix::libc;

/// The script has no handler for QUIT, as many a program, and so ends by it. On USR1 it writes the
/// content of the file `say`.
const SCRIPT: &str = r#"
    my ($noted, $say) = @ARGV;
    open(my $notes, ">>", $noted) or die; $notes->autoflush;
    $SIG{INT} = sub { print $notes "int\n" };
    $SIG{CONT} = sub { print $notes "cont\n" };
    $SIG{TERM} = sub { print $notes "term\n"; exit 7 };
    $SIG{USR1} = sub {
        open(my $file, "<:raw", $say) or die; local $/; my $words = <$file>;
        substr($words, 0, syswrite(STDOUT, $words) // 0) = "" while length $words;
        print $notes "said\n";
    };
    print $notes "start\n";
    sleep 1 while 1;
"#;

const STOP: StopPlan = StopPlan {
    signal: libc::SIGINT,
    then: &[(Duration::from_secs(1), libc::SIGTERM)],
    success: &[7],
    ..StopPlan::DEFAULT
};

const NAMES: DatabaseNames = DatabaseNames {
    kind: "PlainCluster",
    plural: "plainclusters",
    singular: "plaincluster",
    short_names: &[],
    word: "plain",
    title: "Plain",
    prefix: "plain",
    container: "plain",
    data_volume: "plain-data",
    data_dir: "/var/lib/plain",
    cluster_label: "navigator.jetstack.io/plain-cluster-name",
    pool_label: "navigator.jetstack.io/plain-node-pool-name",
    predicates: &[],
    ports: &[],
    leader_lease: |cluster| format!("plain-{cluster}-leaderelection"),
};

pub(crate) const DATABASE: DrivenDatabase = DrivenDatabase {
    names: &NAMES,
    home_variable: "PLAIN_HOME",
    home: "/usr",
    program: "bin/perl",
    started: "PlainStarted",
    orders_by_time: false,
    ports: &[],
    joins_elsewhere: |_| false,
    has_data: |_| false,
    preparation: None,
    conditions: &[],
    gauges: &[],
    agents: &[],
    installed: |_| None,
    java: None,
    make: |_, data, _| Arc::new(Plain { place: data.parent().map(Path::to_owned).unwrap() }),
};

struct Plain {
    /// Parent of its data directory.
    place: PathBuf,
}

impl Driver for Plain {
    fn preflight<'a>(&'a self, _node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async { Vec::new() })
    }

    fn validate<'a>(&'a self, _node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn configure<'a>(
        &'a self,
        _node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<ProcessSpec, Error>> {
        let [notes, say] = ["notes", "say"].map(|name| self.place.join(name).display().to_string());
        Box::pin(async {
            Ok(ProcessSpec {
                program: "perl".into(),
                args: vec!["-e".to_owned(), SCRIPT.to_owned(), notes, say],
                ..ProcessSpec::default()
            })
        })
    }

    fn refresh<'a>(&'a self, _node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn observe(&self) -> BoxFuture<'_, Result<NodeObservation, Error>> {
        Box::pin(async {
            if self.place.join("mute").exists() {
                return Err(Error::Unreachable { source: "it is mute".into() });
            }
            let begun = self.place.join("notes").exists();
            let role = Some(ReplicationRole::Replica);
            Ok(NodeObservation { alive: begun, serving: begun, role, ..NodeObservation::default() })
        })
    }

    fn decommission<'a>(
        &'a self,
        _node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<DecommissionState, Error>> {
        Box::pin(async { Ok(DecommissionState::Refused("it is the only one".to_owned())) })
    }

    fn cancel_decommission<'a>(
        &'a self,
        _node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn stop_plan(&self) -> StopPlan {
        STOP
    }

    fn explain_exit(&self, _code: i32, _log_tail: &[String]) -> Option<ExitExplanation> {
        None
    }
}
