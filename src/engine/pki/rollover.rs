//! How one CA takes the place of another without two members that do not trust each other.
//!
//! All follows from the CA's Secret, from what members are told and from what they say that their
//! databases took, so a controller that ends between any two writes goes on where it was. Two rules
//! hold at every moment, in the middle of a rollover or not:
//!
//! - A member is told a trust only when it holds each CA of which any member is told to show, or
//!   shows, a certificate.
//! - A member is told a certificate of a CA only when each member said that it trusts that CA, or
//!   when some member shows one of that CA's already.
//!
//! A CA is told apart by its key: one that was renewed with its key is the same one here.

#[cfg(test)]
mod tests;

/// What lies in the Secret of a CA, or what was read from the Secret that people gave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthoritySecret<A> {
    /// Signs: `tls.crt`, `tls.key`. `None` where the Secret was lost.
    pub current: Option<A>,
    /// Signs when all trust it: `next.crt`, `next.key`.
    pub next: Option<A>,
    /// Signed before: `previous.crt`. Only for people to see; what members show decides.
    pub previous: Option<A>,
}

/// A member, with the issuers of its certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RolloverMember<A> {
    /// Who signed the certificate that it is told to show.
    pub told: Option<A>,
    /// The CAs that it is told to trust.
    pub told_trust: Vec<A>,
    /// Who signed the certificate that it showed in a handshake with its own port.
    pub shows: Option<A>,
    /// Who may have signed what it shows, while it does not say: each that it was told to trust.
    pub may_show: Vec<A>,
    /// The CAs that its database took, as a handshake showed.
    pub trusts: Vec<A>,
    /// Whether it said since then that it stores what it was told last.
    pub heard: bool,
}

impl<A: PartialEq> RolloverMember<A> {
    /// A member that has no certificate yet trusts what it is told from its first moment on.
    fn is_new(&self) -> bool {
        self.told.is_none() && self.shows.is_none()
    }

    fn is_known_to_trust(&self, authority: &A) -> bool {
        let has_authority = |list: &[A]| list.contains(authority);
        self.is_new()
            || self.heard && has_authority(&self.told_trust) && has_authority(&self.trusts)
    }
}

/// Where a rollover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RolloverPhase {
    /// There is one CA, and all is of it.
    Current,
    /// Members learn to trust the new CA.
    Spreading,
    /// Members change to certificates of the new CA, one by one.
    Signing,
    /// Members forget the old CA.
    Retiring,
}

/// What is to be done next, in one write. Members are told by their places in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloverStep<A> {
    /// There is no CA: one is to be made as the current one.
    Create,
    /// A new CA is to be put beside the current one, as the next.
    Begin,
    /// These members are to be told to trust these CAs, each as it comes.
    Trust { members: Vec<usize>, trust: Vec<A> },
    /// All trust the next CA: it becomes the current one, and that one the previous one.
    Promote,
    /// This member is to be told a certificate of the current CA.
    Sign { member: usize },
    /// Nothing is of the previous CA any more: it is to be taken out of the Secret.
    Forget,
    /// Nothing, until these members say that they did what they were told.
    Wait { members: Vec<usize> },
    /// Nothing, until the time that clients have to learn of the new CA is over.
    WaitForClients,
    /// All is of the current CA.
    Done,
}

/// What is wanted of a CA, beside that it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RolloverWish {
    /// A new CA is asked for, and neither the current nor the next one was made for that.
    pub rotate: bool,
    /// Clients have had no time yet to learn of the CA that all is to be of: where no member shows it
    /// yet, members stay with what they have.
    pub wait_for_clients: bool,
}

/// A CA's Secret and the members that show certificates of it.
#[derive(Clone, Copy, Debug)]
pub struct Rollover<'a, A> {
    pub secret: &'a AuthoritySecret<A>,
    pub members: &'a [RolloverMember<A>],
}

impl<A: Clone + PartialEq> Rollover<'_, A> {
    /// The CA that all is to be of in the end.
    fn target_authority(&self) -> Option<&A> {
        self.secret.next.as_ref().or(self.secret.current.as_ref())
    }

    /// Whose certificates are shown, or are to be.
    fn authorities_in_use(&self) -> impl Iterator<Item = &A> {
        self.members.iter().flat_map(|member| [&member.told, &member.shows]).flatten()
    }

    /// The CAs that each member is to trust now, in the order of their importance: the one that
    /// signs, the next one, and those whose certificates are still in use.
    pub fn trusted_authorities(&self) -> Vec<A> {
        let mut trust: Vec<A> = Vec::new();
        let secret_authorities = [&self.secret.current, &self.secret.next].into_iter().flatten();
        let possible_authorities = self.members.iter().flat_map(|member| &member.may_show);
        for authority in
            secret_authorities.chain(self.authorities_in_use()).chain(possible_authorities)
        {
            if !trust.contains(authority) {
                trust.push(authority.clone());
            }
        }
        trust
    }

    fn member_indexes(&self, is_match: impl Fn(&RolloverMember<A>) -> bool) -> Vec<usize> {
        let matches = self.members.iter().enumerate().filter(|(_, member)| is_match(member));
        matches.map(|(place, _)| place).collect()
    }

    /// Do members show certificates, and none of the CA that all is to be of?
    pub fn is_unused(&self) -> bool {
        self.authorities_in_use().next().is_some()
            && self.target_authority().is_some_and(|target| {
                !self.authorities_in_use().any(|authority| authority == target)
            })
    }

    /// Returns the phase, for people to see.
    pub fn rotation_phase(&self) -> RolloverPhase {
        let Some(target) = self.target_authority() else { return RolloverPhase::Spreading };
        let is_shown = |member: &RolloverMember<A>| {
            member.is_new()
                || [&member.told, &member.shows]
                    .into_iter()
                    .flatten()
                    .all(|authority| authority == target)
        };
        let is_trusted = self.members.iter().all(|member| member.is_known_to_trust(target));
        let is_alone = |member: &RolloverMember<A>| {
            [&member.told_trust, &member.trusts]
                .into_iter()
                .all(|trust| trust.iter().all(|ca| ca == target))
        };
        let is_target_everywhere = self.members.iter().all(is_shown);
        if self.secret.next.is_some() || !is_target_everywhere && !is_trusted {
            RolloverPhase::Spreading
        } else if !is_target_everywhere {
            RolloverPhase::Signing
        } else if self.members.iter().all(is_alone) && self.secret.previous.is_none() {
            RolloverPhase::Current
        } else {
            RolloverPhase::Retiring
        }
    }

    /// Tells whether the current CA may sign for a member now, one that joins or one whose
    /// certificate is due: whoever that certificate is shown to must trust the CA.
    pub fn can_issue(&self) -> bool {
        let Some(current) = &self.secret.current else { return false };
        let is_shown = self.authorities_in_use().any(|authority| authority == current);
        is_shown || self.members.iter().all(|member| member.is_known_to_trust(current))
    }

    /// Returns the next step.
    pub fn next_step(&self, wish: RolloverWish) -> RolloverStep<A> {
        let Some(target) = self.target_authority() else { return RolloverStep::Create };
        if wish.rotate && self.rotation_phase() == RolloverPhase::Current {
            return RolloverStep::Begin;
        }
        let trust = self.trusted_authorities();
        let outdated_members =
            self.member_indexes(|member| !is_same_set(&member.told_trust, &trust));
        if !outdated_members.is_empty() {
            return RolloverStep::Trust { members: outdated_members, trust };
        }
        let unconfirmed_members = self.member_indexes(|member| !member.is_known_to_trust(target));
        if !unconfirmed_members.is_empty() {
            return RolloverStep::Wait { members: unconfirmed_members };
        }
        if wish.wait_for_clients && self.is_unused() {
            return RolloverStep::WaitForClients;
        }
        if self.secret.next.is_some() {
            return RolloverStep::Promote;
        }
        let members_to_sign = self.member_indexes(|member| member.told.as_ref() != Some(target));
        // One that shows nothing yet takes nothing away from others.
        let next_member = members_to_sign
            .iter()
            .find(|place| self.members[**place].is_new())
            .or(members_to_sign.first());
        let changing_members =
            self.member_indexes(|member| member.told.is_some() && member.shows != member.told);
        if let Some(&member) = next_member {
            if self.members[member].is_new() || changing_members.is_empty() {
                return RolloverStep::Sign { member };
            }
            return RolloverStep::Wait { members: changing_members };
        }
        if !changing_members.is_empty() {
            return RolloverStep::Wait { members: changing_members };
        }
        let lagging_members =
            self.member_indexes(|member| !member.heard || !is_same_set(&member.trusts, &trust));
        if !lagging_members.is_empty() {
            return RolloverStep::Wait { members: lagging_members };
        }
        if self.secret.previous.is_some() {
            return RolloverStep::Forget;
        }
        RolloverStep::Done
    }
}

fn is_same_set<A: PartialEq>(one: &[A], other: &[A]) -> bool {
    one.iter().all(|ca| other.contains(ca)) && other.iter().all(|ca| one.contains(ca))
}
