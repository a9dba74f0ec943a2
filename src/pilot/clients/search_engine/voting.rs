//! The votes in the election of a master, and the list of nodes that have none.

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use serde::Deserialize;

use super::SearchClient;
use crate::pilot::{driver::Error, query_answer::QueryAnswer};

/// Limit for a change of the votes: the engine itself waits 30 s for the voting configuration to
/// change.
const VOTE: Duration = Duration::from_secs(35);
const EXCLUSIONS: &str = "/_cluster/voting_config_exclusions";
/// Path that asks for the votes. It names an index that does not exist, so that the answer has only
/// the cluster's metadata and no index's.
const VOTES: &str = "/_cluster/state/version,metadata/navigator-asks-for-no-index?local=true\
                     &ignore_unavailable=true&allow_no_indices=true\
                     &filter_path=state_uuid,metadata.cluster_coordination";

#[derive(Debug, Deserialize)]
pub(super) struct VotesAnswer {
    pub(super) state_uuid: String,
    metadata: VotesMetadata,
}

#[derive(Debug, Deserialize)]
struct VotesMetadata {
    cluster_coordination: CoordinationMetadata,
}

#[derive(Debug, Deserialize)]
struct CoordinationMetadata {
    last_committed_config: BTreeSet<String>,
    voting_config_exclusions: Vec<VotingExclusion>,
}

#[derive(Debug, Deserialize)]
struct VotingExclusion {
    node_name: String,
}

/// Which nodes vote.
#[derive(Clone, Debug, Default)]
pub struct VotingConfiguration {
    /// Ids of the nodes that vote.
    pub voters: BTreeSet<String>,
    /// Names of the nodes that were excluded from voting.
    pub excluded: BTreeSet<String>,
}

impl From<VotesAnswer> for VotingConfiguration {
    fn from(answer: VotesAnswer) -> Self {
        let CoordinationMetadata { last_committed_config, voting_config_exclusions } =
            answer.metadata.cluster_coordination;
        let excluded_names =
            voting_config_exclusions.into_iter().map(|exclusion| exclusion.node_name);
        Self { voters: last_committed_config, excluded: excluded_names.collect() }
    }
}

impl SearchClient {
    pub async fn voting_configuration(&self) -> QueryAnswer<VotingConfiguration> {
        self.read_votes().await.map(VotingConfiguration::from)
    }

    pub(super) async fn read_votes(&self) -> QueryAnswer<VotesAnswer> {
        self.query(VOTES).await
    }

    /// Takes the vote of the node with this name. `by_query`: the release takes the name in the
    /// query and not in the path.
    pub async fn exclude_voter(&self, name: &str, by_query: bool) -> Result<(), Error> {
        let path = if by_query {
            format!("{EXCLUSIONS}?node_names={name}&timeout=30s")
        } else {
            format!("{EXCLUSIONS}/{name}?timeout=30s")
        };
        self.send_change(Method::POST, &path, None, VOTE).await.map(drop)
    }

    /// Clears the list of nodes without a vote, which is only possible as a whole.
    pub async fn clear_excluded_voters(&self) -> Result<(), Error> {
        let path = format!("{EXCLUSIONS}?wait_for_removal=false");
        self.send_change(Method::DELETE, &path, None, VOTE).await.map(drop)
    }
}
