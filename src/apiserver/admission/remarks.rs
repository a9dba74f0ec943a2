//! Warnings and audit annotations that admission adds to its verdict, also to a refusal.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most annotations of one request, and below most bytes of one value: webhooks are third-party
/// programs.
const MOST: usize = 128;
const LONGEST: usize = 64 * 1024;

/// Collects the warnings and annotations of one request. While there are none it allocates nothing.
#[derive(Debug, Default)]
pub struct AdmissionRemarks(Mutex<CollectedRemarks>);

#[derive(Debug, Default)]
struct CollectedRemarks {
    warnings: Vec<String>,
    annotations: Vec<AuditAnnotation>,
}

/// An annotation for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAnnotation {
    pub key: String,
    pub value: String,
    /// The value repeats parts of the object, so it is recorded only at level Request and above.
    pub of_request: bool,
}

impl AdmissionRemarks {
    /// Adds a warning for the client.
    pub fn add_warning(&self, text: String) {
        self.lock().warnings.push(text);
    }

    pub fn add_annotation(&self, key: String, value: String) {
        self.insert_annotation(AuditAnnotation { key, value, of_request: false });
    }

    /// Adds an annotation that repeats parts of the object.
    pub fn add_request_annotation(&self, key: String, value: String) {
        self.insert_annotation(AuditAnnotation { key, value, of_request: true });
    }

    /// Adds an annotation, unless there is one of the same key: as upstream, the first value
    /// counts.
    fn insert_annotation(&self, annotation: AuditAnnotation) {
        let annotations = &mut self.lock().annotations;
        let is_known = annotations.iter().any(|other| other.key == annotation.key);
        if !is_known && annotations.len() < MOST && annotation.value.len() <= LONGEST {
            annotations.push(annotation);
        }
    }

    /// Takes the warnings so far, so that each is sent once.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// Takes the annotations so far, so that each is recorded once.
    pub fn take_annotations(&self) -> Vec<AuditAnnotation> {
        std::mem::take(&mut self.lock().annotations)
    }

    fn lock(&self) -> MutexGuard<'_, CollectedRemarks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_key_counts_and_long_ones_do_not() {
        let remarks = AdmissionRemarks::default();
        remarks.add_annotation("a".into(), "1".into());
        remarks.add_annotation("a".into(), "2".into());
        remarks.add_annotation("b".into(), "x".repeat(LONGEST + 1));
        for number in 0..2 * MOST {
            remarks.add_annotation(format!("n{number}"), String::new());
        }
        let annotations = remarks.take_annotations();
        assert_eq!(annotations.len(), MOST);
        assert_eq!((annotations[0].key.as_str(), annotations[0].value.as_str()), ("a", "1"));
        assert!(annotations.iter().all(|annotation| annotation.key != "b"));
    }
}
