//! `kubectl navigator drain`: asks the nodes of databases on a machine to leave it, and follows them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    args::{CommonArgs, DrainArgs, DryRun},
    output::{print_message, print_output},
};
use crate::{
    error::exit,
    plugin::{
        drain::{MachineMember, MachineState},
        error::{Error, server_message},
        lookup::PluginSession,
    },
};

/// Pause between two looks at the nodes that are to leave.
const LOOK: Duration = Duration::from_secs(1);

/// Who is asked, and how.
struct MachineDrain<'a> {
    session: &'a PluginSession,
    /// The namespace whose nodes are meant; all where there is none.
    namespace: Option<&'a str>,
    machine: &'a str,
    dry: bool,
}

/// Asks the nodes on a machine to leave, or takes that back. Returns whether there is anything to wait
/// for.
pub(super) async fn request_drain(
    common: &CommonArgs,
    session: &PluginSession,
    args: &DrainArgs,
) -> Result<bool, Error> {
    let drain = MachineDrain::new(common, session, args);
    let machine = session.find_machine(&args.machine).await?;
    if args.cancel {
        return drain.cancel_drain(&machine).await.map(|()| false);
    }
    drain.cordon_machine(&machine).await?;
    let members = session.find_members(drain.namespace, drain.machine).await?;
    if members.is_empty() {
        print_output(&format!("no node of a database is on {}\n", drain.machine))?;
        return Ok(false);
    }
    for member in &members {
        drain.request_eviction(member).await?;
        let progress = if drain.dry { "would be asked".to_owned() } else { member.progress() };
        print_output(&format!("{}: {progress}\n", member.display_name()))?;
    }
    Ok(true)
}

/// Waits until all nodes have left the machine.
pub(super) async fn wait_for_drain(
    common: &CommonArgs,
    session: &PluginSession,
    args: &DrainArgs,
) -> Result<u8, Error> {
    let drain = MachineDrain::new(common, session, args);
    let seconds = args.deadline;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut last_seen = LastSeen::default();
    let wait_result = tokio::select! {
        done = tokio::time::timeout_at(deadline, drain.until_empty(&mut last_seen)) => done,
        _ = tokio::signal::ctrl_c() => {
            let stand = "interrupted; the requests stand (--cancel takes them back)";
            return Err(Error::Held(stand.to_owned()));
        }
    };
    let Ok(result) = wait_result else {
        let heading = format!("{} is not empty after {seconds} s (--deadline)", drain.machine);
        return Err(Error::Held(last_seen.describe_remaining(&heading)));
    };
    result?;
    print_output(&format!("no node of a database is on {}\n", drain.machine))?;
    Ok(exit::OK)
}

/// What was seen last of the nodes that are still there.
#[derive(Default)]
struct LastSeen {
    progress: BTreeMap<String, String>,
    trouble: Option<String>,
}

impl LastSeen {
    fn describe_remaining(&self, heading: &str) -> String {
        let nodes = self.progress.iter().map(|(node, progress)| format!("\n{node}: {progress}"));
        let trouble = self.trouble.iter().map(|trouble| format!("\n{trouble}"));
        nodes.chain(trouble).fold(heading.to_owned(), |text, line| text + &line)
    }

    /// Says what is new.
    fn update(&mut self, members: &[MachineMember]) {
        let current_progress: BTreeMap<_, _> =
            members.iter().map(|member| (member.display_name(), member.progress())).collect();
        for node in self.progress.keys().filter(|node| !current_progress.contains_key(*node)) {
            print_message(&format!("{node}: has left"));
        }
        for (node, progress) in &current_progress {
            if self.progress.get(node) != Some(progress) {
                print_message(&format!("{node}: {progress}"));
            }
        }
        (self.progress, self.trouble) = (current_progress, None);
    }
}

impl<'a> MachineDrain<'a> {
    fn new(common: &'a CommonArgs, session: &'a PluginSession, args: &'a DrainArgs) -> Self {
        let namespace = common.namespace.as_deref();
        let is_dry = args.dry_run == DryRun::Server;
        Self { session, namespace, machine: &args.machine, dry: is_dry }
    }

    fn dry_run_suffix(&self) -> &'static str {
        if self.dry { " (server dry run)" } else { "" }
    }

    async fn cordon_machine(&self, machine: &MachineState) -> Result<(), Error> {
        if machine.cordoned {
            return print_output(&format!("node/{} is cordoned already\n", machine.name));
        }
        self.session.set_cordoned(&machine.name, true, self.dry).await?;
        print_output(&format!("node/{} cordoned{}\n", machine.name, self.dry_run_suffix()))
    }

    async fn request_eviction(&self, member: &MachineMember) -> Result<(), Error> {
        if !member.has_request() && !member.ends {
            self.session.request_eviction(member, self.machine, self.dry).await?;
        }
        Ok(())
    }

    /// Looks again and again, and asks those that came meanwhile. The API may be away for a moment.
    async fn until_empty(&self, last_seen: &mut LastSeen) -> Result<(), Error> {
        loop {
            match self.poll_members(last_seen).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Error::Server(error)) if is_passing(&error) => {
                    last_seen.trouble = Some(server_message(&error));
                }
                Err(error) => return Err(error),
            }
            sleep(LOOK).await;
        }
    }

    async fn poll_members(&self, last_seen: &mut LastSeen) -> Result<bool, Error> {
        let members = self.session.find_members(self.namespace, self.machine).await?;
        for member in &members {
            self.request_eviction(member).await?;
        }
        last_seen.update(&members);
        Ok(members.is_empty())
    }

    /// Takes requests back, and uncordons what the plugin cordoned. A request that was carried out
    /// stays where the machine remains cordoned: its node is known by it to wait there.
    async fn cancel_drain(&self, machine: &MachineState) -> Result<(), Error> {
        let needs_uncordon = machine.cordoned && machine.by_us;
        if needs_uncordon {
            self.session.set_cordoned(self.machine, false, self.dry).await?;
            print_output(&format!("node/{} uncordoned{}\n", self.machine, self.dry_run_suffix()))?;
        }
        let is_schedulable = needs_uncordon || !machine.cordoned;
        let requested_pilots =
            self.session.find_requests(self.namespace, self.machine, is_schedulable).await?;
        for pilot in &requested_pilots {
            let result = self.session.cancel_eviction(pilot, self.dry).await?;
            print_output(&format!(
                "{} is asked no more{}\n",
                result.reference,
                self.dry_run_suffix()
            ))?;
        }
        if requested_pilots.is_empty() && !needs_uncordon {
            print_output(&format!("no node is asked to leave {}\n", self.machine))?;
        }
        if !is_schedulable {
            print_message(&format!(
                "{0} was cordoned by another hand and stays so: kubectl uncordon {0}",
                self.machine
            ));
        }
        Ok(())
    }
}

/// May the same request succeed a moment later?
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => !(400..500).contains(&status.code) || status.code == 429,
        _ => true,
    }
}
