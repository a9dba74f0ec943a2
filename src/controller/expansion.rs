//! The API server's answers about claims that must grow: whether it would accept the larger size.
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
    pub(crate) fn pending_questions(
        &self,
        desired: &DesiredCluster,
        observed: &ObservedCluster,
    ) -> Vec<ExpansionQuestion> {
        let (now, mut answers) = (Instant::now(), self.cluster_answers(desired));
        let mut questions = find_short_claims(desired, observed);
        answers.retain(|uid, answer| {
            let is_asked =
                |question: &ExpansionQuestion| question.uid == *uid && question.size == answer.size;
            questions.iter().any(is_asked) && now.duration_since(answer.at) < COUNTS
        });
        questions.retain(|question| !answers.contains_key(&question.uid));
        if answers.is_empty() {
            self.lock().remove(&desired.key());
        } else {
            self.lock().insert(desired.key(), answers);
        }
        questions
    }

    pub(crate) fn record_answer(
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
    pub(crate) fn apply_answers(&self, desired: &DesiredCluster, observed: &mut ObservedCluster) {
        let answers = self.cluster_answers(desired);
        for pool in &mut observed.pools {
            let size = desired.pool(&pool.name).and_then(|desired_pool| desired_pool.volume_size());
            for claim in pool.members.values_mut().filter_map(|member| member.claim.as_mut()) {
                let answer = answers.get(&claim.uid).filter(|answer| Some(&*answer.size) == size);
                claim.expansion = answer.map(|answer| answer.answer.clone());
            }
        }
    }

    /// Forgets a cluster that is gone.
    pub(crate) fn remove_cluster(&self, key: &ClusterKey) {
        self.lock().remove(key);
    }

    fn cluster_answers(&self, desired: &DesiredCluster) -> ClaimAnswers {
        self.lock().get(&desired.key()).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClusterKey, ClaimAnswers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the claims that must grow.
fn find_short_claims(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Vec<ExpansionQuestion> {
    if desired.paused || desired.stopped || observed.stalled.is_some() {
        return Vec::new();
    }
    let mut questions = Vec::new();
    for pool in &observed.pools {
        let desired_pool = desired.pool(&pool.name);
        let Some(size) = desired_pool.and_then(|desired_pool| desired_pool.volume_size()) else {
            continue;
        };
        let claims = pool.nodes().filter_map(|(_, member)| member?.claim.as_ref());
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
