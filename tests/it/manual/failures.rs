//! `docs/reports/failures.md`: one row for each failure of `docs/failure-modes.md`, with the tests
//! that show it. Layers, and whether CI runs a test, come from the sources.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
};

use super::page;
use crate::{architecture::sources, golden};

const FAILURES: &str = "docs/failure-modes.md";
const REPORT: &str = "docs/reports/failures.md";
const ROWS: &str = "| failure | layer | CI or full | tests |";
const SUMMARY: &str = "| layer | failures | in CI | only in `make full` | without a passed run |";

/// What is real in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TestLayer {
    /// A unit test: the code decides, and nothing fails.
    Decision,
    /// Our programs run, and the failure is made; databases and Kubernetes are scripted.
    Process,
    /// A real database or a real Kubernetes.
    Real,
}

/// Where a test runs; what shows more comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TestPlace {
    NotRunYet,
    FailedInFull,
    Full,
    Ci,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestFacts {
    layer: TestLayer,
    place: TestPlace,
}

/// A function with the attribute `test`.
struct RustTest {
    layer: TestLayer,
    /// As `cargo test` names it.
    path: String,
    is_ignored: bool,
}

/// A part of `make full`.
struct FullPart {
    target: String,
    place: TestPlace,
}

/// What says which tests there are, and where they run.
struct TestSources {
    makefile: String,
    /// Targets of the Makefile that are steps of CI.
    ci_targets: Vec<String>,
    parts: Vec<FullPart>,
    /// The list of `tests/databases/main.rs`, by name.
    scenarios: HashMap<String, String>,
    /// `docs/test-databases.md`.
    scenario_records: String,
    functions: HashMap<String, Vec<RustTest>>,
}

/// Returns the cells of a table's row.
fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns whether `word` is one of the words of `text`; `+` joins jobs that run side by side.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|other| other == word)
}

/// Returns the variables of a Makefile, with their values.
fn variables(makefile: &str) -> impl Iterator<Item = (&str, &str)> {
    makefile
        .lines()
        .filter_map(|line| line.split_once(":="))
        .map(|(name, value)| (name.trim(), value))
}

/// Returns the rules of a Makefile: the names of the targets, and the recipe.
fn rules(makefile: &str) -> Vec<(&str, String)> {
    let mut rules: Vec<(&str, String)> = Vec::new();
    for line in makefile.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix('\t'), line.split_once(':')) {
            (Some(command), _) => {
                let (_, recipe) = rules.last_mut().expect("a recipe follows its targets");
                recipe.push_str(command);
                recipe.push('\n');
            }
            (None, Some((names, _))) => rules.push((names, String::new())),
            (None, None) => {}
        }
    }
    rules
}

/// Returns the targets that a script of steps makes.
fn made_targets(script: &str) -> impl Iterator<Item = &str> {
    let commands = script.split("\"make ").skip(1);
    commands.map(|command| command.split([' ', '"']).next().unwrap())
}

/// Returns the parts that `scripts/full.py --list` prints, with the outcomes that `docs/tested.md`
/// keeps.
fn full_parts(list: &str, record: &str) -> Vec<FullPart> {
    let parts = list.lines().filter_map(|line| line.split_once("\tmake "));
    let part = |(name, command): (&str, &str)| {
        let begin = format!("| `{name}` |");
        let row = record.lines().find(|line| line.starts_with(&begin));
        let place = match row.and_then(|row| cells(row).last().copied()) {
            Some("passed") => TestPlace::Full,
            None | Some("" | "not run yet") => TestPlace::NotRunYet,
            Some(_) => TestPlace::FailedInFull,
        };
        FullPart { target: command.split(' ').next().unwrap().to_owned(), place }
    };
    parts.map(part).collect()
}

/// Returns what `scripts/full.py` says of its parts.
#[expect(clippy::disallowed_methods, reason = "a test asks a script of this repository")]
fn list_parts() -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let listed =
        Command::new("python3").args(["scripts/full.py", "--list"]).current_dir(root).output();
    let listed = listed.expect("python3 is there; Debian: apt-get install python3");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8(listed.stdout).unwrap()
}

/// Returns the entries of the list of scenarios.
fn scenarios(source: &str) -> HashMap<String, String> {
    let list = source.split("SCENARIOS:").nth(1).expect("a list of scenarios");
    let list = list.split("\n];").next().unwrap();
    let entries = list.split("\n    (\"").skip(1).map(|entry| entry.split_once('"').unwrap());
    entries.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
}

/// Adds the tests of a file.
fn add_functions(functions: &mut HashMap<String, Vec<RustTest>>, path: &str, text: &str) {
    let (layer, file) = match path.strip_prefix("tests/it/") {
        Some(file) => (TestLayer::Process, file),
        None => (TestLayer::Decision, path.trim_start_matches("src/")),
    };
    let module = file.trim_end_matches(".rs").replace('/', "::");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for (number, line) in lines.iter().enumerate() {
        let declaration = line.strip_prefix("async ").unwrap_or(line);
        let Some(rest) = declaration.strip_prefix("fn ") else { continue };
        let attributes = lines[..number].iter().rev();
        let attributes: Vec<_> = attributes
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .filter(|line| line.starts_with("#["))
            .collect();
        if attributes.iter().any(|line| line.contains("test")) {
            let name = rest.split(['(', '<']).next().unwrap();
            let is_ignored = attributes.iter().any(|line| line.starts_with("#[ignore"));
            let test = RustTest { layer, path: format!("{module}::{name}"), is_ignored };
            functions.entry(name.to_owned()).or_default().push(test);
        }
    }
}

impl TestSources {
    /// Reads the sources of this repository.
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut files, mut functions) = (Vec::new(), HashMap::new());
        sources(&root.join("src"), &mut files);
        sources(&root.join("tests/it"), &mut files);
        for (path, text) in &files {
            let path = path.trim_start_matches(&format!("{}/", root.display()));
            add_functions(&mut functions, path, text);
        }
        Self {
            makefile: page("Makefile"),
            ci_targets: made_targets(&page("scripts/ci.py")).map(str::to_owned).collect(),
            parts: full_parts(&list_parts(), &page("docs/tested.md")),
            scenarios: scenarios(&page("tests/databases/main.rs")),
            scenario_records: page("docs/test-databases.md"),
            functions,
        }
    }

    /// Returns where something runs that these targets of the Makefile run.
    fn place(&self, targets: &[&str]) -> Option<TestPlace> {
        if self.ci_targets.iter().any(|step| targets.contains(&step.as_str())) {
            return Some(TestPlace::Ci);
        }
        let parts = self.parts.iter().filter(|part| targets.contains(&part.target.as_str()));
        parts.map(|part| part.place).max()
    }

    /// Returns the targets whose recipe is of this kind.
    fn targets(&self, is_one: impl Fn(&str) -> bool) -> Vec<&str> {
        let rules = rules(&self.makefile).into_iter().filter(|(_, recipe)| is_one(recipe));
        rules.flat_map(|(names, _)| names.split_whitespace()).collect()
    }

    /// Returns where a job runs, by itself or as a part of a job that imports it.
    fn job_place(&self, job: &str, importers: &[String]) -> Option<TestPlace> {
        let importers = importers.iter().map(String::as_str);
        importers.chain([job]).filter_map(|job| self.listed_job_place(job)).max()
    }

    fn listed_job_place(&self, job: &str) -> Option<TestPlace> {
        let mut targets = Vec::new();
        for (variable, _) in variables(&self.makefile).filter(|(_, value)| has_word(value, job)) {
            match variable {
                // One recipe has both lists, and makes one of them.
                "CLUSTERS" => targets.extend(["e2e-clusters", "e2e"]),
                "INSTALLS" => targets.extend(["e2e-installs", "e2e"]),
                _ => targets
                    .extend(self.targets(|recipe| recipe.contains(&format!("$({variable})")))),
            }
        }
        targets.extend(self.targets(|recipe| has_word(recipe, job)));
        self.place(&targets)
    }

    fn scenario_place(&self, name: &str, entry: &str) -> Option<TestPlace> {
        let is_quick = entry.contains("Set::Quick");
        if is_quick && self.place(&["test-databases"]) == Some(TestPlace::Ci) {
            return Some(TestPlace::Ci);
        }
        self.place(&["test-databases-full"])?;
        let record = self.scenario_records.split(&format!("\n## `{name}`\n\n")).nth(1);
        Some(match record {
            Some(record) if record.starts_with("Passed") => TestPlace::Full,
            Some(record) if record.starts_with("**Failed**") => TestPlace::FailedInFull,
            _ => TestPlace::NotRunYet,
        })
    }

    fn function_place(&self, test: &RustTest) -> Option<TestPlace> {
        if !test.is_ignored {
            return self.place(&["test-unit", "test-searches", "test-it", "test-load"]);
        }
        let is_chosen = |recipe: &str| {
            let mut filters = recipe.split_whitespace().filter(|word| word.ends_with("::"));
            recipe.contains("--ignored") && filters.any(|filter| test.path.starts_with(filter))
        };
        self.place(&self.targets(is_chosen))
    }

    /// Returns what is known of a test: a function, a scenario of `tests/databases`, a job of
    /// `tests/e2e` or a script below `tests`, the last two with `#` and what stands in them.
    fn facts(&self, name: &str) -> Result<TestFacts, String> {
        if let Some(tests) = self.functions.get(name) {
            let layer = tests[0].layer;
            if tests.iter().any(|test| test.layer != layer) {
                return Err(format!("{name} is in src and in tests/it"));
            }
            let places = tests.iter().filter_map(|test| self.function_place(test));
            let place = places.max().ok_or_else(|| format!("nothing runs {name}"))?;
            return Ok(TestFacts { layer, place });
        }
        let (layer, place) = if let Some(entry) = self.scenarios.get(name) {
            let is_scripted = entry.contains("scripted::");
            let layer = if is_scripted { TestLayer::Process } else { TestLayer::Real };
            (layer, self.scenario_place(name, entry))
        } else {
            let (file, part) = name.split_once('#').unwrap_or((name, ""));
            let is_job = !file.contains('/');
            let path = if is_job { format!("tests/e2e/{file}.py") } else { file.to_owned() };
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path));
            let text = text.map_err(|_| format!("there is no test {name}"))?;
            if part.is_empty() || !text.contains(part) {
                return Err(format!("there is no {part:?} in {path}"));
            }
            let place = if is_job {
                self.job_place(file, &importers(file))
            } else {
                self.place(&self.targets(|recipe| recipe.contains(file)))
            };
            (TestLayer::Real, place)
        };
        let place = place.ok_or_else(|| format!("neither CI nor make full runs {name}"))?;
        Ok(TestFacts { layer, place })
    }
}

/// Returns the jobs of `tests/e2e` that import a job.
fn importers(job: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e");
    let line = format!("import {job}");
    let jobs = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    jobs.filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .filter(|path| fs::read_to_string(path).unwrap().lines().any(|other| other == line))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// Returns the layer of a failure: the highest of its tests. And the best place of that layer.
fn highest(tests: &[TestFacts]) -> Option<TestFacts> {
    let layer = tests.iter().map(|test| test.layer).max()?;
    let place = tests.iter().filter(|test| test.layer == layer).map(|test| test.place).max()?;
    Some(TestFacts { layer, place })
}

fn layer_cell(layer: TestLayer) -> &'static str {
    match layer {
        TestLayer::Real => "real",
        TestLayer::Process => "process",
        TestLayer::Decision => "decided, not produced",
    }
}

/// Returns the cell "CI or full". What CI shows of a failure that is real in `make full` only, is
/// named after it.
fn place_cell(tests: &[TestFacts], highest: TestFacts) -> String {
    let place = match highest.place {
        TestPlace::Ci => return "CI".to_owned(),
        TestPlace::Full => "full",
        TestPlace::FailedInFull => "full, last run failed",
        TestPlace::NotRunYet => "full, not run yet",
    };
    let in_ci = tests.iter().filter(|test| test.place == TestPlace::Ci);
    match in_ci.map(|test| test.layer).max() {
        Some(TestLayer::Process) => format!("{place}; CI: process"),
        Some(_) => format!("{place}; CI: decision"),
        None => place.to_owned(),
    }
}

/// Returns the failures of a page in its order, each with the heading above it.
fn failures(page: &str) -> Vec<(&str, &str)> {
    let (mut heading, mut failures, mut is_table) = ("", Vec::new(), false);
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line;
        }
        if is_table && line.starts_with("| ") {
            failures.push((heading, cells(line)[0]));
        }
        is_table = line.starts_with("| failure |") || is_table && line.starts_with('|');
    }
    failures
}

/// Returns the report with the columns that come from the sources, and adds what is wrong in it.
fn render(report: &str, sources: &TestSources, problems: &mut Vec<String>) -> String {
    let (mut lines, mut counts) = (Vec::new(), BTreeMap::<TestLayer, [usize; 4]>::new());
    let mut table = "";
    for line in report.lines() {
        if !line.starts_with('|') || table.is_empty() {
            table = if [ROWS, SUMMARY].contains(&line) { line } else { "" };
            lines.push(line.to_owned());
            continue;
        }
        if line.starts_with("|--") {
            lines.push(line.to_owned());
        } else if table == ROWS {
            let columns = cells(line);
            let [failure, _, _, names] = columns[..] else {
                problems.push(format!("not four cells: {line}"));
                continue;
            };
            let mut tests = Vec::new();
            for name in names.split('`').skip(1).step_by(2) {
                match sources.facts(name) {
                    Ok(facts) => tests.push(facts),
                    Err(problem) => problems.push(format!("{failure}: {problem}")),
                }
            }
            let Some(highest) = highest(&tests) else {
                problems.push(format!("{failure}: no test"));
                continue;
            };
            let count = counts.entry(highest.layer).or_default();
            count[0] += 1;
            let is_in_ci = highest.place == TestPlace::Ci;
            count[if is_in_ci { 1 } else { 2 }] += 1;
            count[3] += usize::from(highest.place < TestPlace::Full);
            let place = place_cell(&tests, highest);
            lines
                .push(format!("| {failure} | {} | {place} | {names} |", layer_cell(highest.layer)));
        }
    }
    let mut summary = String::new();
    for (layer, [all, ci, full, unproved]) in counts.iter().rev() {
        let layer = layer_cell(*layer);
        write!(summary, "\n| {layer} | {all} | {ci} | {full} | {unproved} |").unwrap();
    }
    let begin = lines.iter().position(|line| line == SUMMARY).expect("a summary");
    lines[begin + 1].push_str(&summary);
    lines.join("\n") + "\n"
}

#[test]
fn failure_pages_have_the_same_failures() {
    let (failure_page, report) = (page(FAILURES), page(REPORT));
    let (listed, reported) = (failures(&failure_page), failures(&report));
    assert!(listed.len() > 150, "{}", listed.len());
    for (one, other) in listed.iter().zip(&reported) {
        assert_eq!(one, other, "left: {FAILURES}; right: {REPORT}");
    }
    assert_eq!(listed.len(), reported.len(), "left: {FAILURES}; right: {REPORT}");
}

#[test]
fn failure_report_agrees_with_the_sources() {
    let sources = TestSources::read();
    assert!(sources.ci_targets.len() > 10, "{:?}", sources.ci_targets);
    assert!(sources.parts.len() > 10, "{}", sources.parts.len());
    let mut problems = Vec::new();
    let rendered = render(&page(REPORT), &sources, &mut problems);
    assert!(problems.is_empty(), "{REPORT}:\n{}", problems.join("\n"));
    golden::check_file(REPORT, &rendered);
}

/// A repository of a few lines.
fn example_sources() -> TestSources {
    const MAKEFILE: &str = "\
CLUSTERS := main_job+other_job
INSTALLS := kill_run
NIGHTLY  := api_job
e2e-clusters e2e-installs:
\trun.sh $(INSTALLS) $(CLUSTERS)

e2e-nightly:
\tmake e2e JOBS=\"$(NIGHTLY)\"

e2e-lost:
\tmake e2e JOBS=\"lost_job voters_job\"

kill-store: deps
\tcargo test --test it storage::kill:: -- --ignored
";
    const FULL: &str = "\
nightly\tmake e2e-nightly TRIED=release
lost\tmake e2e-lost
store\tmake kill-store
databases\tmake test-databases-full SCENARIOS=\"life faults\"
";
    const RECORD: &str = "| `nightly` | x | passed |\n| `lost` | x | FAILED |\n| `store` | | |\n";
    const LIST: &str = "const SCENARIOS: &[Run] = &[
    (\"life\", Set::Quick, |told| cassandra::life(told)),
    (\"faults\", Set::Full, |told| cassandra::faults(told)),
    (\"away\", Set::Full, |told| scripted::away(told)),
];";
    const TESTS: &str = "
#[test]
#[ignore = \"hours\"]
fn a_thousand_kills() {}

/// Why.
#[test]
fn sixty_kills() {}
fn no_test() {}
";
    let mut functions = HashMap::new();
    add_functions(&mut functions, "tests/it/storage/kill.rs", TESTS);
    add_functions(&mut functions, "src/plan.rs", "    #[tokio::test]\n    async fn waits() {}");
    TestSources {
        makefile: MAKEFILE.to_owned(),
        ci_targets: ["test-it", "e2e-clusters", "test-databases"].map(str::to_owned).to_vec(),
        parts: full_parts(FULL, RECORD),
        scenarios: scenarios(LIST),
        scenario_records: "\n## `faults`\n\n**Failed** in 2 s\n\n## `away`\n\nPassed in 3 s"
            .to_owned(),
        functions,
    }
}

#[test]
fn test_layer_and_place_come_from_the_sources() {
    use TestLayer::{Decision, Process, Real};
    use TestPlace::{Ci, FailedInFull, Full, NotRunYet};

    let sources = example_sources();
    for (name, layer, place) in [
        ("waits", Decision, Ci),
        ("sixty_kills", Process, Ci),
        ("a_thousand_kills", Process, NotRunYet),
        ("life", Real, Ci),
        ("faults", Real, FailedInFull),
        ("away", Process, Full),
    ] {
        assert_eq!(sources.facts(name), Ok(TestFacts { layer, place }), "{name}");
    }
    for (job, place) in [
        ("main_job", Some(Ci)),
        ("other_job", Some(Ci)),
        ("kill_run", None),
        ("api_job", Some(Full)),
        ("voters_job", Some(FailedInFull)),
    ] {
        assert_eq!(sources.job_place(job, &[]), place, "{job}");
    }
    assert_eq!(sources.job_place("kill_run", &["main_job".to_owned()]), Some(Ci));
    for name in ["no_test", "no_such_job#a step", "main_job", "main_job#no such step"] {
        assert!(sources.facts(name).is_err(), "{name}");
    }
}

#[test]
fn failure_cells_say_what_ci_shows() {
    use TestLayer::{Decision, Process, Real};
    use TestPlace::{Ci, FailedInFull, Full, NotRunYet};

    let decision = TestFacts { layer: Decision, place: Ci };
    let process = TestFacts { layer: Process, place: Ci };
    let real = |place| TestFacts { layer: Real, place };
    for (tests, layer, place) in [
        (vec![decision], "decided, not produced", "CI"),
        (vec![process, decision], "process", "CI"),
        (vec![real(Full), real(Ci)], "real", "CI"),
        (vec![real(FailedInFull), real(Full), process], "real", "full; CI: process"),
        (vec![real(FailedInFull), real(NotRunYet)], "real", "full, last run failed"),
        (vec![real(NotRunYet), decision], "real", "full, not run yet; CI: decision"),
    ] {
        let highest = highest(&tests).unwrap();
        assert_eq!(layer_cell(highest.layer), layer);
        assert_eq!(place_cell(&tests, highest), place);
    }
}
