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
    fn mode_rank(self) -> usize {
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
    pub fn from_modes(posture: SecurityPosture) -> Self {
        Self { runs: posture, told: posture, heard: true }
    }

    /// Heights on one ladder that this member is on or may come back on.
    fn mode_range<R: LadderRung>(
        self,
        mode_of: fn(&SecurityPosture) -> R,
    ) -> RangeInclusive<usize> {
        let (running_rank, assigned_rank) =
            (mode_of(&self.runs).mode_rank(), mode_of(&self.told).mode_rank());
        if assigned_rank == running_rank && !self.heard {
            // A move was taken back, and may have been stored nevertheless: up or down.
            return running_rank.saturating_sub(1)..=(running_rank + 1).min(R::ALL.len() - 1);
        }
        running_rank.min(assigned_rank)..=running_rank.max(assigned_rank)
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
pub fn next_stage(
    members: &[LadderMember],
    desired_modes: SecurityPosture,
    is_met: impl Fn(StepNeed) -> bool,
) -> NextRound {
    if members.is_empty() {
        return NextRound { posture: desired_modes, unmet: Vec::new() };
    }
    let posture = SecurityPosture {
        internode: nearest_mode(members, |modes| modes.internode, desired_modes.internode),
        client: next_client_mode(members, desired_modes),
        login: next_login_mode(members, desired_modes),
    };
    let mut allowed_modes = posture;
    let mut unmet = Vec::new();
    for need in [
        StepNeed::RolesReplicated,
        StepNeed::ClientsSendLogins,
        StepNeed::ClientsEncrypted,
        StepNeed::ClientsPlain,
    ] {
        let is_on_any = |matches_modes: &dyn Fn(&SecurityPosture) -> bool| {
            members.iter().any(|member| matches_modes(&member.runs) || matches_modes(&member.told))
        };
        let is_started = match need {
            StepNeed::RolesReplicated | StepNeed::ClientsSendLogins => {
                posture.login == LoginRung::Password
                    && !is_on_any(&|modes| modes.login == posture.login)
            }
            StepNeed::ClientsEncrypted => {
                posture.client == ClientRung::Required
                    && !is_on_any(&|modes| modes.client == posture.client)
            }
            StepNeed::ClientsPlain => {
                posture.client == ClientRung::Off
                    && !is_on_any(&|modes| modes.client == posture.client)
            }
        };
        if !is_started || is_met(need) {
            continue;
        }
        unmet.push(need);
        match need {
            StepNeed::RolesReplicated | StepNeed::ClientsSendLogins => {
                allowed_modes.login = LoginRung::Off;
            }
            StepNeed::ClientsEncrypted | StepNeed::ClientsPlain => {
                allowed_modes.client = ClientRung::Optional;
            }
        }
    }
    // A round that cannot be begun as a whole is not begun by half: that would be one more restart.
    let first_modes = members[0].runs;
    let is_settled =
        members.iter().all(|member| member.runs == first_modes && member.told == first_modes);
    let posture = if !unmet.is_empty() && is_settled { first_modes } else { allowed_modes };
    NextRound { posture, unmet }
}

/// Returns the rung that is nearest to `wanted` of those that go together with each member. Where none
/// does, members are parted already: then the one that is least far from any of them.
fn nearest_mode<R: LadderRung>(
    members: &[LadderMember],
    mode_of: fn(&SecurityPosture) -> R,
    desired_mode: R,
) -> R {
    let distance = |mode: R| {
        let rank = mode.mode_rank();
        let member_distance = |member: &LadderMember| {
            let range = member.mode_range(mode_of);
            rank.abs_diff(*range.start()).max(rank.abs_diff(*range.end()))
        };
        members.iter().map(member_distance).max().unwrap_or_default().max(1)
    };
    let distance_key =
        |mode: &&R| (distance(**mode), mode.mode_rank().abs_diff(desired_mode.mode_rank()));
    R::ALL.iter().min_by_key(distance_key).copied().unwrap_or(desired_mode)
}

/// Towards clients the last rung of either direction comes in the last round.
fn next_client_mode(members: &[LadderMember], desired_modes: SecurityPosture) -> ClientRung {
    let next_mode = nearest_mode(members, |modes| modes.client, desired_modes.client);
    let is_started = members.iter().any(|member| member.runs.client == next_mode);
    let is_due = match next_mode {
        ClientRung::Required => {
            is_started || has_reached(members, SecurityPosture::SECOND_ROUND, desired_modes)
        }
        ClientRung::Off => {
            is_started || has_left(members, SecurityPosture::FIRST_ROUND, desired_modes)
        }
        ClientRung::Optional => true,
    };
    if is_due { next_mode } else { ClientRung::Optional }
}

/// Passwords come in the second round, and go in the second from the end. Whether a client says who it
/// is makes no difference to a node that does not ask.
fn next_login_mode(members: &[LadderMember], desired_modes: SecurityPosture) -> LoginRung {
    let is_everywhere = |mode| members.iter().all(|member| member.runs.login == mode);
    match desired_modes.login {
        LoginRung::Password if is_everywhere(LoginRung::Off) => {
            let is_due = has_reached(members, SecurityPosture::FIRST_ROUND, desired_modes);
            if is_due { LoginRung::Password } else { LoginRung::Off }
        }
        LoginRung::Off if is_everywhere(LoginRung::Password) => {
            let is_due = has_left(members, SecurityPosture::SECOND_ROUND, desired_modes);
            if is_due { LoginRung::Off } else { LoginRung::Password }
        }
        mode => mode,
    }
}

/// Is each member at least on what `round` has, as far as that is wanted?
fn has_reached(
    members: &[LadderMember],
    stage: SecurityPosture,
    desired_modes: SecurityPosture,
) -> bool {
    is_through(members, stage, desired_modes, |heights, round, wanted| {
        *heights.start() >= round.min(wanted)
    })
}

/// Is each member at most on what `round` has, as far as that is wanted?
fn has_left(
    members: &[LadderMember],
    stage: SecurityPosture,
    desired_modes: SecurityPosture,
) -> bool {
    is_through(members, stage, desired_modes, |heights, round, wanted| {
        *heights.end() <= round.max(wanted)
    })
}

fn is_through(
    members: &[LadderMember],
    stage: SecurityPosture,
    desired_modes: SecurityPosture,
    is_met: fn(&RangeInclusive<usize>, usize, usize) -> bool,
) -> bool {
    fn is_member_through<R: LadderRung>(
        member: LadderMember,
        mode_of: fn(&SecurityPosture) -> R,
        stage: SecurityPosture,
        desired_modes: SecurityPosture,
        is_met: fn(&RangeInclusive<usize>, usize, usize) -> bool,
    ) -> bool {
        let (stage_rank, desired_rank) =
            (mode_of(&stage).mode_rank(), mode_of(&desired_modes).mode_rank());
        is_met(&member.mode_range(mode_of), stage_rank, desired_rank)
    }
    members.iter().all(|&member| {
        is_member_through(member, |modes| modes.internode, stage, desired_modes, is_met)
            && is_member_through(member, |modes| modes.client, stage, desired_modes, is_met)
            && is_member_through(member, |modes| modes.login, stage, desired_modes, is_met)
    })
}
