//! One stop and one start of all nodes: for a database whose nodes either all speak TLS to each
//! other and ask for passwords, or none does.
//!
//! What a node is told changes only while each one is known to be stopped, and none is started before
//! each one is told it; a node hears that it may run together with the position. So at no moment do
//! two run that cannot talk, and an edit back in the middle is one more change while they are stopped.

/// Whether a node speaks TLS to others and asks for passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SwitchPosition {
    Off,
    Required,
}

/// What a member is known to do. A member that is silent may do it still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberRun {
    /// It ran on this position when it was heard last, or may have begun to since.
    Running(SwitchPosition),
    /// It said that it is stopped, since it was told to stop. It starts only when it is told to.
    Stopped,
}

/// One member of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchMember {
    pub run: MemberRun,
    /// Whether it is told to run at all.
    pub may_run: bool,
    pub told: SwitchPosition,
}

/// What is to be done next. Members are told by their places in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchStep {
    /// All run as wanted.
    Done,
    /// These are to be told to stop.
    Stop(Vec<usize>),
    /// All are stopped: these are to be told the position that is wanted.
    Tell(Vec<usize>),
    /// All are told it: these may run.
    Start(Vec<usize>),
    /// Nothing, until these say that they did what they were told.
    Wait(Vec<usize>),
}

/// Returns the next step on the way of all members to `desired_position`.
pub fn next_switch_step(members: &[SwitchMember], desired_position: SwitchPosition) -> SwitchStep {
    let matching_members =
        |matches: fn(&SwitchMember, SwitchPosition) -> bool| -> Option<Vec<usize>> {
            let selected =
                members.iter().enumerate().filter(|(_, member)| matches(member, desired_position));
            let indexes: Vec<_> = selected.map(|(place, _)| place).collect();
            (!indexes.is_empty()).then_some(indexes)
        };
    if let Some(outdated_members) = matching_members(|member, desired| member.told != desired) {
        if let Some(running_members) = matching_members(|member, _| member.may_run) {
            return SwitchStep::Stop(running_members);
        }
        if let Some(running_members) =
            matching_members(|member, _| member.run != MemberRun::Stopped)
        {
            return SwitchStep::Wait(running_members);
        }
        return SwitchStep::Tell(outdated_members);
    }
    if let Some(stopped_members) = matching_members(|member, _| !member.may_run) {
        return SwitchStep::Start(stopped_members);
    }
    let pending_members =
        matching_members(|member, desired| member.run != MemberRun::Running(desired));
    pending_members.map_or(SwitchStep::Done, SwitchStep::Wait)
}

/// Returns where a new node starts: on what all members are told, whether that is wanted or not, and
/// `None` while they are told something else one by one.
pub fn starting_position(
    members: &[SwitchMember],
    desired_position: SwitchPosition,
) -> Option<SwitchPosition> {
    let first_position = members.first().map_or(desired_position, |member| member.told);
    members.iter().all(|member| member.told == first_position).then_some(first_position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_member_is_told_while_one_runs() {
        let (off, required) = (SwitchPosition::Off, SwitchPosition::Required);
        let stopped = SwitchMember { run: MemberRun::Stopped, may_run: false, told: off };
        let running = SwitchMember { run: MemberRun::Running(off), ..stopped };
        assert_eq!(next_switch_step(&[stopped, running], required), SwitchStep::Wait(vec![1]));
        assert_eq!(next_switch_step(&[stopped, stopped], required), SwitchStep::Tell(vec![0, 1]));
    }
}
