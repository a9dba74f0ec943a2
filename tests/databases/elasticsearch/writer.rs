//! A client that writes all the time, reads back at once, and forgets nothing that was
//! acknowledged.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use http::Method;
use navigator::pilot::http::HttpClient;
use serde_json::json;

use super::ensemble::Ensemble;

pub(super) struct Writer {
    client: HttpClient,
    /// `/orders/_doc`
    path: &'static str,
    next: Cell<u64>,
    acknowledged: RefCell<BTreeSet<u64>>,
    refused: Cell<u64>,
    stopped: Cell<bool>,
}

impl Writer {
    pub(super) fn new(ensemble: &Ensemble, node: usize) -> Self {
        Self {
            client: ensemble.client(node),
            path: if ensemble.major() == 5 { "/orders/doc" } else { "/orders/_doc" },
            next: Cell::default(),
            acknowledged: RefCell::default(),
            refused: Cell::default(),
            stopped: Cell::default(),
        }
    }

    /// Writes until it is stopped. Drop it only between two scenarios.
    pub(super) async fn run(&self) {
        while !self.stopped.get() {
            self.write().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.set(true);
    }

    pub(super) async fn write(&self) {
        let id = self.next.replace(self.next.get() + 1);
        let path = format!("{}/{id}", self.path);
        let body = json!({"id": id});
        let patience = Duration::from_secs(30);
        let answer = self.client.send(Method::PUT, &path, Some(&body), patience).await;
        if answer.is_ok_and(|answer| answer.status.is_success()) {
            self.acknowledged.borrow_mut().insert(id);
            self.read(id).await;
        } else {
            self.refused.set(self.refused.get() + 1);
        }
    }

    /// Reads a document, which must be there; `false` when no answer tells.
    async fn read(&self, id: u64) -> bool {
        let path = format!("{}/{id}", self.path);
        match self.client.send(Method::GET, &path, None, Duration::from_secs(30)).await {
            Ok(answer) if answer.status.is_success() || answer.status.as_u16() == 404 => {
                let found = &answer.body;
                assert_eq!(found["_source"]["id"], id, "an acknowledged document is lost: {found}");
                true
            }
            _ => false,
        }
    }

    /// Every acknowledged document is there; returns how many, and how many were refused.
    pub(super) async fn check(&self) -> (usize, u64) {
        let acknowledged = self.acknowledged.borrow().clone();
        assert!(!acknowledged.is_empty(), "nothing was ever acknowledged");
        for id in &acknowledged {
            assert!(self.read(*id).await, "document {id} cannot be read");
        }
        (acknowledged.len(), self.refused.get())
    }
}
