//! The guards of a client that have not ended. Its shutdown reports them, and goes no further while there are any.
//!
//! A guard leaves this set after its release or its end has reached the lane: a shutdown that finds the set empty, and then stops
//! the lanes, misses nothing. It stays in the set when its lease is lost, because its attempt may still record an outcome.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::model::Subject;

#[derive(Debug, Default)]
pub(crate) struct Guards(Mutex<HashMap<Uuid, Subject>>);

impl Guards {
    /// `id` is that of the grant or of the attempt.
    pub(crate) fn add(&self, id: Uuid, subject: Subject) {
        self.locked().insert(id, subject);
    }

    pub(crate) fn remove(&self, id: Uuid) {
        self.locked().remove(&id);
    }

    pub(crate) fn list(&self) -> Vec<Subject> {
        self.locked().values().cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Uuid, Subject>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
