//! A join that fails: the process stays and says so, and the pilot begins anew.

use std::{rc::Rc, time::Duration};

use navigator::databases::cassandra::v1beta1::CassandraNode;

use crate::support::{
    bed::Bed,
    ring::{self, Ring},
};

const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn a_join_that_failed_is_begun_anew_and_ends_in_a_member() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut pair = ring.nodes(&bed, 81, 2);
    for node in 0..2 {
        pair.create(node).await;
        ring::set(pair.seat(node), "fail-join", "");
        pair.start(node);
        // The first node founds the ring, so it has no join that could fail.
        pair.phase(node, "Running").await;
    }
    let name = pair.name(1).to_owned();
    let notes = ring::notes(pair.seat(1));
    let count = |word: &str| notes.iter().filter(|note| *note == word).count();
    assert_eq!((count("fails"), count("joins")), (1, 2), "{notes:?}");
    assert_eq!(count("resumes"), 0, "what an earlier join left is not gone on with: {notes:?}");
    assert_eq!(count("drain"), 0, "there is nothing to flush");
    bed.shows(&name, "how the first process ended", PATIENCE, |pilot| {
        let ended = pilot.status.last_termination.as_ref()?;
        assert_eq!(ended.reason.as_deref(), Some("JoinFailed"));
        let why = ended.message.as_deref().unwrap();
        assert!(why.contains("mode JOINING_FAILED"), "{why}");
        let part = pilot.status.part::<CassandraNode>()?;
        (part.joined == Some(true)).then_some(())
    })
    .await;
    pair.stop(1).await;
    bed.shows(&name, "no mode without a process", PATIENCE, |pilot| {
        let part = pilot.status.part::<CassandraNode>()?;
        (part.operation_mode.is_none() && part.joined == Some(true)).then_some(())
    })
    .await;
    assert_eq!(ring.wrongs(), [""; 0]);
}
