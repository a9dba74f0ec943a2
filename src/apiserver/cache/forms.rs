//! Encoded forms of objects in addition to the one that is always kept: the kind's older version,
//! and metadata alone. A form is made for the first reader, and the latest forms are kept for the
//! next readers.
//!
//! Owns the bound on the bytes of kept forms: without it, one list in each form would keep each
//! object three times, with no end.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use super::{super::capacity::CapacityBounds, encoded_object::EncodedObject};

static LATEST: LazyLock<FormCache> =
    LazyLock::new(|| FormCache::new(CapacityBounds::for_process().forms));

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

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CachedForm {
    /// Returns the form. The first reader that asks makes it, while other readers wait.
    pub(super) fn get(&self, build_form: impl FnOnce() -> EncodedObject) -> EncodedObject {
        self.get_of(&LATEST, build_form)
    }

    fn get_of(
        &self,
        latest: &FormCache,
        build_form: impl FnOnce() -> EncodedObject,
    ) -> EncodedObject {
        let slot = self.0.get_or_init(Arc::default);
        let mut form = lock_mutex(slot);
        if let Some(form) = &*form {
            return form.clone();
        }
        let new_form = build_form();
        *form = Some(new_form.clone());
        drop(form);
        latest.insert(slot, new_form.len());
        new_form
    }
}

impl FormCache {
    fn new(max_bytes: usize) -> Self {
        Self { most: max_bytes, kept: Mutex::default() }
    }

    /// Keeps a form of `bytes`, and drops the oldest forms until the bound holds.
    fn insert(&self, slot: &Arc<HeldForm>, bytes: usize) {
        let bytes = bytes + size_of::<(Weak<HeldForm>, usize)>() + size_of::<HeldForm>();
        let mut evicted_slots = Vec::new();
        let mut cached_forms = lock_mutex(&self.kept);
        cached_forms.bytes += bytes;
        cached_forms.forms.push_back((Arc::downgrade(slot), bytes));
        while cached_forms.bytes > self.most
            && let Some((oldest, bytes)) = cached_forms.forms.pop_front()
        {
            cached_forms.bytes -= bytes;
            evicted_slots.push(oldest);
        }
        drop(cached_forms);
        for slot in evicted_slots.iter().filter_map(Weak::upgrade) {
            drop(lock_mutex(&slot).take());
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
        form.0.get().is_some_and(|held| lock_mutex(held).is_some())
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
        assert!(lock_mutex(&latest.kept).bytes <= 10_000);
    }

    #[test]
    fn what_does_not_fit_at_all_is_made_and_not_kept() {
        let latest = FormCache::new(1000);
        let large = CachedForm::default();
        assert!(large.get_of(&latest, || form(&"x".repeat(2000))).json().len() > 2000);
        assert!(!is_kept(&large));
    }
}
