//! What the API server said of claims that must grow: whether it would take the larger size.
//!
//! Owns which questions are due; an answer counts for a minute. `reconcile` asks them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    desired_state::DesiredCluster,
    observe::{ClaimFacts, ObservedCluster},
    queue::ClusterKey,
};

/// How long an answer counts.
const COUNTS: Duration = Duration::from_secs(60);

/// Answers by the uid of the claim.
type ClaimAnswers = BTreeMap<String, ExpansionAnswer>;

#[derive(Clone, Default)]
pub(crate) struct ExpansionAnswers(Arc<Mutex<HashMap<ClusterKey, ClaimAnswers>>>);

#[derive(Clone, Debug)]
struct ExpansionAnswer {
    size: String,
    answer: Result<(), String>,
    at: Instant,
}

/// A claim, and the size that it should get.
#[derive(Clone, Debug)]
pub(crate) struct ExpansionQuestion {
    pub(crate) claim: String,
    pub(crate) uid: String,
    pub(crate) size: String,
}

impl ExpansionAnswers {
    /// Returns the questions of a cluster that have no fresh answer, and forgets the answers of
    /// claims that need not grow.
    pub(crate) fn due(
        &self,
        desired: &DesiredCluster,
        observed: &ObservedCluster,
    ) -> Vec<ExpansionQuestion> {
        let (now, mut known) = (Instant::now(), self.of(desired));
        let mut questions = short(desired, observed);
        known.retain(|uid, answer| {
            let asked =
                |question: &ExpansionQuestion| question.uid == *uid && question.size == answer.size;
            questions.iter().any(asked) && now.duration_since(answer.at) < COUNTS
        });
        questions.retain(|question| !known.contains_key(&question.uid));
        if known.is_empty() {
            self.lock().remove(&desired.key());
        } else {
            self.lock().insert(desired.key(), known);
        }
        questions
    }

    pub(crate) fn note(
        &self,
        desired: &DesiredCluster,
        question: ExpansionQuestion,
        answer: Result<(), String>,
    ) {
        let ExpansionQuestion { claim: _, uid, size } = question;
        let answer = ExpansionAnswer { size, answer, at: Instant::now() };
        self.lock().entry(desired.key()).or_default().insert(uid, answer);
    }

    /// Adds the answers to the facts. Facts of the caches and of the server get the same.
    pub(crate) fn tell(&self, desired: &DesiredCluster, observed: &mut ObservedCluster) {
        let answers = self.of(desired);
        for pool in &mut observed.pools {
            let size = desired.pool(&pool.name).and_then(|wanted| wanted.volume_size());
            for claim in pool.members.values_mut().filter_map(|member| member.claim.as_mut()) {
                let known = answers.get(&claim.uid).filter(|known| Some(&*known.size) == size);
                claim.expansion = known.map(|known| known.answer.clone());
            }
        }
    }

    /// Forgets a cluster that is gone.
    pub(crate) fn forget(&self, key: &ClusterKey) {
        self.lock().remove(key);
    }

    fn of(&self, desired: &DesiredCluster) -> ClaimAnswers {
        self.lock().get(&desired.key()).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClusterKey, ClaimAnswers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the claims that must grow.
fn short(desired: &DesiredCluster, observed: &ObservedCluster) -> Vec<ExpansionQuestion> {
    if desired.paused || desired.stopped || observed.stalled.is_some() {
        return Vec::new();
    }
    let mut questions = Vec::new();
    for pool in &observed.pools {
        let wanted = desired.pool(&pool.name);
        let Some(size) = wanted.and_then(|wanted| wanted.volume_size()) else { continue };
        let claims = pool.running().filter_map(|(_, member)| member?.claim.as_ref());
        questions.extend(claims.filter(|claim| claim.is_short_of(size)).map(
            |ClaimFacts { name, uid, .. }| ExpansionQuestion {
                claim: name.clone(),
                uid: uid.clone(),
                size: size.to_owned(),
            },
        ));
    }
    questions
}
