//! Names that this client keeps although nobody needs them ([`cohort::linger`](crate::runtime::cohort)), until somebody asks for them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::model::Name;

/// What keeps a name.
pub(crate) trait Keeper: fmt::Debug + Send + Sync {
    /// Somebody asks for the name: gives it back, at once or after its next release.
    fn recall(&self);
}

/// The keepers of a client, by name.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    all: Mutex<HashMap<Name, Weak<dyn Keeper>>>,
    /// There may be some.
    has_any: AtomicBool,
}

impl Keepers {
    /// Returns whether it is the first one for a while: then [`Self::names`] has to be asked now and then.
    pub(crate) fn add(&self, name: Name, keeper: Weak<dyn Keeper>) -> bool {
        let mut all = self.locked();
        all.insert(name, keeper);
        !self.has_any.swap(true, Ordering::SeqCst)
    }

    /// This one keeps the name no longer.
    pub(crate) fn remove(&self, name: &Name, keeper: &Weak<dyn Keeper>) {
        let mut all = self.locked();
        // (Two pointers to a trait may differ in their tables.)
        if all
            .get(name)
            .is_some_and(|of| std::ptr::addr_eq(of.as_ptr(), keeper.as_ptr()))
        {
            all.remove(name);
        }
    }

    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::SeqCst)
    }

    /// The names that are kept; `None`: there are none any more.
    pub(crate) fn names(&self) -> Option<Vec<Name>> {
        let all = self.locked();
        if all.is_empty() {
            self.has_any.store(false, Ordering::SeqCst);
            return None;
        }
        Some(all.keys().cloned().collect())
    }

    /// Somebody asks for the name.
    pub(crate) fn recall(&self, name: &Name) {
        if !self.has_any() {
            return;
        }
        let keeper = self.locked().get(name).and_then(Weak::upgrade);
        if let Some(keeper) = keeper {
            keeper.recall();
        }
    }

    /// All names are given back.
    pub(crate) fn recall_all(&self) {
        let all: Vec<_> = self.locked().values().filter_map(Weak::upgrade).collect();
        for keeper in all {
            keeper.recall();
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Name, Weak<dyn Keeper>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
