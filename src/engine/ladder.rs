//! Turning security on and off, rung by rung: where all nodes go next, so that on the way each is able to
//! talk to each other one, and each client to all of them.
//!
//! What counts is what members *run*, and what they may come back on after a crash: never what was
//! written, or how long ago. So a member that is silent holds up the others by what it ran last, and an
//! edit at any moment, also back, has a way. `switch` is the other manner: for databases whose nodes
//! all change at once.

pub mod switch;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

/// Encryption between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InternodeRung {
    /// Takes and sends plain.
    #[default]
    Off,
    /// Takes both, sends plain.
    Allow,
    /// Takes both, sends TLS.
    Prefer,
    /// Takes and sends TLS.
    Required,
}

/// Encryption towards clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientRung {
    #[default]
    Off,
    /// Takes both.
    Optional,
    Required,
}

/// Whether clients are asked who they are. Those that say it unasked are served all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoginRung {
    #[default]
    Off,
    Password,
}

/// Rungs of one ladder, from the lowest. A node goes together with one on its own rung or on a
/// neighbouring one, and with no other.
pub trait LadderRung: Copy + Ord + 'static {
    const ALL: &'static [Self];

    /// Place on the ladder, from the lowest.
    fn height(self) -> usize {
        Self::ALL.iter().take_while(|rung| **rung < self).count()
    }
}

impl LadderRung for InternodeRung {
    const ALL: &'static [Self] = &[Self::Off, Self::Allow, Self::Prefer, Self::Required];
}

impl LadderRung for ClientRung {
    const ALL: &'static [Self] = &[Self::Off, Self::Optional, Self::Required];
}

impl LadderRung for LoginRung {
    const ALL: &'static [Self] = &[Self::Off, Self::Password];
}

/// Where a node stands on each of the three ladders. They move together, in one restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecurityPosture {
    pub internode: InternodeRung,
    pub client: ClientRung,
    pub login: LoginRung,
}

impl SecurityPosture {
    /// What all nodes are on after the second of the three rounds, and must be on before the third.
    const SECOND_ROUND: Self = Self {
        internode: InternodeRung::Prefer,
        client: ClientRung::Optional,
        login: LoginRung::Password,
    };
    /// What all nodes are on after the first round.
    const FIRST_ROUND: Self = Self {
        internode: InternodeRung::Allow,
        client: ClientRung::Optional,
        login: LoginRung::Off,
    };
}

/// One member of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LadderMember {
    /// What it ran when it was last heard.
    pub runs: SecurityPosture,
    /// What it was told last.
    pub told: SecurityPosture,
    /// Whether it said since then that it stores what it was told. Until then it may come back on
    /// what it was told before.
    pub heard: bool,
}

impl LadderMember {
    /// A member that runs and stores what it was told.
    pub fn settled(posture: SecurityPosture) -> Self {
        Self { runs: posture, told: posture, heard: true }
    }

    /// Heights on one ladder that this member is on or may come back on.
    fn heights<R: LadderRung>(self, ladder: fn(&SecurityPosture) -> R) -> RangeInclusive<usize> {
        let (runs, told) = (ladder(&self.runs).height(), ladder(&self.told).height());
        if told == runs && !self.heard {
            // A move was taken back, and may have been stored nevertheless: up or down.
            return runs.saturating_sub(1)..=(runs + 1).min(R::ALL.len() - 1);
        }
        runs.min(told)..=runs.max(told)
    }
}

/// What must hold, beside what nodes run, before a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepNeed {
    /// Users are in the database, on each node.
    RolesReplicated,
    /// Clients send credentials already.
    ClientsSendLogins,
    /// No client is connected without TLS.
    ClientsEncrypted,
    /// No client is connected with TLS.
    ClientsPlain,
}

/// Where all members are to go next: one restart of each that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextRound {
    pub posture: SecurityPosture,
    /// What does not hold, and keeps the next round from being begun.
    pub unmet: Vec<StepNeed>,
}

/// Returns where all members are to go next on their way to `wanted`. A member that goes there goes
/// together with each other one, wherever that is by now, so it does not matter which goes first.
/// `is_met` is asked only for what no member has begun.
pub fn next_round(
    members: &[LadderMember],
    wanted: SecurityPosture,
    is_met: impl Fn(StepNeed) -> bool,
) -> NextRound {
    if members.is_empty() {
        return NextRound { posture: wanted, unmet: Vec::new() };
    }
    let posture = SecurityPosture {
        internode: nearest(members, |on| on.internode, wanted.internode),
        client: client(members, wanted),
        login: login(members, wanted),
    };
    let mut held = posture;
    let mut unmet = Vec::new();
    for need in [
        StepNeed::RolesReplicated,
        StepNeed::ClientsSendLogins,
        StepNeed::ClientsEncrypted,
        StepNeed::ClientsPlain,
    ] {
        let on = |is: &dyn Fn(&SecurityPosture) -> bool| {
            members.iter().any(|member| is(&member.runs) || is(&member.told))
        };
        let begins = match need {
            StepNeed::RolesReplicated | StepNeed::ClientsSendLogins => {
                posture.login == LoginRung::Password && !on(&|it| it.login == posture.login)
            }
            StepNeed::ClientsEncrypted => {
                posture.client == ClientRung::Required && !on(&|it| it.client == posture.client)
            }
            StepNeed::ClientsPlain => {
                posture.client == ClientRung::Off && !on(&|it| it.client == posture.client)
            }
        };
        if !begins || is_met(need) {
            continue;
        }
        unmet.push(need);
        match need {
            StepNeed::RolesReplicated | StepNeed::ClientsSendLogins => {
                held.login = LoginRung::Off;
            }
            StepNeed::ClientsEncrypted | StepNeed::ClientsPlain => {
                held.client = ClientRung::Optional;
            }
        }
    }
    // A round that cannot be begun as a whole is not begun by half: that would be one more restart.
    let first = members[0].runs;
    let is_settled = members.iter().all(|member| member.runs == first && member.told == first);
    let posture = if !unmet.is_empty() && is_settled { first } else { held };
    NextRound { posture, unmet }
}

/// Returns the rung that is nearest to `wanted` of those that go together with each member. Where none
/// does, members are parted already: then the one that is least far from any of them.
fn nearest<R: LadderRung>(
    members: &[LadderMember],
    ladder: fn(&SecurityPosture) -> R,
    wanted: R,
) -> R {
    let distance = |rung: R| {
        let height = rung.height();
        let of = |member: &LadderMember| {
            let heights = member.heights(ladder);
            height.abs_diff(*heights.start()).max(height.abs_diff(*heights.end()))
        };
        members.iter().map(of).max().unwrap_or_default().max(1)
    };
    let away = |rung: &&R| (distance(**rung), rung.height().abs_diff(wanted.height()));
    R::ALL.iter().min_by_key(away).copied().unwrap_or(wanted)
}

/// Towards clients the last rung of either direction comes in the last round.
fn client(members: &[LadderMember], wanted: SecurityPosture) -> ClientRung {
    let next = nearest(members, |on| on.client, wanted.client);
    let begun = members.iter().any(|member| member.runs.client == next);
    let is_due = match next {
        ClientRung::Required => begun || reached(members, SecurityPosture::SECOND_ROUND, wanted),
        ClientRung::Off => begun || left(members, SecurityPosture::FIRST_ROUND, wanted),
        ClientRung::Optional => true,
    };
    if is_due { next } else { ClientRung::Optional }
}

/// Passwords come in the second round, and go in the second from the end. Whether a client says who it
/// is makes no difference to a node that does not ask.
fn login(members: &[LadderMember], wanted: SecurityPosture) -> LoginRung {
    let all = |rung| members.iter().all(|member| member.runs.login == rung);
    match wanted.login {
        LoginRung::Password if all(LoginRung::Off) => {
            let is_due = reached(members, SecurityPosture::FIRST_ROUND, wanted);
            if is_due { LoginRung::Password } else { LoginRung::Off }
        }
        LoginRung::Off if all(LoginRung::Password) => {
            let is_due = left(members, SecurityPosture::SECOND_ROUND, wanted);
            if is_due { LoginRung::Off } else { LoginRung::Password }
        }
        rung => rung,
    }
}

/// Is each member at least on what `round` has, as far as that is wanted?
fn reached(members: &[LadderMember], round: SecurityPosture, wanted: SecurityPosture) -> bool {
    is_through(members, round, wanted, |heights, round, wanted| {
        *heights.start() >= round.min(wanted)
    })
}

/// Is each member at most on what `round` has, as far as that is wanted?
fn left(members: &[LadderMember], round: SecurityPosture, wanted: SecurityPosture) -> bool {
    is_through(members, round, wanted, |heights, round, wanted| *heights.end() <= round.max(wanted))
}

fn is_through(
    members: &[LadderMember],
    round: SecurityPosture,
    wanted: SecurityPosture,
    is_there: fn(&RangeInclusive<usize>, usize, usize) -> bool,
) -> bool {
    fn on<R: LadderRung>(
        member: LadderMember,
        ladder: fn(&SecurityPosture) -> R,
        round: SecurityPosture,
        wanted: SecurityPosture,
        is_there: fn(&RangeInclusive<usize>, usize, usize) -> bool,
    ) -> bool {
        let (round, wanted) = (ladder(&round).height(), ladder(&wanted).height());
        is_there(&member.heights(ladder), round, wanted)
    }
    members.iter().all(|&member| {
        on(member, |it| it.internode, round, wanted, is_there)
            && on(member, |it| it.client, round, wanted, is_there)
            && on(member, |it| it.login, round, wanted, is_there)
    })
}
