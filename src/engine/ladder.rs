//! Turning security on and off, rung by rung: which move of one node leaves each node able to talk
//! to each other one, and each client able to talk to all of them.
//!
//! What counts is what members *run*, and what they may come back on after a crash: never what was
//! written, or how long ago. So a member that is silent holds up the others by what it ran last, a
//! member is moved only when it is known to be where it was moved before, and an edit at any moment,
//! also back, has a way. `switch` is the other manner: for databases whose nodes all change at once.

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

    /// The next rung on the way to `wanted`, or the same where that is reached.
    #[must_use]
    fn towards(self, wanted: Self) -> Self {
        let height = self.height();
        match self.cmp(&wanted) {
            std::cmp::Ordering::Less => Self::ALL[height + 1],
            std::cmp::Ordering::Equal => self,
            std::cmp::Ordering::Greater => Self::ALL[height - 1],
        }
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
        if self.told == self.runs && !self.heard {
            // A move was taken back, and may have been stored nevertheless: up or down.
            return runs.saturating_sub(1)..=(runs + 1).min(R::ALL.len() - 1);
        }
        runs.min(told)..=runs.max(told)
    }

    /// What the member is to be told to take its move back, or `None` when it is in no move. This is
    /// always allowed: it goes back to what the others were in step with before.
    pub fn set_back(self) -> Option<SecurityPosture> {
        (self.told != self.runs).then_some(self.runs)
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

/// The next move of a member: one restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LadderStep {
    pub posture: SecurityPosture,
    pub needs: Vec<StepNeed>,
}

/// Why a member may not move yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LadderHold {
    /// It has not said that it runs what it was told before.
    OwnMove,
    /// The next rung sends TLS, and there are members that may not take it.
    PeersAcceptTls,
    /// The next rung takes TLS only, and there are members that may send plain.
    PeersSendTls,
    /// The next rung sends plain, and there are members that may not take it.
    PeersAcceptPlain,
    /// The next rung takes plain only, and there are members that may send TLS.
    PeersSendPlain,
    /// Clients must be able to use all members in one manner, and there are members that are two
    /// rungs away.
    OneForClients,
    /// There are members that have a round of the three before them.
    EarlierRound,
}

/// Why a member may not move, and the members that this is about: their places in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldStep {
    pub hold: LadderHold,
    pub members: Vec<usize>,
}

/// Returns the next move of `members[place]` on its way to `wanted`, or `None` when it is told that
/// already.
///
/// # Errors
/// What holds it, and whom to look at.
pub fn next_step(
    place: usize,
    members: &[LadderMember],
    wanted: SecurityPosture,
) -> Result<Option<LadderStep>, HeldStep> {
    let own = &members[place];
    if own.told == wanted && own.heard && own.runs == wanted {
        return Ok(None);
    }
    if own.told != own.runs || !own.heard {
        return Err(HeldStep { hold: LadderHold::OwnMove, members: vec![place] });
    }
    let others = OtherMembers { place, members };
    let now = own.runs;
    let internode = others.internode(now.internode, wanted.internode);
    let client = others.client(now.client, wanted);
    let login = others.login(now.login, wanted);
    let mut held = [internode.clone().err(), client.clone().err(), login.clone().err()];
    let posture = SecurityPosture {
        internode: internode.unwrap_or(now.internode),
        client: client.unwrap_or(now.client),
        login: login.unwrap_or(now.login),
    };
    if posture == now {
        let first = held.iter_mut().find_map(Option::take);
        // What is not where it is wanted either moves or is held.
        let hold = HeldStep { hold: LadderHold::OwnMove, members: vec![place] };
        return Err(first.unwrap_or(hold));
    }
    Ok(Some(LadderStep { posture, needs: needs(now, posture) }))
}

fn needs(now: SecurityPosture, next: SecurityPosture) -> Vec<StepNeed> {
    let mut needs = Vec::new();
    if next.login > now.login {
        needs.extend([StepNeed::RolesReplicated, StepNeed::ClientsSendLogins]);
    }
    if next.client > now.client && next.client == ClientRung::Required {
        needs.push(StepNeed::ClientsEncrypted);
    }
    if next.client < now.client && next.client == ClientRung::Off {
        needs.push(StepNeed::ClientsPlain);
    }
    needs
}

/// Returns where a new node starts: as near to `wanted` as the members let it. `None` while members
/// are in moves that no rung goes together with; these end by themselves.
pub fn starting_posture(
    members: &[LadderMember],
    wanted: SecurityPosture,
) -> Option<SecurityPosture> {
    fn nearest<R: LadderRung>(
        members: &[LadderMember],
        ladder: fn(&SecurityPosture) -> R,
        wanted: R,
    ) -> Option<R> {
        let fits = |rung: &&R| {
            let height = rung.height();
            members.iter().all(|member| is_near(height, &member.heights(ladder)))
        };
        let rungs = R::ALL.iter().filter(fits);
        rungs.min_by_key(|rung| rung.height().abs_diff(wanted.height())).copied()
    }
    // What clients must be ready for begins with a member that was there when they were.
    let on = |is: &dyn Fn(&SecurityPosture) -> bool| {
        members.iter().any(|member| is(&member.runs) || is(&member.told))
    };
    let is_first = members.is_empty();
    let client = nearest(members, |on| on.client, wanted.client)?;
    let has_client = is_first || on(&|posture| posture.client == client);
    let has_login = is_first || on(&|posture| posture.login == wanted.login);
    let other_login = members.first().map_or(wanted.login, |member| member.runs.login);
    Some(SecurityPosture {
        internode: nearest(members, |on| on.internode, wanted.internode)?,
        client: if has_client { client } else { ClientRung::Optional },
        login: if has_login { wanted.login } else { other_login },
    })
}

/// Do nodes on `height` go together with nodes on each of `heights`?
fn is_near(height: usize, heights: &RangeInclusive<usize>) -> bool {
    height.abs_diff(*heights.start()) <= 1 && height.abs_diff(*heights.end()) <= 1
}

/// The members beside the one that is to move.
struct OtherMembers<'a> {
    place: usize,
    members: &'a [LadderMember],
}

impl OtherMembers<'_> {
    /// Passes when no other member has a height that `is_wrong`.
    fn hold<R: LadderRung>(
        &self,
        hold: LadderHold,
        ladder: fn(&SecurityPosture) -> R,
        is_wrong: impl Fn(&RangeInclusive<usize>) -> bool,
    ) -> Result<(), HeldStep> {
        let others = self.members.iter().enumerate().filter(|(place, _)| *place != self.place);
        let wrong = others.filter(|(_, member)| is_wrong(&member.heights(ladder)));
        let members: Vec<_> = wrong.map(|(place, _)| place).collect();
        if members.is_empty() { Ok(()) } else { Err(HeldStep { hold, members }) }
    }

    fn internode(
        &self,
        now: InternodeRung,
        wanted: InternodeRung,
    ) -> Result<InternodeRung, HeldStep> {
        let next = now.towards(wanted);
        if next == now {
            return Ok(now);
        }
        let hold = match (next, next > now) {
            (InternodeRung::Prefer, true) => LadderHold::PeersAcceptTls,
            (InternodeRung::Required, _) => LadderHold::PeersSendTls,
            (InternodeRung::Off, _) => LadderHold::PeersSendPlain,
            // To Allow from below, and to Prefer from above, nothing holds.
            (InternodeRung::Allow | InternodeRung::Prefer, _) => LadderHold::PeersAcceptPlain,
        };
        let next_height = next.height();
        self.hold(hold, |on| on.internode, |heights| !is_near(next_height, heights))?;
        Ok(next)
    }

    /// Towards clients the last rung of either direction comes in the last round.
    fn client(&self, now: ClientRung, wanted: SecurityPosture) -> Result<ClientRung, HeldStep> {
        let next = now.towards(wanted.client);
        if next == now {
            return Ok(now);
        }
        let next_height = next.height();
        self.hold(
            LadderHold::OneForClients,
            |on| on.client,
            |heights| !is_near(next_height, heights),
        )?;
        if next > now && next == ClientRung::Required {
            self.reached(SecurityPosture::SECOND_ROUND, wanted)?;
        }
        if next < now && next == ClientRung::Off {
            self.left(SecurityPosture::FIRST_ROUND, wanted)?;
        }
        Ok(next)
    }

    /// Passwords come in the second round, and go in the second from the end.
    fn login(&self, now: LoginRung, wanted: SecurityPosture) -> Result<LoginRung, HeldStep> {
        let next = now.towards(wanted.login);
        if next > now {
            self.reached(SecurityPosture::FIRST_ROUND, wanted)?;
        }
        if next < now {
            self.left(SecurityPosture::SECOND_ROUND, wanted)?;
        }
        Ok(next)
    }

    /// Is each member, the moving one too, at least on what `round` has, as far as that is wanted?
    fn reached(&self, round: SecurityPosture, wanted: SecurityPosture) -> Result<(), HeldStep> {
        self.round(round, wanted, |heights, round, wanted| *heights.start() >= round.min(wanted))
    }

    /// Is each member, the moving one too, at most on what `round` has, as far as that is wanted?
    fn left(&self, round: SecurityPosture, wanted: SecurityPosture) -> Result<(), HeldStep> {
        self.round(round, wanted, |heights, round, wanted| *heights.end() <= round.max(wanted))
    }

    fn round(
        &self,
        round: SecurityPosture,
        wanted: SecurityPosture,
        is_there: fn(&RangeInclusive<usize>, usize, usize) -> bool,
    ) -> Result<(), HeldStep> {
        let members = self.members.iter().enumerate();
        let wrong = members.filter(|(_, member)| {
            let internode = is_there(
                &member.heights(|on| on.internode),
                round.internode.height(),
                wanted.internode.height(),
            );
            let client = is_there(
                &member.heights(|on| on.client),
                round.client.height(),
                wanted.client.height(),
            );
            let login = is_there(
                &member.heights(|on| on.login),
                round.login.height(),
                wanted.login.height(),
            );
            !(internode && client && login)
        });
        let members: Vec<_> = wrong.map(|(place, _)| place).collect();
        let hold = LadderHold::EarlierRound;
        if members.is_empty() { Ok(()) } else { Err(HeldStep { hold, members }) }
    }
}
