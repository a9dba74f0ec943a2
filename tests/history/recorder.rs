//! Writes down what happens, one JSON object a line, with the microseconds since the run began.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::check::{Asked, History, Moment, Operation, Outcome, Record};

pub(crate) struct Recorder {
    begun: Instant,
    file: Mutex<BufWriter<File>>,
    history: Mutex<History>,
    /// The highest revision that any client or watcher saw; clients ask for it.
    highest: AtomicU64,
    /// Operations that were answered.
    answered: AtomicUsize,
}

impl Recorder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            begun: Instant::now(),
            file: Mutex::new(BufWriter::new(File::create(path).unwrap())),
            history: Mutex::default(),
            highest: AtomicU64::new(1),
            answered: AtomicUsize::new(0),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::try_from(self.begun.elapsed().as_micros()).unwrap()
    }

    pub(crate) fn saw(&self, revision: u64) {
        self.highest.fetch_max(revision, Ordering::SeqCst);
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Records an operation that ends now.
    pub(crate) fn ended(&self, client: usize, begin: Moment, asked: Asked, outcome: Outcome) {
        match &outcome {
            Outcome::Written(version) | Outcome::Found(version) => self.saw(version.revision),
            Outcome::Listed { revisions, .. } => {
                for revision in revisions {
                    self.saw(*revision);
                }
            }
            _ => {}
        }
        if !matches!(outcome, Outcome::Unknown(_) | Outcome::Refused(_)) {
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        let end = self.now();
        self.add(Record::Operation(Operation { client, begin, end, asked, outcome }));
    }

    pub(crate) fn add(&self, record: Record) {
        let line = serde_json::to_string(&record).unwrap();
        writeln!(self.file.lock().unwrap(), "{line}").unwrap();
        self.history.lock().unwrap().add(record);
    }

    /// The whole history; its file is complete from now on.
    pub(crate) fn finish(&self) -> History {
        self.file.lock().unwrap().flush().unwrap();
        std::mem::take(&mut *self.history.lock().unwrap())
    }
}

/// A history as it was recorded.
pub(crate) fn read(path: &Path) -> History {
    let mut history = History::default();
    for line in BufReader::new(File::open(path).unwrap()).lines() {
        history.add(serde_json::from_str(&line.unwrap()).unwrap());
    }
    history
}
