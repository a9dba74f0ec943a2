//! Which node is primary, and which one becomes primary when that is gone. Pure.
//!
//! A write that one replica acknowledged (`WAIT 1`) must outlive the primary, whichever replica
//! that was. So all members but the primary must be heard, and each must have released the primary:
//! it has stopped to take writes from it, and wrote down that it never will again. From then on no
//! write of the primary is acknowledged, and one member has all writes that were: the member that
//! has most. A release is never taken back, so every leader finds the same successor.
//!
//! A primary that was down therefore goes on only when a member that knew it has not released it:
//! then no other node can have succeeded it. The primary has all that others acknowledged, because
//! every Redis has a write on its disk before it sends it on or acknowledges it (`appendfsync
//! always`; with `everysec` a process that is killed lacks up to two seconds of what its replicas
//! have).
//!
//! A pilot changes only its own Redis, by [`next`]; the leading pilot asks the successor, by
//! [`elect`].

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

use super::view::{Record, View};

/// A node whose volume holds data, and so perhaps writes that no other node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Name of the member's Pilot.
    pub(crate) name: String,
    pub(crate) address: Option<SocketAddr>,
}

/// The view of each member; `None`: it did not answer.
pub(crate) type Views = [(Member, Option<View>)];

pub(crate) fn heard(all: &Views) -> impl Iterator<Item = (&Member, &View)> {
    all.iter().filter_map(|(member, view)| Some((member, view.as_ref()?)))
}

/// The present primary among these.
pub(crate) fn primary(all: &Views) -> Option<(&Member, &View)> {
    let primaries = heard(all).filter(|(member, view)| view.is_primary(&member.name));
    primaries.max_by_key(|(_, view)| view.epoch())
}

/// The newest record, as long as its primary is not seen at work: neither by this pilot's look, nor
/// by a member that is linked to it.
pub(crate) fn orphaned(all: &Views) -> Option<&Record> {
    let record = heard(all).filter_map(|(_, view)| view.record.as_ref()).max()?;
    let works = match all.iter().find(|(member, _)| member.name == record.primary) {
        Some((_, Some(view))) => view.is_primary(&record.primary),
        // A member is linked to the primary; to any node, where the primary's address is not known.
        known => heard(all).any(|(_, view)| {
            view.linked && known.is_none_or(|(member, _)| view.follows == member.address)
        }),
    };
    (!works).then_some(record)
}

/// How long a primary may be away.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long [`orphaned`] has named the same primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Absence {
    pub(crate) lasts: Duration,
    /// The primary's pilot is silent, too, or says that its node is down.
    pub(crate) silent: bool,
}

/// What a pilot does to its own Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Stay,
    /// Follow this primary. `None`: take no writes, and wait.
    Follow(Option<SocketAddr>),
    /// Follow no primary, and promise not to follow that of this epoch again.
    Release(u64),
    /// Become the primary, and record that.
    Lead(Record),
}

/// `all` are all members with `own` as the last. `founds`: the node was told to begin a cluster.
pub(crate) fn next(all: &Views, own: &View, founds: bool, absence: Absence) -> Step {
    let Some(((me, _), others)) = all.split_last() else { return Step::Stay };
    let (me, epoch, released) = (&*me.name, own.epoch(), own.released.epoch);
    let leads = own.is_primary(me);
    let lead = |epoch, run| Step::Lead(Record { epoch, run, primary: me.to_owned() });
    if let Some((member, view)) = primary(others)
        && (view.epoch() > epoch || view.epoch() == epoch && !leads)
        && view.epoch() > released
    {
        let there = own.follows == member.address;
        return if there { Step::Stay } else { Step::Follow(member.address) };
    }
    let all_are = |test: &dyn Fn(&View) -> bool| heard(others).all(|(_, view)| test(view));
    let is_over = !all_are(&|view| view.released.epoch < epoch);
    match &own.record {
        _ if leads && is_over => Step::Follow(None),
        _ if leads => Step::Stay,
        None if founds && all_are(&|view| view.record.is_none()) => lead(1, 1),
        // Or a person made the node a master, where no pilot can know which member has most.
        Some(_) if released == epoch && (own.master || own.asked == Some(epoch)) => {
            lead(epoch + 1, 1)
        }
        _ if own.master => Step::Follow(None),
        // The node was the primary, and was down.
        Some(record) if record.primary == me && released < epoch && !is_over => {
            let unsurpassed = all_are(&|view| view.epoch() <= epoch);
            let vouched = others.iter().all(|(_, view)| view.is_some())
                || !all_are(&|view| view.record.is_none());
            if unsurpassed && vouched { lead(epoch, record.run + 1) } else { Step::Stay }
        }
        _ => match orphaned(all) {
            Some(gone)
                if gone.primary != me
                    && gone.epoch > released
                    && is_given_up(all, gone, absence) =>
            {
                Step::Release(gone.epoch)
            }
            _ => Step::Stay,
        },
    }
}

/// Can the primary be succeeded, and was it waited for long enough?
fn is_given_up(all: &Views, gone: &Record, Absence { lasts, silent }: Absence) -> bool {
    let mut rest = all.iter().filter(|(member, _)| member.name != gone.primary);
    // One node alone cannot tell a primary that is gone from a cable of its own that is cut.
    let agreed = silent || rest.clone().count() > 1;
    agreed && lasts >= PATIENCE && rest.all(|(_, view)| view.is_some())
}

/// The member to succeed the primary, and the primary's epoch; `all` are all members. An error says
/// what an election waits for.
pub(crate) fn elect(all: &Views) -> Result<Option<(SocketAddr, u64)>, String> {
    let Some(gone) = heard(all).filter_map(|(_, view)| view.record.as_ref()).max() else {
        return Ok(None);
    };
    let rest = all.iter().filter(|(member, _)| member.name != gone.primary);
    if let Some((silent, _)) = rest.clone().find(|(_, view)| view.is_none()) {
        let why = format!("waits for {}: it may have writes that nobody else has", silent.name);
        return if orphaned(all).is_some() { Err(why) } else { Ok(None) };
    }
    let rest: Vec<_> = heard(all).filter(|(member, _)| member.name != gone.primary).collect();
    if rest.is_empty() || rest.iter().any(|(_, view)| view.released.epoch < gone.epoch) {
        return Ok(None);
    }
    let newest = rest.iter().filter_map(|(_, view)| view.record.as_ref()).max();
    if newest.is_none_or(|newest| newest.epoch < gone.epoch) {
        return Err(format!("waits for {}: nobody else has what it wrote", gone.primary));
    }
    let mut fit: Vec<_> = rest.iter().filter(|(_, view)| view.record.as_ref() == newest).collect();
    fit.sort_by_key(|(member, view)| (view.released.offset, &member.name));
    // After the sort, a member that does not know how much it has is the first.
    match &fit[..] {
        [(unsure, view), _, ..] if view.released.offset.is_none() => Err(format!(
            "{} was started anew and does not know how much it has: make the member that shall be \
             primary a master, by REPLICAOF NO ONE",
            unsure.name
        )),
        [.., (best, _)] => Ok(best.address.map(|address| (address, gone.epoch))),
        [] => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::view::Released, *};

    fn at(name: &str) -> Option<SocketAddr> {
        format!("10.0.0.{}:6379", name.as_bytes()[0]).parse().ok()
    }

    fn by(primary: &str, epoch: u64, run: u64) -> Record {
        Record { epoch, run, primary: primary.to_owned() }
    }

    /// A view in epoch 3, whose primary is `a`.
    fn view(word: &str) -> Option<View> {
        let cut = View { record: Some(by("a", 3, 1)), ..View::default() };
        let free = |offset| View { released: Released { epoch: 3, offset }, ..cut.clone() };
        Some(match word {
            "silent" => return None,
            "new" => View::default(),
            "works" => View { master: true, ..cut },
            "linked" => View { follows: at("a"), linked: true, ..cut },
            "free" => free(None),
            "free-7" => free(Some(7)),
            "free-9" => free(Some(9)),
            "free-asked" => View { asked: Some(3), ..free(Some(9)) },
            "free-late" => View { asked: Some(2), ..free(Some(9)) },
            "free-master" => View { master: true, ..free(None) },
            "asked" => View { asked: Some(3), ..cut },
            "old-free-9" => View { record: Some(by("x", 2, 1)), ..free(Some(9)) },
            "run-2-free-1" => View { record: Some(by("a", 3, 2)), ..free(Some(1)) },
            "b-works" => View { master: true, record: Some(by("b", 4, 1)), ..cut },
            "b-cut" => View { record: Some(by("b", 4, 1)), ..cut },
            _ => cut,
        })
    }

    fn all(words: &str) -> Vec<(Member, Option<View>)> {
        let one = |word: &str| {
            let (name, word) = word.split_once(':').unwrap();
            (Member { name: name.to_owned(), address: at(name) }, view(word))
        };
        words.split(' ').map(one).collect()
    }

    #[test]
    fn a_pilot_changes_its_node_only_where_no_acknowledged_write_can_be_lost() {
        let short = Absence { lasts: Duration::from_secs(9), silent: true };
        let long = Absence { lasts: PATIENCE, silent: false };
        let certain = Absence { silent: true, ..long };
        let (stay, fence, release) = (Step::Stay, Step::Follow(None), Step::Release(3));
        let (follow, succeed) = (Step::Follow(at("b")), Step::Lead(by("c", 4, 1)));
        let goes_on = Step::Lead(by("a", 3, 2));
        // The last member is the pilot's own node.
        for (members, absence, step) in [
            ("b:b-works c:new", long, &follow),
            ("a:works b:b-works c:linked", long, &follow),
            ("a:works b:b-works c:free-7", long, &follow),
            ("b:b-works a:works", long, &follow),
            ("a:works c:free-7", long, &stay),
            ("a:silent b:cut c:cut", short, &stay),
            ("a:silent b:cut c:cut", long, &release),
            ("a:silent b:cut c:new", long, &release),
            ("a:silent b:linked c:cut", long, &stay),
            ("a:works b:cut c:cut", certain, &Step::Follow(at("a"))),
            ("a:silent b:silent c:cut", certain, &stay),
            ("a:silent c:cut", long, &stay),
            ("a:silent c:cut", certain, &release),
            ("a:silent c:free-asked", long, &succeed),
            ("a:silent c:free-late", long, &stay),
            ("a:silent c:asked", long, &stay),
            ("a:silent c:free-master", long, &succeed),
            ("a:silent c:works", long, &fence),
            // The primary was down.
            ("a:cut", long, &goes_on),
            ("b:cut c:silent a:cut", long, &goes_on),
            ("b:new a:cut", long, &goes_on),
            ("b:silent a:cut", long, &stay),
            ("b:new c:silent a:cut", long, &stay),
            ("b:cut c:free-7 a:cut", long, &stay),
            ("c:b-cut a:cut", short, &stay),
            // The primary was not heard.
            ("b:linked c:free-7 a:works", long, &fence),
        ] {
            let views = all(members);
            let own = views.last().unwrap().1.clone().unwrap();
            assert_eq!(next(&views, &own, false, absence), *step, "{members} {absence:?}");
        }
        let founds = |members| next(&all(members), &View::default(), true, short);
        assert_eq!(founds("a:new b:new"), Step::Lead(by("b", 1, 1)));
        assert_eq!(founds("a:cut b:new"), stay);
    }

    #[test]
    fn the_one_that_has_most_succeeds_when_all_were_heard_and_have_released() {
        for (members, told) in [
            ("a:works", ""),
            ("a:works b:cut c:silent", ""),
            ("a:silent b:cut c:linked", ""),
            ("a:silent b:free-7 c:cut", ""),
            ("a:silent b:free-7 c:free-9", "c"),
            ("a:works b:free-9 c:free-7", "b"),
            ("a:silent b:free-9 c:free-9", "c"),
            // Offsets of two runs cannot be compared, and the later one began with all.
            ("a:silent b:free-9 c:run-2-free-1", "c"),
            ("a:silent b:free c:old-free-9", "b"),
            ("a:silent b:free", "b"),
            ("a:silent b:cut c:silent", "waits for c"),
            ("a:silent b:free-7 c:silent", "waits for c"),
            ("a:silent b:free-7 c:free", "c was started anew"),
            ("a:cut b:old-free-9", "waits for a: nobody else has"),
        ] {
            match elect(&all(members)) {
                Ok(None) => assert_eq!(told, "", "{members}"),
                Ok(Some((best, _))) => assert_eq!(at(told), Some(best), "{members}"),
                Err(why) => assert!(told.len() > 1 && why.contains(told), "{members}: {why}"),
            }
        }
    }
}
