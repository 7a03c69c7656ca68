//! The guards of a client that have not ended. Its shutdown reports them, and goes no further while there are any.
//!
//! A guard leaves this set after its release or its end has reached the lane: a shutdown that finds the set empty, and
//! then stops the lanes, misses nothing. The guard of an attempt stays in the set when its lease is lost, because the
//! attempt may still record an outcome. The guard of a lost lock has nothing left to do, and is not listed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

use super::grant::Grant;
use crate::model::{Loss, Subject};

#[derive(Debug, Default)]
pub(crate) struct Guards(Mutex<HashMap<Uuid, GuardEntry>>);

#[derive(Debug)]
enum GuardEntry {
    Lock(Arc<Grant>),
    Attempt(Subject),
}

impl Guards {
    pub(crate) fn add_lock(&self, grant: &Arc<Grant>) {
        let guarded = GuardEntry::Lock(Arc::clone(grant));
        self.0.lock().insert(grant.id, guarded);
    }

    /// `id` is that of the attempt.
    pub(crate) fn add_attempt(&self, id: Uuid, record: Subject) {
        self.0.lock().insert(id, GuardEntry::Attempt(record));
    }

    pub(crate) fn remove(&self, id: Uuid) {
        self.0.lock().remove(&id);
    }

    /// The row of this grant was freed.
    pub(crate) fn freed(&self, id: Uuid) {
        let guarded = self.0.lock();
        let Some(GuardEntry::Lock(grant)) = guarded.get(&id) else {
            return;
        };
        let grant = Arc::clone(grant);
        drop(guarded);
        grant.lose(Loss::TakenOver);
    }

    /// What they guard, in order. Locks that are lost are not guarded any more.
    pub(crate) fn list(&self) -> Vec<Subject> {
        let guarded = self.0.lock();
        let subjects = guarded.values().filter_map(|guarded| match guarded {
            GuardEntry::Lock(grant) if grant.loss().is_some() => None,
            GuardEntry::Lock(grant) => Some(Subject::Lock(grant.shown.clone())),
            GuardEntry::Attempt(record) => Some(record.clone()),
        });
        let mut subjects: Vec<Subject> = subjects.collect();
        subjects.sort_unstable();
        subjects
    }
}
