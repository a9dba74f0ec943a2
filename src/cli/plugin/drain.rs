//! `kubectl navigator drain`: asks the nodes of databases on a machine to leave it, and follows them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    args::{CommonArgs, DrainArgs, DryRun},
    output::{print, say},
};
use crate::{
    error::exit,
    plugin::{
        drain::{MachineMember, MachineState},
        error::{Error, said},
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
pub(super) async fn begin(
    common: &CommonArgs,
    session: &PluginSession,
    args: &DrainArgs,
) -> Result<bool, Error> {
    let drain = MachineDrain::new(common, session, args);
    let machine = session.machine(&args.machine).await?;
    if args.cancel {
        return drain.cancel(&machine).await.map(|()| false);
    }
    drain.cordon(&machine).await?;
    let members = session.members_on(drain.namespace, drain.machine).await?;
    if members.is_empty() {
        print(&format!("no node of a database is on {}\n", drain.machine))?;
        return Ok(false);
    }
    for member in &members {
        drain.ask(member).await?;
        let progress = if drain.dry { "would be asked".to_owned() } else { member.progress() };
        print(&format!("{}: {progress}\n", member.named()))?;
    }
    Ok(true)
}

/// Waits until all nodes have left the machine.
pub(super) async fn follow(
    common: &CommonArgs,
    session: &PluginSession,
    args: &DrainArgs,
) -> Result<u8, Error> {
    let drain = MachineDrain::new(common, session, args);
    let seconds = args.deadline;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut left = LastSeen::default();
    let followed = tokio::select! {
        done = tokio::time::timeout_at(deadline, drain.until_empty(&mut left)) => done,
        _ = tokio::signal::ctrl_c() => {
            let stand = "interrupted; the requests stand (--cancel takes them back)";
            return Err(Error::Held(stand.to_owned()));
        }
    };
    let Ok(done) = followed else {
        let what = format!("{} is not empty after {seconds} s (--deadline)", drain.machine);
        return Err(Error::Held(left.holds(&what)));
    };
    done?;
    print(&format!("no node of a database is on {}\n", drain.machine))?;
    Ok(exit::OK)
}

/// What was seen last of the nodes that are still there.
#[derive(Default)]
struct LastSeen {
    progress: BTreeMap<String, String>,
    trouble: Option<String>,
}

impl LastSeen {
    fn holds(&self, what: &str) -> String {
        let nodes = self.progress.iter().map(|(node, progress)| format!("\n{node}: {progress}"));
        let trouble = self.trouble.iter().map(|trouble| format!("\n{trouble}"));
        nodes.chain(trouble).fold(what.to_owned(), |text, line| text + &line)
    }

    /// Says what is new.
    fn see(&mut self, members: &[MachineMember]) {
        let now: BTreeMap<_, _> =
            members.iter().map(|member| (member.named(), member.progress())).collect();
        for node in self.progress.keys().filter(|node| !now.contains_key(*node)) {
            say(&format!("{node}: has left"));
        }
        for (node, progress) in &now {
            if self.progress.get(node) != Some(progress) {
                say(&format!("{node}: {progress}"));
            }
        }
        (self.progress, self.trouble) = (now, None);
    }
}

impl<'a> MachineDrain<'a> {
    fn new(common: &'a CommonArgs, session: &'a PluginSession, args: &'a DrainArgs) -> Self {
        let namespace = common.namespace.as_deref();
        let dry = args.dry_run == DryRun::Server;
        Self { session, namespace, machine: &args.machine, dry }
    }

    fn dryly(&self) -> &'static str {
        if self.dry { " (server dry run)" } else { "" }
    }

    async fn cordon(&self, machine: &MachineState) -> Result<(), Error> {
        if machine.cordoned {
            return print(&format!("node/{} is cordoned already\n", machine.name));
        }
        self.session.cordon(&machine.name, true, self.dry).await?;
        print(&format!("node/{} cordoned{}\n", machine.name, self.dryly()))
    }

    async fn ask(&self, member: &MachineMember) -> Result<(), Error> {
        if !member.is_asked() && !member.ends {
            self.session.ask_to_leave(member, self.machine, self.dry).await?;
        }
        Ok(())
    }

    /// Looks again and again, and asks those that came meanwhile. The API may be away for a moment.
    async fn until_empty(&self, left: &mut LastSeen) -> Result<(), Error> {
        loop {
            match self.look(left).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Error::Server(error)) if is_passing(&error) => {
                    left.trouble = Some(said(&error));
                }
                Err(error) => return Err(error),
            }
            sleep(LOOK).await;
        }
    }

    async fn look(&self, left: &mut LastSeen) -> Result<bool, Error> {
        let members = self.session.members_on(self.namespace, self.machine).await?;
        for member in &members {
            self.ask(member).await?;
        }
        left.see(&members);
        Ok(members.is_empty())
    }

    /// Takes requests back, and uncordons what the plugin cordoned. A request that was carried out
    /// stays where the machine remains cordoned: its node is known by it to wait there.
    async fn cancel(&self, machine: &MachineState) -> Result<(), Error> {
        let frees = machine.cordoned && machine.by_us;
        if frees {
            self.session.cordon(self.machine, false, self.dry).await?;
            print(&format!("node/{} uncordoned{}\n", self.machine, self.dryly()))?;
        }
        let open = frees || !machine.cordoned;
        let asked = self.session.asked_from(self.namespace, self.machine, open).await?;
        for pilot in &asked {
            let changed = self.session.ask_to_stay(pilot, self.dry).await?;
            print(&format!("{} is asked no more{}\n", changed.reference, self.dryly()))?;
        }
        if asked.is_empty() && !frees {
            print(&format!("no node is asked to leave {}\n", self.machine))?;
        }
        if !open {
            say(&format!(
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
