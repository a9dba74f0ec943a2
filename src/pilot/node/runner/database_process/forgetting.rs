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
    let mut known: BTreeMap<String, ForgottenNode> = BTreeMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(pilot) = intent.borrow().as_ref().map(|intent| intent.pilot.clone()) else {
            continue;
        };
        let listed = &pilot.spec.forget;
        let before = known.clone();
        known.retain(|id, _| listed.contains(id));
        for id in listed {
            let done = known.get(id).is_some_and(|one| one.phase == ForgetPhase::Forgotten);
            // The database is asked for one after the other.
            if !done {
                let node = ctx.node(&pilot, &[], false);
                let asked = timeout(LIMIT, ctx.driver.forget_member(&node, id)).await;
                let answer = told(id, asked.unwrap_or_else(|late| Err(late.into())));
                known.insert(id.clone(), answer);
            }
            if known.get(id).is_some_and(|one| one.phase == ForgetPhase::Removing) {
                break;
            }
        }
        if known != before {
            log(&before, &known);
            let all = listed.iter().filter_map(|id| known.get(id).cloned()).collect();
            ctx.tell(RunnerMessage::Forgotten(all)).await;
        }
    }
}

/// Puts the database's answer into words. What fails is tried again.
fn told(id: &str, answer: Result<ForgetState, driver::Error>) -> ForgottenNode {
    let (phase, message) = match answer {
        Ok(ForgetState::Forgotten) => (ForgetPhase::Forgotten, None),
        Ok(ForgetState::Removing(what)) => (ForgetPhase::Removing, Some(what)),
        Ok(ForgetState::Refused(why)) => (ForgetPhase::Refused, Some(why)),
        Err(error) => (ForgetPhase::Removing, Some(chain(&error).to_string())),
    };
    ForgottenNode { node_id: id.to_owned(), phase, message }
}

/// Logs what changed but for figures on the way.
fn log(before: &BTreeMap<String, ForgottenNode>, now: &BTreeMap<String, ForgottenNode>) {
    for (id, one) in now {
        if before.get(id).map(|it| &it.phase) == Some(&one.phase) {
            continue;
        }
        let message = one.message.as_deref().unwrap_or_default();
        match one.phase {
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
        let failed = told("a", Err(driver::Error::Refused("401".to_owned())));
        assert_eq!(failed.phase, ForgetPhase::Removing);
        assert!(failed.message.unwrap().contains("401"));
        let refused = told("a", Ok(ForgetState::Refused("it is up".to_owned())));
        assert_eq!(
            (refused.phase, refused.message),
            (ForgetPhase::Refused, Some("it is up".into()))
        );
    }
}
