//! Ready means: every handle was dropped.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// What still has to happen before this process is ready, by name.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, usize>>>);

/// Holds readiness back until it is dropped.
#[derive(Debug)]
#[must_use = "readiness is held back only while this lives"]
pub struct ReadinessHandle {
    name: &'static str,
    readiness: Readiness,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something to wait for: readiness is held back until the returned handle is dropped.
    pub fn add(&self, name: &'static str) -> ReadinessHandle {
        *self.lock().entry(name).or_default() += 1;
        ReadinessHandle { name, readiness: self.clone() }
    }

    /// Returns the names of what is still waited for; empty means ready.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReadinessHandle {
    fn drop(&mut self) {
        let mut waiting_names = self.readiness.lock();
        if let Some(count) = waiting_names.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                waiting_names.remove(self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_handle_was_dropped() {
        let readiness = Readiness::new();
        let store = readiness.add("store");
        let again = readiness.add("store");
        drop(store);
        assert_eq!(readiness.waiting_for(), ["store"]);
        drop(again);
        assert!(readiness.waiting_for().is_empty());
    }
}
