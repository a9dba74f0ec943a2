//! The checker of `tests/history`: a good history passes, and each way to break a promise is found
//! under its name. Histories are made by hand, small enough to read.

#[path = "../history/check/lib.rs"]
mod check;

use check::{
    Asked, At, Ended, Filter, Guarantee, History, Line, Moment, Operation, Outcome, Record, Seen,
    Start, Stream, Version, check,
};

/// An object as this write left it; lane `a`, unless the word ends with `b`.
fn at(revision: u64, main: &str) -> Version {
    with_status(revision, main, "")
}

fn with_status(revision: u64, main: &str, status: &str) -> Version {
    let lane = if main.ends_with('b') { "b" } else { "a" };
    Version {
        revision,
        main: main.to_owned(),
        status: status.to_owned(),
        lane: lane.to_owned(),
        hash: format!("{main}+{status}"),
    }
}

fn operation(begin: u64, end: u64, asked: Asked, outcome: Outcome) -> Record {
    Record::Operation(Operation { client: 0, begin, end, asked, outcome })
}

fn create(begin: u64, end: u64, main: &str, outcome: Outcome) -> Record {
    operation(begin, end, Asked::Create { key: "k".into(), main: main.into() }, outcome)
}

fn update(begin: u64, end: u64, main: &str, expected: u64, outcome: Outcome) -> Record {
    let asked = Asked::Update { key: "k".into(), main: main.into(), expected };
    operation(begin, end, asked, outcome)
}

fn delete(begin: u64, end: u64, outcome: Outcome) -> Record {
    operation(begin, end, Asked::Delete { key: "k".into(), expected: None }, outcome)
}

fn get(begin: u64, end: u64, at: At, outcome: Outcome) -> Record {
    operation(begin, end, Asked::Get { key: "k".into(), at }, outcome)
}

fn list(begin: u64, end: u64, at: At, revisions: &[u64], items: &[(&str, Version)]) -> Record {
    let items = items.iter().map(|(key, version)| ((*key).to_owned(), version.clone())).collect();
    let outcome = Outcome::Listed { revisions: revisions.to_vec(), items };
    operation(begin, end, Asked::List { filter: Filter::Everything, at, limit: 0 }, outcome)
}

fn stream(begin: u64, filter: Filter, start: Start, seen: Vec<Seen>) -> Record {
    let at = |n: usize| begin + 30 + n as u64;
    let end = at(seen.len());
    let lines = seen.into_iter().enumerate().map(|(n, seen)| Line { at: at(n), seen }).collect();
    let ended = Ended::Closed;
    Record::Stream(Stream { watcher: 0, begin, end, filter, start, lines, ended })
}

fn added(version: Version) -> Seen {
    Seen::Added("k".into(), version)
}

fn modified(version: Version) -> Seen {
    Seen::Modified("k".into(), version)
}

fn deleted(version: Version) -> Seen {
    Seen::Deleted("k".into(), version)
}

fn bookmark(revision: u64) -> Seen {
    Seen::Bookmark { revision, ends_state: false }
}

fn end_of_state(revision: u64) -> Seen {
    Seen::Bookmark { revision, ends_state: true }
}

fn lane(lane: &str) -> Filter {
    Filter::Lane(lane.to_owned())
}

/// An object that is created, updated into lane b and deleted: revisions 10, 11 and 12.
fn life() -> Vec<Record> {
    vec![
        create(0, 5, "one", Outcome::Written(at(10, "one"))),
        update(10, 15, "two-b", 10, Outcome::Written(at(11, "two-b"))),
        delete(20, 25, Outcome::Deleted),
    ]
}

/// What watchers see of this object.
fn seen_life() -> Vec<Seen> {
    vec![added(at(10, "one")), modified(at(11, "two-b")), deleted(at(12, "two-b"))]
}

fn everything(begin: u64, seen: Vec<Seen>) -> Record {
    stream(begin, Filter::Everything, Start::From(9), seen)
}

fn history_of(records: Vec<Record>) -> History {
    let mut history = History::default();
    for record in records {
        history.add(record);
    }
    history
}

/// Guarantees that a history breaks.
fn broken(records: Vec<Record>) -> Vec<Guarantee> {
    let mut found: Vec<_> =
        check(&history_of(records)).into_iter().map(|found| found.guarantee).collect();
    found.sort();
    found.dedup();
    found
}

#[track_caller]
fn good(records: Vec<Record>) {
    let found: Vec<_> = check(&history_of(records)).iter().map(ToString::to_string).collect();
    assert_eq!(found, [""; 0]);
}

#[track_caller]
fn bad(guarantee: Guarantee, records: Vec<Record>) {
    let found = broken(records);
    assert!(found.contains(&guarantee), "{guarantee:?} is not among {found:?}");
}

fn and(mut records: Vec<Record>, more: Vec<Record>) -> Vec<Record> {
    records.extend(more);
    records
}

#[test]
fn a_history_in_which_everything_is_right_passes() {
    let state = vec![added(at(10, "one")), end_of_state(10), modified(at(11, "two-b"))];
    let through_a = vec![added(at(10, "one")), deleted(at(11, "one")), bookmark(12)];
    let through_b = vec![added(at(11, "two-b")), deleted(at(12, "two-b"))];
    good(and(
        life(),
        vec![
            get(6, 9, At::Latest, Outcome::Found(at(10, "one"))),
            get(30, 31, At::Latest, Outcome::Absent),
            get(30, 31, At::NotOlderThan(11), Outcome::Found(at(11, "two-b"))),
            get(30, 31, At::Any, Outcome::Found(at(10, "one"))),
            list(16, 19, At::Latest, &[11, 11], &[("k", at(11, "two-b"))]),
            list(30, 31, At::Exact(10), &[10], &[("k", at(10, "one"))]),
            list(30, 31, At::Latest, &[12], &[]),
            everything(0, seen_life()),
            stream(40, Filter::Everything, Start::From(11), vec![deleted(at(12, "two-b"))]),
            stream(6, Filter::Everything, Start::State(At::Latest), state),
            stream(0, lane("a"), Start::From(9), through_a),
            stream(0, lane("b"), Start::From(9), through_b),
            stream(0, Filter::Name("other".into()), Start::From(9), vec![bookmark(12)]),
        ],
    ));
}

#[test]
fn what_became_of_a_write_may_stay_unknown() {
    let unknown = || Outcome::Unknown("the connection ended".into());
    let begin = || vec![create(0, 5, "one", Outcome::Written(at(10, "one")))];
    // The lost update never happened, happened at once, or happened later.
    let before = || get(8, 9, At::Latest, Outcome::Found(at(10, "one")));
    let after = |begin| get(begin, begin + 1, At::Latest, Outcome::Found(at(11, "two")));
    let lost = || update(6, 7, "two", 10, unknown());
    good(and(begin(), vec![lost(), before()]));
    good(and(begin(), vec![lost(), after(8)]));
    good(and(begin(), vec![lost(), before(), after(20)]));
    // An update that was seen is not undone again.
    let undone = vec![lost(), after(8), get(20, 21, At::Latest, Outcome::Found(at(10, "one")))];
    bad(Guarantee::Linearizable, and(begin(), undone));
    good(and(begin(), vec![delete(6, 7, unknown()), get(8, 9, At::Latest, Outcome::Absent)]));
    let back = vec![
        delete(6, 7, unknown()),
        get(8, 9, At::Latest, Outcome::Absent),
        get(20, 21, At::Latest, Outcome::Found(at(10, "one"))),
    ];
    bad(Guarantee::Linearizable, and(begin(), back));
}

#[test]
fn operations_at_one_time_may_come_in_any_order() {
    good(vec![
        create(0, 100, "one", Outcome::Written(at(10, "one"))),
        get(0, 90, At::Latest, Outcome::Absent),
        get(1, 80, At::Latest, Outcome::Found(at(10, "one"))),
        create(2, 99, "other", Outcome::Exists),
        update(50, 95, "two", 10, Outcome::Written(at(11, "two"))),
        update(50, 96, "three", 10, Outcome::Conflict),
    ]);
}

/// The one that begins first ends last, beside twenty writes of which nobody knows whether they happened.
#[test]
fn writes_at_one_time_come_in_the_order_of_their_revisions() {
    let unknown = || Outcome::Unknown("503".into());
    let patch = |begin, end, main: &str, revision| {
        let asked = Asked::Patch { key: "k".into(), main: main.into() };
        operation(begin, end, asked, Outcome::Written(at(revision, main)))
    };
    let mut records = vec![create(0, 5, "one", Outcome::Written(at(10, "one")))];
    for n in 0..10 {
        records.push(delete(10 + n, 30 + n, unknown()));
        records.push(create(20 + n, 40 + n, &format!("lost {n}"), unknown()));
    }
    records.push(patch(100, 200, "last", 30));
    records.extend((1..9).map(|n| patch(100 + 10 * n, 105 + 10 * n, &format!("{n}"), 20 + n)));
    records.push(get(300, 305, At::Latest, Outcome::Found(at(30, "last"))));
    good(records);
}

#[test]
fn a_read_that_is_older_than_an_acknowledged_write_is_found() {
    let old = get(20, 21, At::Latest, Outcome::Found(at(10, "one")));
    bad(Guarantee::Linearizable, and(life()[..2].to_vec(), vec![old]));
    let gone = get(6, 7, At::Latest, Outcome::Absent);
    bad(Guarantee::Linearizable, and(life()[..1].to_vec(), vec![gone]));
}

#[test]
fn two_updates_of_one_revision_are_found() {
    bad(
        Guarantee::Linearizable,
        vec![
            create(0, 5, "one", Outcome::Written(at(10, "one"))),
            update(10, 20, "two", 10, Outcome::Written(at(11, "two"))),
            update(10, 20, "three", 10, Outcome::Written(at(12, "three"))),
        ],
    );
}

#[test]
fn a_lost_write_is_found() {
    // The write was acknowledged, and after a crash it is as if it had never been.
    let records = || {
        vec![
            create(0, 5, "one", Outcome::Written(at(10, "one"))),
            update(10, 15, "two", 10, Outcome::Written(at(11, "two"))),
        ]
    };
    let again = update(30, 35, "three", 10, Outcome::Written(at(11, "three")));
    let found = broken(and(records(), vec![again]));
    for wanted in [Guarantee::Linearizable, Guarantee::Genuine, Guarantee::Monotonic] {
        assert!(found.contains(&wanted), "{wanted:?}: {found:?}");
    }
    let conflict = update(30, 35, "three", 11, Outcome::Conflict);
    bad(Guarantee::Linearizable, and(records(), vec![conflict]));
}

#[test]
fn what_nobody_wrote_or_a_refused_write_left_is_found() {
    let one = || create(0, 5, "one", Outcome::Written(at(10, "one")));
    let strange = get(6, 7, At::Any, Outcome::Found(at(11, "strange")));
    bad(Guarantee::Genuine, vec![one(), strange]);
    let refused = update(6, 7, "two", 9, Outcome::Conflict);
    let seen = get(8, 9, At::Any, Outcome::Found(at(11, "two")));
    bad(Guarantee::Genuine, vec![one(), refused, seen]);
    let other = Version { hash: "other".into(), ..at(10, "one") };
    bad(Guarantee::Genuine, vec![one(), get(6, 7, At::Any, Outcome::Found(other))]);
    bad(Guarantee::Genuine, vec![create(0, 5, "one", Outcome::Written(at(10, "else")))]);
}

#[test]
fn a_revision_of_two_objects_is_found() {
    let items = [("k", at(10, "one")), ("l", at(10, "one"))];
    let one = create(0, 5, "one", Outcome::Written(at(10, "one")));
    bad(Guarantee::Atomic, vec![one, list(6, 7, At::Latest, &[10], &items)]);
}

#[test]
fn a_revision_that_goes_back_is_found() {
    let other = Asked::Create { key: "l".into(), main: "other".into() };
    let written = Outcome::Written(at(8, "other"));
    let one = create(0, 5, "one", Outcome::Written(at(10, "one")));
    bad(Guarantee::Monotonic, vec![one, operation(6, 7, other, written)]);
    let told = stream(0, Filter::Everything, Start::From(9), vec![bookmark(20)]);
    let late = create(50, 55, "one", Outcome::Written(at(15, "one")));
    bad(Guarantee::Monotonic, vec![told, late]);
}

#[test]
fn a_list_that_is_too_old_is_found() {
    let one = || create(0, 5, "one", Outcome::Written(at(10, "one")));
    bad(Guarantee::Fresh, vec![one(), list(6, 7, At::Latest, &[9], &[])]);
    bad(Guarantee::Fresh, vec![list(6, 7, At::NotOlderThan(10), &[9], &[])]);
    bad(Guarantee::Fresh, vec![list(6, 7, At::Exact(10), &[11], &[])]);
    let state = vec![end_of_state(9)];
    let watch = stream(6, Filter::Everything, Start::State(At::Latest), state);
    bad(Guarantee::Fresh, vec![one(), watch]);
    let old = get(20, 21, At::NotOlderThan(11), Outcome::Found(at(10, "one")));
    bad(Guarantee::Fresh, and(life()[..2].to_vec(), vec![old]));
    let gone = get(6, 7, At::NotOlderThan(10), Outcome::Absent);
    bad(Guarantee::Fresh, and(life()[..1].to_vec(), vec![gone]));
}

#[test]
fn a_list_that_is_no_snapshot_is_found() {
    let items = [("k", at(10, "one"))];
    let lists = [
        // Pages of different revisions; too old an item; one that is missing, or too much.
        list(30, 31, At::Any, &[10, 11], &items),
        list(30, 31, At::Any, &[11], &items),
        list(30, 31, At::Any, &[11], &[]),
        list(30, 31, At::Any, &[12], &[("k", at(11, "two-b"))]),
        list(30, 31, At::Any, &[10], &[items[0].clone(), items[0].clone()]),
    ];
    for list in lists {
        bad(Guarantee::Snapshot, and(life(), vec![everything(0, seen_life()), list]));
    }
    let state = vec![added(at(10, "one")), end_of_state(11)];
    let watch = stream(30, Filter::Everything, Start::State(At::Any), state);
    bad(Guarantee::Snapshot, and(life(), vec![watch]));
}

#[test]
fn an_event_that_is_missing_is_found() {
    for missing in 0..2 {
        let mut seen = seen_life();
        seen.remove(missing);
        let all = everything(0, seen_life());
        bad(Guarantee::Reliable, and(life(), vec![all, everything(0, seen)]));
    }
    // The last event is missed, too, once a bookmark says that it was there.
    let all = everything(0, seen_life());
    let short = vec![added(at(10, "one")), modified(at(11, "two-b")), bookmark(12)];
    bad(Guarantee::Reliable, and(life(), vec![all, everything(0, short)]));
    let resumed = stream(30, Filter::Everything, Start::From(10), vec![bookmark(12)]);
    bad(Guarantee::Reliable, and(life(), vec![resumed]));
}

#[test]
fn events_in_disorder_or_twice_are_found() {
    let [one, two, three]: [Seen; 3] = seen_life().try_into().unwrap();
    let mixed = vec![one.clone(), three.clone(), two.clone()];
    bad(Guarantee::Ordered, and(life(), vec![everything(0, mixed)]));
    let twice = vec![one.clone(), two.clone(), two.clone(), three];
    bad(Guarantee::Unique, and(life(), vec![everything(0, twice)]));
    let again = stream(30, Filter::Everything, Start::From(10), vec![one, two]);
    bad(Guarantee::Unique, and(life(), vec![again]));
}

#[test]
fn a_bookmark_before_its_events_is_found() {
    let [one, two, three]: [Seen; 3] = seen_life().try_into().unwrap();
    let early = vec![one.clone(), bookmark(11), two.clone(), three.clone()];
    bad(Guarantee::Bookmarkable, and(life(), vec![everything(0, early)]));
    let back = vec![one, two, bookmark(10), three];
    bad(Guarantee::Bookmarkable, and(life(), vec![everything(0, back)]));
}

#[test]
fn events_of_the_wrong_type_are_found() {
    let through_a = [
        // The object left the lane, which is a deletion of its earlier state.
        vec![added(at(10, "one")), modified(at(11, "two-b"))],
        vec![added(at(10, "one")), deleted(at(11, "two-b"))],
        vec![modified(at(10, "one"))],
    ];
    for seen in through_a {
        bad(Guarantee::Filtered, and(life(), vec![stream(0, lane("a"), Start::From(9), seen)]));
    }
    let through_b = vec![modified(at(11, "two-b"))];
    let records = vec![everything(0, seen_life()), stream(0, lane("b"), Start::From(9), through_b)];
    bad(Guarantee::Filtered, and(life(), records));
    let wrong = vec![added(at(10, "one")), added(at(11, "two-b"))];
    let all = everything(0, seen_life());
    bad(Guarantee::Genuine, and(life(), vec![all, everything(0, wrong)]));
}

#[test]
fn a_deletion_without_the_last_state_is_found() {
    let seen = vec![added(at(10, "one")), modified(at(11, "two-b")), deleted(at(12, "one"))];
    bad(Guarantee::LastState, and(life(), vec![everything(0, seen)]));
}

#[test]
fn a_revision_expires_only_once_it_may_be_forgotten() {
    let gone = || {
        let seen = vec![added(at(10, "one")), Seen::Error(410)];
        vec![
            everything(0, seen),
            operation(
                30,
                31,
                Asked::List { filter: Filter::Everything, at: At::Exact(10), limit: 0 },
                Outcome::Expired { asked: 10 },
            ),
        ]
    };
    bad(Guarantee::Resumable, and(life(), gone()));
    let compact = |revision| {
        let asked = Asked::Compact { revision };
        operation(1, 2, asked, Outcome::Done)
    };
    bad(Guarantee::Resumable, and(life(), and(gone(), vec![compact(10)])));
    good(and(life(), and(gone(), vec![compact(11)])));
    let mut refused = stream(40, Filter::Everything, Start::From(11), Vec::new());
    if let Record::Stream(stream) = &mut refused {
        stream.ended = Ended::Refused(410);
    }
    bad(Guarantee::Resumable, and(life(), vec![refused]));
}

#[test]
fn an_answer_for_a_wiped_store_is_found() {
    const WIPED: Moment = 5_000_000;
    const BEYOND: Moment = WIPED + 3;
    let wipe = || operation(WIPED, WIPED + 1, Asked::Wipe, Outcome::Done);
    let after = |record: Record| and(life()[..2].to_vec(), vec![wipe(), record]);
    // What the cache remembers was true, an object or an absence; a refusal is right, too.
    good(after(get(BEYOND, BEYOND + 1, At::Any, Outcome::Found(at(11, "two-b")))));
    good(after(get(BEYOND, BEYOND + 1, At::Latest, Outcome::Unknown("503".into()))));
    let absent = || get(BEYOND, BEYOND + 1, At::NotOlderThan(11), Outcome::Absent);
    good(and(life(), vec![wipe(), absent()]));
    good(and(life(), vec![everything(0, seen_life()), wipe(), absent()]));
    // The deletion came while the store was about to be wiped, so no watch showed it.
    let last_moment = operation(WIPED - 1_000_000, WIPED + 100, Asked::Wipe, Outcome::Done);
    let deletion = delete(WIPED - 10, WIPED, Outcome::Deleted);
    let mut unseen = life()[..2].to_vec();
    unseen.extend([
        last_moment,
        deletion,
        get(BEYOND + 100, BEYOND + 101, At::Any, Outcome::Absent),
    ]);
    good(unseen);
    // After a wipe the history of the old store is gone, so 410 is right.
    let seen = vec![added(at(10, "one")), Seen::Error(410)];
    bad(Guarantee::Resumable, and(life(), vec![everything(WIPED, seen.clone())]));
    good(and(life(), vec![wipe(), everything(WIPED, seen)]));
    for wrong in [
        get(BEYOND, BEYOND + 1, At::Latest, Outcome::Absent),
        get(BEYOND, BEYOND + 1, At::Any, Outcome::Absent),
        absent(),
        get(BEYOND, BEYOND + 1, At::Latest, Outcome::Found(at(11, "two-b"))),
        list(BEYOND, BEYOND + 1, At::Latest, &[11], &[("k", at(11, "two-b"))]),
        create(BEYOND, BEYOND + 1, "new", Outcome::Written(at(12, "new"))),
        create(BEYOND, BEYOND + 1, "new", Outcome::Exists),
    ] {
        bad(Guarantee::Refusing, after(wrong));
    }
    let watch =
        stream(BEYOND, Filter::Everything, Start::State(At::Latest), vec![end_of_state(11)]);
    bad(Guarantee::Refusing, after(watch));
}

#[test]
fn a_long_history_of_many_clients_is_judged_in_time() {
    // Eight clients that always overlap, every tenth write of unknown outcome.
    let mut records = vec![create(0, 5, "w0", Outcome::Written(at(10, "w0")))];
    for n in 1..800_u64 {
        let (begin, main) = (n * 10, format!("w{n}"));
        let outcome = match n % 10 {
            0 => Outcome::Unknown("lost".into()),
            _ => Outcome::Written(at(10 + n, &main)),
        };
        let asked = Asked::Patch { key: "k".into(), main: main.clone() };
        records.push(operation(begin, begin + 75, asked, outcome));
        let shown = Outcome::Found(at(10 + n, &main));
        records.push(get(begin + 5, begin + 80, At::Latest, shown));
    }
    let begun = std::time::Instant::now();
    good(records);
    assert!(begun.elapsed() < std::time::Duration::from_secs(180), "{:?}", begun.elapsed());
}
