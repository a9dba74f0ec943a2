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
    fn count_plan(&mut self, plan: &Plan) {
        let kind = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
        if let Some(step) = &plan.step {
            *self.steps.entry(kind(format!("{step:?}"))).or_default() += 1;
        }
        for remedy in plan_remedies(plan) {
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
        let mut current_state = state.clone();
        while let Some(Some((previous_state, event))) = self.0.get(&current_state) {
            events.push(event.clone());
            current_state = previous_state.clone();
        }
        events.reverse();
        events
    }

    fn event_log(&self, state: &ModelState) -> String {
        self.events_to(state).join("\n")
    }
}

/// Searches from `start`, with so many edits and faults, up to `max_states` states.
///
/// # Panics
/// Where a step breaks a law, and where a rest is a trap.
pub(crate) fn search_states(
    start: ModelState,
    rules: &ModelRules,
    edits: u8,
    faults: u8,
    max_states: usize,
) -> SearchCoverage {
    let mut coverage = SearchCoverage::default();
    let mut met_states = MetStates::default();
    let mut followed_states: HashSet<ModelState> = HashSet::new();
    let (mut ways_out, mut traps) = (WaysOut::default(), BTreeSet::new());
    let mut queue = VecDeque::from([start.clone()]);
    // All edits of one apply: nothing has moved since the first.
    let mut edited_states = HashSet::from([start.clone()]);
    met_states.0.insert(start, None);
    while let Some(state) = queue.pop_front() {
        let mut next_states = Vec::new();
        let mut ensured_state = state.clone();
        let plan = ensured_state.reconcile(rules).build_plan();
        coverage.count_plan(&plan);
        if let Some(step) = &plan.step {
            if let Some(violation) = ensured_state.find_violation(rules, step) {
                panic!("{violation}\nafter:\n{}\nof:\n{state}", met_states.event_log(&state));
            }
            if state.faults < faults && rules.has_fault_kind(FaultKind::Crash) {
                let label_cut = |next_state| (format!("controller ends amid {step:?}"), next_state);
                next_states.extend(ensured_state.cut_short(rules, step).into_iter().map(label_cut));
            }
            let mut next_state = ensured_state.clone();
            next_state.execute_step(rules, step);
            next_states.push((format!("controller: {step:?}"), next_state));
        }
        for id in node_ids() {
            if rules.in_turn && !next_states.is_empty() {
                break;
            }
            let name = name_of(id);
            if let Some(next_state) = ensured_state.advance_node(rules, id) {
                next_states.push((format!("{name} moves"), next_state));
            }
            // The controller is slow, and then writes by what its caches hold.
            let is_slow = rules.slow && ensured_state != state;
            if let Some(next_state) = is_slow.then(|| state.advance_node(rules, id)).flatten() {
                let late_state = next_state.ensured_late(&ensured_state);
                next_states
                    .push((format!("{name} moves before the controller writes"), next_state));
                next_states
                    .push((format!("{name} moves, and the controller writes late"), late_state));
            }
        }
        let reports = node_ids().filter_map(|id| {
            Some((format!("{} reports", name_of(id)), ensured_state.deliver_report(id)?))
        });
        let reports: Vec<_> = reports.collect();
        let is_quiet = next_states.is_empty() && reports.is_empty();
        if is_quiet {
            let expiries = state
                .expire_deadline()
                .map(|(id, next_state)| (format!("{} is late", name_of(id)), next_state));
            next_states.extend(expiries);
        }
        let is_at_rest = next_states.is_empty() && reports.is_empty();
        if is_at_rest && !state.is_wanted() {
            let reset_state = ModelState { edits: 0, faults: 0, ..state.clone() };
            if followed_states.insert(reset_state.clone())
                && let Err(reason) = ways_out.check_state(&reset_state, rules)
            {
                let plan_start = reason.find("\nPlan {").unwrap_or(reason.len());
                let kind: String =
                    reason[..plan_start].chars().filter(|c| !c.is_ascii_digit()).collect();
                if traps.insert(kind) && traps.len() <= MOST_TOLD {
                    println!("TRAP after:\n{}\n{reason}\n", met_states.event_log(&state));
                }
            }
        }
        let can_edit_early = !rules.patient && state.edits < 2;
        if (is_quiet || can_edit_early || edited_states.contains(&state)) && state.edits < edits {
            let edit_states = state.possible_edits(rules);
            if edited_states.contains(&state) {
                edited_states.extend(edit_states.iter().map(|(_, edit_state)| edit_state.clone()));
            }
            next_states.extend(edit_states);
        }
        if state.faults < faults {
            next_states.extend(state.possible_faults(rules));
        }
        if queue.is_empty() {
            // Breadth first, the last state is one of the farthest.
            coverage.depth = met_states.events_to(&state).len();
        }
        let report_late = |(event, next_state): (String, ModelState)| {
            (event, next_state.reporting_late(&state, rules))
        };
        for (event, next_state) in next_states.into_iter().map(report_late).chain(reports) {
            if met_states.0.len() < max_states && !met_states.0.contains_key(&next_state) {
                met_states.0.insert(next_state.clone(), Some((state.clone(), event)));
                queue.push_back(next_state);
            }
        }
    }
    assert!(traps.is_empty(), "{} kinds of traps", traps.len());
    coverage.states = met_states.0.len();
    coverage.rests = followed_states.len();
    coverage
}
