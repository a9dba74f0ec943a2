//! What needs numbers and time more than it needs a real database: bootstraps by the hundred, and
//! an API that is away for minutes.

use std::time::Duration;

use crate::{
    report::Told,
    support::{
        bootstraps,
        fleet::{Fleet, apart},
        gateway::Way,
    },
};

const ROUNDS: u64 = 500;

/// Around scripted databases; the seed is said, so that a failure can be looked for again.
pub(crate) async fn five_hundred_bootstraps(told: &Told) {
    let seed = rand::random::<u32>().into();
    told.note(&format!("seeds from {seed}"));
    let figures = bootstraps::rounds(ROUNDS, seed).await;
    told.claim(format!("exactly one cluster, one founder, three members each time: {figures}"));
}

const PILOTS: u8 = 6;
/// Pauses between tries are at their longest by then: the shorter ones come to 31 s at most.
const GROWN: Duration = Duration::from_secs(50);
const WATCHED: Duration = Duration::from_secs(120);
/// The shortest of the longest pauses; less a second, by which a busy machine may be late to note
/// a call.
const LEAST: f64 = 25.5 - 1.0;

/// Half of the pilots meet a closed port and then one that hangs up; the others are never
/// answered.
pub(crate) async fn an_api_that_is_away_for_minutes(told: &Told) {
    let mut fleet = Fleet::start(90, PILOTS).await;
    told.claim(format!("{PILOTS} nodes run"));
    let is_refused = |number: usize| number < usize::from(PILOTS) / 2;
    fleet.cut(|number| if is_refused(number) { Way::Closed } else { Way::Silent }).await;
    fleet.pass(GROWN).await;
    for (_, gateway) in fleet.gateways.iter().enumerate().filter(|(number, _)| is_refused(*number))
    {
        gateway.set(Way::Refusing).await;
    }
    fleet.pass(WATCHED).await;
    let mut shortest = f64::MAX;
    for (number, gateway) in fleet.gateways.iter().enumerate() {
        let (name, calls) = (fleet.nodes.name(number), gateway.calls());
        // Calls that hang are counted from the cut on, so only the last ones have the longest
        // pauses.
        let late = &calls[calls.len().saturating_sub(4)..];
        assert!(late.len() >= 3, "{name}: {} calls", calls.len());
        let gaps = apart(late);
        assert!(gaps.iter().all(|gap| *gap > LEAST), "{name}: {gaps:?}");
        shortest = gaps.into_iter().fold(shortest, f64::min);
        let word = if is_refused(number) { "refused" } else { "not answered" };
        told.note(&format!("{name} is {word}: seconds between calls {:.1?}", apart(&calls)));
    }
    told.claim(format!(
        "the API is away, refusing or silent: after {} s a pilot calls once in about 30 s over all its \
         loops, never twice within {shortest:.1} s; databases and readiness stay",
        GROWN.as_secs()
    ));

    let (took, lists) = fleet.restore().await;
    let seconds: Vec<f64> = took.iter().map(Duration::as_secs_f64).collect();
    let (first, last) = seconds
        .iter()
        .fold((f64::MAX, 0.0_f64), |(first, last), one| (first.min(*one), last.max(*one)));
    assert!(last - first > 1.0, "they came back at once: {seconds:?}");
    // Each pilot lists its own Pilot once, and its peers once.
    assert!(lists.len() <= 2 * usize::from(PILOTS), "{lists:#?}");
    fleet.pass(Duration::from_secs(1)).await;
    told.claim(format!(
        "the API is back: heartbeats are there after {first:.1} to {last:.1} s, spread over time; {} lists \
         by {PILOTS} pilots; every database is still the same process",
        lists.len()
    ));
    fleet.nodes.stop_all().await;
}
