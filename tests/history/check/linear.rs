//! Linearizability of each object by itself: is there an order of all operations, each at a moment
//! between its begin and its end, in which every answer is right?
//!
//! The search is Wing and Gong's with Lowe's memory of states that led nowhere. An object is
//! absent, or has a revision and the words of its last writes. A write of unknown outcome may
//! happen at any time after its begin, or never; once its word was seen it did happen, before that.

use std::collections::{HashMap, HashSet};

use super::{
    Asked, At, Findings, Guarantee, History, Moment, Outcome, history::Operation, tape::Tape,
};

/// States that are looked at for one object before the search gives up.
const PATIENCE: usize = 3_000_000;

/// A word, as a number; 0 is none.
type Word = u32;

/// The object, if it is there.
type State = Option<Present>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Present {
    /// Unknown after a write of unknown outcome whose object was never seen.
    revision: Option<u64>,
    main: Word,
    status: Word,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    Create { main: Word, revision: Option<u64> },
    Update { main: Word, expected: u64, revision: Option<u64> },
    Status { status: Word, expected: u64, revision: Option<u64> },
    Patch { main: Word, revision: Option<u64> },
    Delete { expected: Option<u64> },
    Find(Present),
    Absent,
    Exists,
    NotAt(u64),
}

impl Effect {
    /// The revision of a write, where it is known. Such a write happened.
    fn revision(self) -> Option<u64> {
        match self {
            Self::Create { revision, .. }
            | Self::Update { revision, .. }
            | Self::Status { revision, .. }
            | Self::Patch { revision, .. } => revision,
            _ => None,
        }
    }
}

struct Call<'a> {
    begin: Moment,
    end: Moment,
    /// The call happened for certain.
    must: bool,
    effect: Effect,
    operation: &'a Operation,
}

pub(super) fn check(history: &History, tape: &Tape, findings: &mut Findings) {
    let mut words = HashMap::from([("", 0)]);
    let mut calls: HashMap<&str, Vec<Call<'_>>> = HashMap::new();
    for operation in &history.operations {
        let Some(key) = operation.asked.key() else { continue };
        if let Some(call) = call(operation, tape, &mut words) {
            calls.entry(key).or_default().push(call);
        }
    }
    let mut keys: Vec<_> = calls.into_iter().collect();
    keys.sort_by_key(|(key, _)| *key);
    for (key, mut calls) in keys {
        calls.sort_by_key(|call| call.begin);
        if let Err(why) = linearize(&calls) {
            findings.add(Guarantee::Linearizable, format!("{key}: {why}"));
        }
    }
}

/// What an operation says about its object; none when it says nothing.
fn call<'a>(
    operation: &'a Operation,
    tape: &Tape,
    words: &mut HashMap<&'a str, Word>,
) -> Option<Call<'a>> {
    let mut word = |text: &'a str| {
        let next = u32::try_from(words.len()).expect("a run has fewer writes");
        *words.entry(text).or_insert(next)
    };
    let (mut end, mut must) = (operation.end, true);
    let seen = operation.asked.word().and_then(|word| tape.first_seen(word));
    let mut revision = None;
    match &operation.outcome {
        Outcome::Written(version) => revision = Some(version.revision),
        Outcome::Unknown(_) => {
            must = seen.is_some();
            end = Moment::MAX;
            revision = seen.map(|(_, revision)| revision);
        }
        Outcome::Refused(_) | Outcome::Expired { .. } => return None,
        _ => {}
    }
    if let Some((moment, _)) = seen {
        end = end.min(moment.max(operation.begin));
    }
    let effect = match (&operation.asked, &operation.outcome) {
        (Asked::Get { at: At::Latest, .. }, Outcome::Found(version)) => Effect::Find(Present {
            revision: Some(version.revision),
            main: word(&version.main),
            status: word(&version.status),
        }),
        (Asked::Get { at: At::Latest, .. }, Outcome::Absent) => Effect::Absent,
        (Asked::Get { .. } | Asked::List { .. } | Asked::Compact { .. } | Asked::Wipe, _) => {
            return None;
        }
        (_, Outcome::Absent) => Effect::Absent,
        (
            Asked::Update { expected, .. }
            | Asked::Status { expected, .. }
            | Asked::Delete { expected: Some(expected), .. },
            Outcome::Conflict,
        ) => Effect::NotAt(*expected),
        (_, Outcome::Exists | Outcome::Conflict) => Effect::Exists,
        (Asked::Create { main, .. }, _) => Effect::Create { main: word(main), revision },
        (Asked::Update { main, expected, .. }, _) => {
            Effect::Update { main: word(main), expected: *expected, revision }
        }
        (Asked::Status { status, expected, .. }, _) => {
            Effect::Status { status: word(status), expected: *expected, revision }
        }
        (Asked::Patch { main, .. }, _) => Effect::Patch { main: word(main), revision },
        (Asked::Delete { expected, .. }, _) => Effect::Delete { expected: *expected },
    };
    Some(Call { begin: operation.begin, end, must, effect, operation })
}

/// The object after a call, if the call can be right for it.
fn step(state: State, effect: Effect) -> Option<State> {
    let at = |expected: u64| state.filter(|present| present.revision == Some(expected));
    // A known revision is higher than every known one before.
    let rises = |present: Present, revision: Option<u64>| {
        let both = present.revision.zip(revision);
        both.is_none_or(|(before, after)| before < after)
    };
    let written = |present: Present, revision, main, status| {
        rises(present, revision).then_some(Some(Present { revision, main, status }))
    };
    match effect {
        Effect::Create { main, revision } => {
            state.is_none().then_some(Some(Present { revision, main, status: 0 }))
        }
        Effect::Update { main, expected, revision } => {
            at(expected).and_then(|present| written(present, revision, main, present.status))
        }
        Effect::Status { status, expected, revision } => {
            at(expected).and_then(|present| written(present, revision, present.main, status))
        }
        Effect::Patch { main, revision } => {
            state.and_then(|present| written(present, revision, main, present.status))
        }
        Effect::Delete { expected: Some(expected) } => at(expected).map(|_| None),
        Effect::Delete { expected: None } => state.map(|_| None),
        Effect::Find(found) => {
            let present = state?;
            let same = (present.main, present.status) == (found.main, found.status)
                && present.revision.is_none_or(|revision| Some(revision) == found.revision);
            same.then_some(Some(found))
        }
        Effect::Absent => state.is_none().then_some(state),
        Effect::Exists => state.is_some().then_some(state),
        Effect::NotAt(expected) => {
            let other = state.is_some_and(|present| present.revision != Some(expected));
            other.then_some(state)
        }
    }
}

/// Which calls have happened.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done(Vec<u64>);

impl Done {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn flip(&mut self, at: usize) {
        self.0[at / 64] ^= 1 << (at % 64);
    }
}

/// A place of the search: what was chosen to get here, and what can be chosen next.
struct Place {
    state: State,
    choices: Vec<usize>,
    chosen: Option<usize>,
}

/// Calls are sorted by their begin.
fn linearize(calls: &[Call<'_>]) -> Result<(), String> {
    let mut done = Done(vec![0; calls.len().div_ceil(64)]);
    let mut left = calls.iter().filter(|call| call.must).count();
    let mut dead: HashSet<(Done, State)> = HashSet::new();
    let mut deepest: (usize, Done, State) = (left, done.clone(), None);
    let first = next(calls, &done, None);
    let mut path = vec![Place { state: None, choices: first, chosen: None }];
    let mut looked = 0;
    while left > 0 {
        looked += 1;
        if looked > PATIENCE {
            return Err(format!("undecided after {PATIENCE} states of {} calls", calls.len()));
        }
        let Some(place) = path.last_mut() else { return Err(stuck(calls, &deepest)) };
        let Some(choice) = place.choices.pop() else {
            // No choice is left at this place: the search goes back.
            let chosen = place.chosen;
            path.pop();
            if let Some(chosen) = chosen {
                done.flip(chosen);
                left += usize::from(calls[chosen].must);
            }
            continue;
        };
        let Some(state) = step(place.state, calls[choice].effect) else { continue };
        done.flip(choice);
        if !dead.insert((done.clone(), state)) {
            done.flip(choice);
            continue;
        }
        left -= usize::from(calls[choice].must);
        if left < deepest.0 {
            deepest = (left, done.clone(), state);
        }
        path.push(Place { state, choices: next(calls, &done, state), chosen: Some(choice) });
    }
    Ok(())
}

/// Calls that the search tries next. Revisions rise, so no write comes before one of a lower revision.
/// A call that is certain and changes nothing comes alone: wherever an order has it later, it may as
/// well come now.
fn next(calls: &[Call<'_>], done: &Done, state: State) -> Vec<usize> {
    let left = calls.iter().enumerate().filter(|(at, _)| !done.has(*at));
    let lowest = left.filter_map(|(_, call)| call.effect.revision()).min();
    let mut all = choices(calls, done);
    all.retain(|at| calls[*at].effect.revision().is_none_or(|own| Some(own) == lowest));
    let changes_nothing = |at: &&usize| {
        let call = &calls[**at];
        call.must && step(state, call.effect) == Some(state)
    };
    match all.iter().rev().find(changes_nothing) {
        Some(at) => vec![*at],
        None => all,
    }
}

/// Calls that may happen next: those that began before the first end among the calls that are left.
/// Certain calls are taken first, from the back of the list.
fn choices(calls: &[Call<'_>], done: &Done) -> Vec<usize> {
    let mut first_end = Moment::MAX;
    let (mut certain, mut found) = (Vec::new(), Vec::new());
    for (at, call) in calls.iter().enumerate() {
        if call.begin > first_end {
            break;
        }
        if done.has(at) {
            continue;
        }
        if call.must {
            first_end = first_end.min(call.end);
            certain.push(at);
        } else {
            found.push(at);
        }
    }
    let may = |at: &usize| calls[*at].begin <= first_end;
    found.retain(may);
    found.extend(certain.into_iter().filter(may).rev());
    found
}

/// Where the search came furthest: the state, and what cannot follow.
fn stuck(calls: &[Call<'_>], (left, done, state): &(usize, Done, State)) -> String {
    let next: Vec<_> = choices(calls, done).into_iter().rev().take(6).collect();
    let next: Vec<_> =
        next.into_iter().map(|at| format!("\n      {:?}", calls[at].operation)).collect();
    let last = (0..calls.len()).rev().filter(|at| done.has(*at)).take(4);
    let last: Vec<_> = last.map(|at| format!("\n      {:?}", calls[at].operation)).collect();
    format!(
        "no order of its {} calls explains every answer; with {left} left it is {state:?}, and \
         none of these can follow:{}\n    after, latest first:{}",
        calls.len(),
        next.concat(),
        last.concat()
    )
}
