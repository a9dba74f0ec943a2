//! Figures as Markdown: a ratio is ours divided by the better of the two others.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use super::{
    client::Protocol,
    fan_out::{UPDATES, WATCHERS},
    load::{Latency, Operation, Phase, count},
    servers::Which,
};

/// All that one server did over one protocol with so many objects.
pub(crate) struct Outcome {
    pub(crate) which: Which,
    pub(crate) protocol: Protocol,
    pub(crate) objects: usize,
    pub(crate) phases: BTreeMap<Operation, Phase>,
    /// Time from exec to ready, with nothing in the store and with all objects.
    pub(crate) started: Duration,
    pub(crate) restarted: Duration,
    pub(crate) resident: u64,
    pub(crate) peak: u64,
    /// Bytes of an object in a list.
    pub(crate) object: usize,
    /// Watches that the server ended too early.
    pub(crate) cut: usize,
}

/// Which of two figures is the better one.
#[derive(Clone, Copy)]
enum Better {
    More,
    Less,
}

/// A figure to be compared, if there is one, and the text behind it.
type Cell = (Option<(f64, Better)>, String);

/// Lists that are part of "all of it".
const LISTS: usize = 10;

/// All tables of one size.
pub(crate) fn of(outcomes: &[Outcome], objects: usize) -> String {
    let here: Vec<&Outcome> = outcomes.iter().filter(|one| one.objects == objects).collect();
    let table = Table::new(&here);
    let mut text = String::new();
    writeln!(text, "### {objects} objects\n").unwrap();
    writeln!(text, "Operations per second:\n\n{}", table.head()).unwrap();
    table.rows(&mut text, |phase| {
        let mark = if phase.is_bound_by_us() { " \\*" } else { "" };
        (Some((phase.per_second(), Better::More)), mark.to_owned())
    });
    writeln!(text, "\nSeconds of a processor for 1000 operations, and etcd's:\n").unwrap();
    writeln!(text, "{}", table.head()).unwrap();
    table.rows(&mut text, |phase| {
        let etcd = phase.etcd_per_thousand();
        let apart = if etcd > 0.0 { format!(", etcd {}", three(etcd)) } else { String::new() };
        (Some((phase.server_per_thousand(), Better::Less)), apart)
    });
    writeln!(text, "\nWhat a client waits, median and 99th percentile, ms:\n").unwrap();
    writeln!(text, "{}", table.head()).unwrap();
    table.rows(&mut text, |phase| {
        let milliseconds = |time: Duration| three(time.as_secs_f64() * 1000.0);
        let told = phase.latency.map(|Latency { median, p99 }| {
            format!("{}, {}", milliseconds(median), milliseconds(p99))
        });
        (None, told.unwrap_or_else(|| "–".to_owned()))
    });
    writeln!(text, "\nThe process:\n\n{}", table.head()).unwrap();
    table.process(&mut text);
    text
}

struct Table<'a> {
    here: &'a [&'a Outcome],
    columns: Vec<Which>,
    protocols: Vec<Protocol>,
}

impl<'a> Table<'a> {
    fn new(here: &'a [&'a Outcome]) -> Self {
        let has = |which: &Which| here.iter().any(|one| one.which == *which);
        let speaks = |protocol: &Protocol| here.iter().any(|one| one.protocol == *protocol);
        Self {
            here,
            columns: Which::ALL.into_iter().filter(has).collect(),
            protocols: Protocol::ALL.into_iter().filter(speaks).collect(),
        }
    }

    fn head(&self) -> String {
        let titles = self.columns.iter().map(|which| format!(" {} |", which.title()));
        format!("| |{}\n|---|{}", titles.collect::<String>(), "---|".repeat(self.columns.len()))
    }

    fn find(&self, which: Which, protocol: Protocol) -> Option<&'a Outcome> {
        let mut found =
            self.here.iter().filter(|one| one.which == which && one.protocol == protocol);
        found.next().copied()
    }

    /// A row for each operation over each protocol.
    fn rows(&self, text: &mut String, cell: fn(&Phase) -> Cell) {
        for operation in Operation::ALL {
            for &protocol in &self.protocols {
                let phase = |which| self.find(which, protocol)?.phases.get(&operation);
                if self.columns.iter().all(|which| phase(*which).is_none()) {
                    continue;
                }
                let title = format!("{}, {}", operation.title(), protocol.title());
                self.row(text, &title, |which| phase(which).map(cell));
            }
        }
    }

    fn row(&self, text: &mut String, title: &str, cell: impl Fn(Which) -> Option<Cell>) {
        let figure = |which| cell(which).and_then(|(figure, _)| figure);
        let others = self.columns.iter().filter(|which| !which.is_ours());
        let best = others.filter_map(|which| figure(*which)).reduce(|one, other| {
            let first = match one.1 {
                Better::More => one.0 > other.0,
                Better::Less => one.0 < other.0,
            };
            if first { one } else { other }
        });
        write!(text, "| {title} |").unwrap();
        for &which in &self.columns {
            let told = match cell(which) {
                None => "not served".to_owned(),
                Some((None, told)) => told,
                Some((Some((figure, _)), more)) => match best {
                    Some((best, _)) if which.is_ours() => {
                        format!("{}{more} (**{} ×**)", three(figure), three(figure / best))
                    }
                    _ => format!("{}{more}", three(figure)),
                },
            };
            write!(text, " {told} |").unwrap();
        }
        text.push('\n');
    }

    fn process(&self, text: &mut String) {
        type Figure = fn(&Outcome) -> f64;
        const MIB: f64 = 1_048_576.0;
        #[expect(clippy::cast_precision_loss, reason = "no memory here comes near 2^52 bytes")]
        let rows: [(&str, Figure); 4] = [
            ("resident memory after all of it, MiB", |one| one.resident as f64 / MIB),
            ("most resident memory, MiB", |one| one.peak as f64 / MIB),
            ("exec to ready with an empty store, ms", |one| one.started.as_secs_f64() * 1000.0),
            ("exec to ready and all objects listed, ms", |one| {
                one.restarted.as_secs_f64() * 1000.0
            }),
        ];
        for &protocol in &self.protocols {
            let title = |what: &str| format!("{what}, {}", protocol.title());
            for (what, figure) in rows {
                self.row(text, &title(what), |which| {
                    let figure = figure(self.find(which, protocol)?);
                    Some((Some((figure, Better::Less)), String::new()))
                });
            }
            self.row(text, &title("seconds of a processor for all of it"), |which| {
                let all = self.all_of_it(self.find(which, protocol)?);
                Some((Some((all, Better::Less)), String::new()))
            });
            let plain = |figure: fn(&Outcome) -> usize| {
                move |which| Some((None, figure(self.find(which, protocol)?).to_string()))
            };
            self.row(text, &title("bytes of an object in a list"), plain(|one| one.object));
            if self.here.iter().any(|one| one.cut > 0) {
                self.row(text, &title("watches that the server cut"), plain(|one| one.cut));
            }
        }
    }

    /// Processor time for the same work on all servers: each object once created, read, patched,
    /// applied and deleted; ten lists, ten lists in pages, and the changes to the watchers.
    fn all_of_it(&self, one: &Outcome) -> f64 {
        let same: Vec<_> =
            self.here.iter().filter(|other| other.protocol == one.protocol).collect();
        let common = one.phases.iter().filter(|(operation, _)| {
            same.iter().all(|other| other.phases.contains_key(*operation))
        });
        let cost = common.map(|(operation, phase)| {
            let times = match operation {
                Operation::Create
                | Operation::Get
                | Operation::Patch
                | Operation::Apply
                | Operation::Delete => one.objects,
                Operation::List => LISTS,
                Operation::Page => LISTS * one.objects.div_ceil(500),
                Operation::Watch => WATCHERS * UPDATES,
            };
            phase.server_per_thousand() * count(times) / 1000.0
        });
        cost.sum()
    }
}

/// A figure with three significant digits.
pub(crate) fn three(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".to_owned(),
        less if less >= 100.0 => format!("{figure:.0}"),
        less if less >= 10.0 => format!("{figure:.1}"),
        less if less >= 1.0 => format!("{figure:.2}"),
        less if less >= 0.1 => format!("{figure:.3}"),
        _ => format!("{figure:.4}"),
    }
}
