//! Has a running database forget the nodes that `spec.forget` of its Pilot lists.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{RunnerContext, RunnerMessage};
use crate::{
    api::v1beta1::{ForgetPhase, ForgottenNode},
    error::chain,
    pilot::{
        driver::{self, ForgetState},
        kube::intent,
    },
};

/// Pause between two looks at the list, and at what the database does.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the database may take to answer.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn forget_lost(ctx: RunnerContext, intent: intent::IntentReceiver) {
    let mut forgotten_nodes: BTreeMap<String, ForgottenNode> = BTreeMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(pilot) = intent.borrow().as_ref().map(|intent| intent.pilot.clone()) else {
            continue;
        };
        let listed_ids = &pilot.spec.forget;
        let old_nodes = forgotten_nodes.clone();
        forgotten_nodes.retain(|id, _| listed_ids.contains(id));
        for id in listed_ids {
            let is_forgotten =
                forgotten_nodes.get(id).is_some_and(|entry| entry.phase == ForgetPhase::Forgotten);
            // The database is asked for one after the other.
            if !is_forgotten {
                let node = ctx.build_node(&pilot, &[], false);
                let result = timeout(LIMIT, ctx.driver.forget_member(&node, id)).await;
                let answer =
                    forgotten_node(id, result.unwrap_or_else(|elapsed| Err(elapsed.into())));
                forgotten_nodes.insert(id.clone(), answer);
            }
            if forgotten_nodes.get(id).is_some_and(|entry| entry.phase == ForgetPhase::Removing) {
                break;
            }
        }
        if forgotten_nodes != old_nodes {
            log_changes(&old_nodes, &forgotten_nodes);
            let listed_nodes =
                listed_ids.iter().filter_map(|id| forgotten_nodes.get(id).cloned()).collect();
            ctx.send_message(RunnerMessage::Forgotten(listed_nodes)).await;
        }
    }
}

/// Puts the database's answer into words. What fails is tried again.
fn forgotten_node(id: &str, answer: Result<ForgetState, driver::Error>) -> ForgottenNode {
    let (phase, message) = match answer {
        Ok(ForgetState::Forgotten) => (ForgetPhase::Forgotten, None),
        Ok(ForgetState::Removing(progress)) => (ForgetPhase::Removing, Some(progress)),
        Ok(ForgetState::Refused(reason)) => (ForgetPhase::Refused, Some(reason)),
        Err(error) => (ForgetPhase::Removing, Some(chain(&error).to_string())),
    };
    ForgottenNode { node_id: id.to_owned(), phase, message }
}

/// Logs what changed but for figures on the way.
fn log_changes(
    old_nodes: &BTreeMap<String, ForgottenNode>,
    new_nodes: &BTreeMap<String, ForgottenNode>,
) {
    for (id, node) in new_nodes {
        if old_nodes.get(id).map(|old_node| &old_node.phase) == Some(&node.phase) {
            continue;
        }
        let message = node.message.as_deref().unwrap_or_default();
        match node.phase {
            ForgetPhase::Refused => warn!(id, message, "Database does not forget a lost node"),
            ForgetPhase::Forgotten => info!(id, "Database has forgotten a lost node"),
            _ => info!(id, message, "Database is to forget a lost node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_no_refusal_and_is_tried_again() {
        let failed = forgotten_node("a", Err(driver::Error::Refused("401".to_owned())));
        assert_eq!(failed.phase, ForgetPhase::Removing);
        assert!(failed.message.unwrap().contains("401"));
        let refused = forgotten_node("a", Ok(ForgetState::Refused("it is up".to_owned())));
        assert_eq!(
            (refused.phase, refused.message),
            (ForgetPhase::Refused, Some("it is up".into()))
        );
    }
}
