//! Keeps the security of a running database true, as its Pilot's spec changes.

use tokio::time::sleep;

use super::{RunnerContext, RunnerMessage};
use crate::pilot::{kube::intent::IntentReceiver, security::SecurityKeeper};

/// Has the keeper take turn after turn, for as long as the process runs.
pub(super) async fn keep_security(ctx: RunnerContext, pid: i32, mut intent: IntentReceiver) {
    let RunnerContext { security, driver, volume, .. } = ctx.clone();
    let mut keeper = SecurityKeeper::new(security, driver, volume);
    loop {
        let pilot = intent.borrow_and_update().as_ref().map(|snapshot| snapshot.pilot.clone());
        let node = pilot.map(|pilot| ctx.build_node(&pilot, &[], false));
        let pause = match &node {
            Some(node) => keeper.reconcile(node).await,
            None => None,
        };
        let pause = match pause {
            Some((report, pause)) => {
                ctx.send_message(RunnerMessage::Security { pid, report: Box::new(report) }).await;
                Some(pause)
            }
            // Nothing is to be secured, until the spec says otherwise.
            None => None,
        };
        let rest = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = rest => {}
            changed = intent.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
