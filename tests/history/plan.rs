//! What one run does, drawn from its seed: the store, and what breaks when.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// The program itself over a store in a folder.
    Embedded,
    /// The same code over a disk that loses what was not synced ([`super::powered`]).
    Powered,
    /// The program itself over a real etcd.
    Etcd,
    /// Two servers on one etcd.
    EtcdTwice,
}

impl Store {
    pub(crate) fn servers(self) -> usize {
        if self == Self::EtcdTwice { 2 } else { 1 }
    }

    pub(crate) fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::EtcdTwice)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// kill -9 and start again: on [`Store::Powered`] a power failure.
    Kill(usize),
    /// SIGSTOP, and later SIGCONT.
    Stop(usize, Duration),
    /// Every connection to etcd ends, and so does every new one.
    Cut(usize, Duration),
    /// Connections to etcd stay open and nothing comes through.
    Stall(usize, Duration),
    KillEtcd,
    /// History up to so many revisions ago is forgotten.
    Compact(u64),
    /// etcd is killed and comes back with nothing.
    Wipe,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) store: Store,
    /// What happens, each so long after the one before.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

/// Time without faults: before the first one, and after the last one.
const BEFORE: Duration = Duration::from_millis(1_500);
pub(crate) const AFTER: Duration = Duration::from_millis(1_500);

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (store, wiped) = match seed % 5 {
            0 => (Store::Embedded, false),
            1 => (Store::Powered, false),
            2 => (Store::Etcd, false),
            3 => (Store::EtcdTwice, false),
            _ => (*[Store::Etcd, Store::EtcdTwice].choose(&mut rng).unwrap(), true),
        };
        let mut faults = Vec::new();
        let compacts = |rng: &mut StdRng| Fault::Compact(rng.random_range(0..60));
        let server = |rng: &mut StdRng| rng.random_range(0..store.servers());
        let pause = |rng: &mut StdRng, from, to| Duration::from_millis(rng.random_range(from..to));
        match store {
            Store::Embedded => {
                let stopped = Fault::Stop(0, Duration::from_secs(5));
                faults.extend([Fault::Kill(0), stopped, Fault::Kill(0)]);
            }
            Store::Powered => {
                faults.extend([Fault::Kill(0), Fault::Kill(0)]);
                faults.extend([compacts(&mut rng), Fault::Kill(0), Fault::Kill(0)]);
            }
            Store::Etcd | Store::EtcdTwice => {
                let away = pause(&mut rng, 500, 2_500);
                let one = server(&mut rng);
                faults.push(if rng.random() {
                    Fault::Cut(one, away)
                } else {
                    Fault::Stall(one, away)
                });
                faults.push(Fault::KillEtcd);
                faults.extend([compacts(&mut rng), Fault::Kill(server(&mut rng))]);
                if store == Store::EtcdTwice && !wiped {
                    faults.push(Fault::Stop(server(&mut rng), Duration::from_secs(5)));
                }
            }
        }
        // The faults come in any order, but a compaction shows at a server's next start only.
        let compacted = faults.iter().position(|fault| matches!(fault, Fault::Compact(_)));
        let turn = rng.random_range(0..faults.len());
        if compacted.is_none_or(|at| turn != at + 1) {
            faults.rotate_left(turn);
        }
        if wiped {
            faults.push(Fault::Wipe);
        }
        let mut first = true;
        let faults = faults.into_iter().map(|fault| {
            let before = if std::mem::take(&mut first) { BEFORE } else { Duration::ZERO };
            (before + pause(&mut rng, 300, 1_000), fault)
        });
        let faults = faults.collect();
        Self { seed, store, faults }
    }
}
