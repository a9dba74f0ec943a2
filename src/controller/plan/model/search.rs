//! The search itself, and what it met.

use super::*;

/// What a search met.
#[derive(Debug, Default)]
pub(crate) struct SearchCoverage {
    pub(crate) states: usize,
    /// Events from the start to the last state.
    pub(crate) depth: usize,
    /// Rests that are not as wanted, of which each remedy was followed.
    pub(crate) rests: usize,
    /// How often each kind of step was planned, and each kind of remedy named.
    pub(crate) steps: BTreeMap<String, usize>,
    pub(crate) remedies: BTreeMap<String, usize>,
}

impl SearchCoverage {
    fn count(&mut self, planned: &Plan) {
        let kind = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
        if let Some(step) = &planned.step {
            *self.steps.entry(kind(format!("{step:?}"))).or_default() += 1;
        }
        for remedy in remedies(planned) {
            *self.remedies.entry(kind(format!("{remedy:?}"))).or_default() += 1;
        }
    }
}

/// Traps that are told, of those that differ in more than in their nodes.
const MOST_TOLD: usize = 5;

/// States that were met, each with the state before it and the event between.
#[derive(Default)]
struct MetStates(HashMap<ModelState, Option<(ModelState, String)>>);

impl MetStates {
    /// Returns the events from the start to a state.
    fn events_to(&self, state: &ModelState) -> Vec<String> {
        let mut events = Vec::new();
        let mut at = state.clone();
        while let Some(Some((before, event))) = self.0.get(&at) {
            events.push(event.clone());
            at = before.clone();
        }
        events.reverse();
        events
    }

    fn story(&self, state: &ModelState) -> String {
        self.events_to(state).join("\n")
    }
}

/// Searches from `start`, with so many edits and faults, up to `most` states.
///
/// # Panics
/// Where a step breaks a law, and where a rest is a trap.
pub(crate) fn search(
    start: ModelState,
    rules: &ModelRules,
    edits: u8,
    faults: u8,
    most: usize,
) -> SearchCoverage {
    let mut coverage = SearchCoverage::default();
    let mut met = MetStates::default();
    let mut followed: HashSet<ModelState> = HashSet::new();
    let (mut ways_out, mut traps) = (WaysOut::default(), BTreeSet::new());
    let mut queue = VecDeque::from([start.clone()]);
    // All edits of one apply: nothing has moved since the first.
    let mut edited = HashSet::from([start.clone()]);
    met.0.insert(start, None);
    while let Some(state) = queue.pop_front() {
        let mut next = Vec::new();
        let mut ensured = state.clone();
        let planned = ensured.look(rules).plan();
        coverage.count(&planned);
        if let Some(step) = &planned.step {
            if let Some(broken) = ensured.breaks(rules, step) {
                panic!("{broken}\nafter:\n{}\nof:\n{state}", met.story(&state));
            }
            if state.faults < faults && rules.fails(FaultKind::Crash) {
                let cut = |after| (format!("controller ends amid {step:?}"), after);
                next.extend(ensured.cut_short(rules, step).into_iter().map(cut));
            }
            let mut after = ensured.clone();
            after.execute(rules, step);
            next.push((format!("controller: {step:?}"), after));
        }
        for id in ids() {
            if rules.in_turn && !next.is_empty() {
                break;
            }
            let name = name_of(id);
            if let Some(after) = ensured.moved(rules, id) {
                next.push((format!("{name} moves"), after));
            }
            // The controller is slow, and then writes by what its caches hold.
            let slow = rules.slow && ensured != state;
            if let Some(after) = slow.then(|| state.moved(rules, id)).flatten() {
                let late = after.ensured_late(&ensured);
                next.push((format!("{name} moves before the controller writes"), after));
                next.push((format!("{name} moves, and the controller writes late"), late));
            }
        }
        let reports = ids()
            .filter_map(|id| Some((format!("{} reports", name_of(id)), ensured.reported(id)?)));
        let reports: Vec<_> = reports.collect();
        let is_quiet = next.is_empty() && reports.is_empty();
        if is_quiet {
            let late = state.late().map(|(id, after)| (format!("{} is late", name_of(id)), after));
            next.extend(late);
        }
        let at_rest = next.is_empty() && reports.is_empty();
        if at_rest && !state.is_wanted() {
            let same = ModelState { edits: 0, faults: 0, ..state.clone() };
            if followed.insert(same.clone())
                && let Err(why) = ways_out.judge(&same, rules)
            {
                let of_plan = why.find("\nPlan {").unwrap_or(why.len());
                let kind: String = why[..of_plan].chars().filter(|c| !c.is_ascii_digit()).collect();
                if traps.insert(kind) && traps.len() <= MOST_TOLD {
                    println!("TRAP after:\n{}\n{why}\n", met.story(&state));
                }
            }
        }
        let hurries = !rules.patient && state.edits < 2;
        if (is_quiet || hurries || edited.contains(&state)) && state.edits < edits {
            let after = state.edits(rules);
            if edited.contains(&state) {
                edited.extend(after.iter().map(|(_, after)| after.clone()));
            }
            next.extend(after);
        }
        if state.faults < faults {
            next.extend(state.faults(rules));
        }
        if queue.is_empty() {
            // Breadth first, the last state is one of the farthest.
            coverage.depth = met.events_to(&state).len();
        }
        let late =
            |(event, after): (String, ModelState)| (event, after.reporting_late(&state, rules));
        for (event, after) in next.into_iter().map(late).chain(reports) {
            if met.0.len() < most && !met.0.contains_key(&after) {
                met.0.insert(after.clone(), Some((state.clone(), event)));
                queue.push_back(after);
            }
        }
    }
    assert!(traps.is_empty(), "{} kinds of traps", traps.len());
    coverage.states = met.0.len();
    coverage.rests = followed.len();
    coverage
}
