//! Encoded forms of objects beside the one that is always kept: the kind's older version, and
//! metadata alone. A form is made for the first reader, and the latest forms are kept for the next
//! readers.
//!
//! Owns the bound on the bytes of kept forms: without it, one list in each form would keep each
//! object three times, with no end.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use super::{super::capacity::CapacityBounds, encoded_object::EncodedObject};

static LATEST: LazyLock<FormCache> = LazyLock::new(|| FormCache::new(CapacityBounds::own().forms));

/// Cache of the forms made last, oldest first, up to `most` bytes.
struct FormCache {
    most: usize,
    kept: Mutex<KeptForms>,
}

#[derive(Default)]
struct KeptForms {
    bytes: usize,
    forms: VecDeque<(Weak<HeldForm>, usize)>,
}

/// Slot of a form: empty again once the form is dropped to make room.
type HeldForm = Mutex<Option<EncodedObject>>;

/// One form of one object, made on demand.
#[derive(Debug, Default)]
pub(super) struct CachedForm(OnceLock<Arc<HeldForm>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CachedForm {
    /// Returns the form. The first reader that asks makes it, while other readers wait.
    pub(super) fn get(&self, make: impl FnOnce() -> EncodedObject) -> EncodedObject {
        self.get_of(&LATEST, make)
    }

    fn get_of(&self, latest: &FormCache, make: impl FnOnce() -> EncodedObject) -> EncodedObject {
        let held = self.0.get_or_init(Arc::default);
        let mut form = locked(held);
        if let Some(form) = &*form {
            return form.clone();
        }
        let made = make();
        *form = Some(made.clone());
        drop(form);
        latest.keep(held, made.len());
        made
    }
}

impl FormCache {
    fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default() }
    }

    /// Keeps a form of `bytes`, and drops the oldest forms until the bound holds.
    fn keep(&self, held: &Arc<HeldForm>, bytes: usize) {
        let bytes = bytes + size_of::<(Weak<HeldForm>, usize)>() + size_of::<HeldForm>();
        let mut gone = Vec::new();
        let mut kept = locked(&self.kept);
        kept.bytes += bytes;
        kept.forms.push_back((Arc::downgrade(held), bytes));
        while kept.bytes > self.most
            && let Some((oldest, bytes)) = kept.forms.pop_front()
        {
            kept.bytes -= bytes;
            gone.push(oldest);
        }
        drop(kept);
        for held in gone.iter().filter_map(Weak::upgrade) {
            drop(locked(&held).take());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::encoded_object::EventType, *};

    fn form(text: &str) -> EncodedObject {
        EncodedObject::new(EventType::Added, &json!(text), None)
    }

    fn is_kept(form: &CachedForm) -> bool {
        form.0.get().is_some_and(|held| locked(held).is_some())
    }

    #[test]
    fn the_latest_forms_are_kept_and_made_once() {
        let latest = FormCache::new(10_000);
        let forms: Vec<_> = (0..10).map(|_| CachedForm::default()).collect();
        for one in &forms {
            for _ in 0..2 {
                let mut made = 0;
                one.get_of(&latest, || {
                    made += 1;
                    form(&"x".repeat(2000))
                });
                assert!(made <= 1);
            }
            one.get_of(&latest, || panic!("it is kept"));
        }
        let kept: Vec<_> = forms.iter().map(is_kept).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 4, "{kept:?}");
        assert!(kept.ends_with(&[true; 4]), "{kept:?}");
        assert!(locked(&latest.kept).bytes <= 10_000);
    }

    #[test]
    fn what_does_not_fit_at_all_is_made_and_not_kept() {
        let latest = FormCache::new(1000);
        let large = CachedForm::default();
        assert!(large.get_of(&latest, || form(&"x".repeat(2000))).json().len() > 2000);
        assert!(!is_kept(&large));
    }
}
