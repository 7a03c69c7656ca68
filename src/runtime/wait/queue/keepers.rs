//! Names whose leases linger in this client ([`cohort`](crate::runtime::wait::cohort)), until somebody asks for them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::Name;
use crate::runtime::held::guard::Guard;

/// What keeps a name.
pub(crate) trait Keeper: fmt::Debug + Send + Sync {
    /// Somebody asks for the name. Returns the lease if it lingers: dropping the guard releases it. A lease in use
    /// does not linger after its next release.
    fn recall(&self) -> Option<Guard>;
}

/// The keepers, with the numbers that they have got.
type ByName = HashMap<Name, (u64, Weak<dyn Keeper>)>;

/// The keepers of a client, by name.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    all: Mutex<ByName>,
    count: AtomicU64,
    /// There may be some.
    keeps_any: AtomicBool,
}

impl Keepers {
    /// Returns its number, and whether it is the first one for a while: then [`Self::names`] has to be asked now and
    /// then.
    pub(crate) fn add(&self, name: Name, keeper: Weak<dyn Keeper>) -> (u64, bool) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut all = self.all.lock();
        all.insert(name, (number, keeper));
        (number, !self.keeps_any.swap(true, Ordering::SeqCst))
    }

    /// The one with this number keeps the name no longer. (Another one may keep it.)
    pub(crate) fn remove(&self, name: &Name, number: u64) {
        let mut all = self.all.lock();
        if all.get(name).is_some_and(|(of, _)| *of == number) {
            all.remove(name);
        }
    }

    pub(crate) fn keeps_any(&self) -> bool {
        self.keeps_any.load(Ordering::SeqCst)
    }

    /// The names to look at, also those in use: in steady use a lease lingers too briefly for a look to meet it.
    /// `None`: nobody keeps a name.
    pub(crate) fn names(&self) -> Option<Vec<Name>> {
        let all = self.all.lock();
        if all.is_empty() {
            self.keeps_any.store(false, Ordering::SeqCst);
            return None;
        }
        Some(all.keys().cloned().collect())
    }

    /// Somebody asks for the name. Returns the lease that lingers; dropping it releases it.
    pub(crate) fn recall(&self, name: &Name) -> Option<Guard> {
        if !self.keeps_any() {
            return None;
        }
        let keeper = self.all.lock().get(name).and_then(|(_, of)| of.upgrade());
        keeper?.recall()
    }

    /// All names are given back.
    pub(crate) fn recall_all(&self) {
        let all: Vec<_> = {
            let all = self.all.lock();
            all.values().filter_map(|(_, of)| of.upgrade()).collect()
        };
        for keeper in all {
            drop(keeper.recall());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Debug, Default)]
    struct Recalled(AtomicU32);

    impl Keeper for Recalled {
        fn recall(&self) -> Option<Guard> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    #[test]
    fn the_last_keeper_of_a_name_is_recalled_when_an_earlier_one_has_gone() {
        let (keepers, keeper) = (Keepers::default(), Arc::new(Recalled::default()));
        let name = Name::new("a").unwrap();
        let this: Arc<dyn Keeper> = Arc::<Recalled>::clone(&keeper);
        let add = || keepers.add(name.clone(), Arc::downgrade(&this));
        let ((first, is_first), (second, is_next)) = (add(), add());
        assert!(is_first && !is_next);
        keepers.remove(&name, first);
        assert_eq!(keepers.names(), Some(vec![name.clone()]));
        keepers.recall(&name);
        assert_eq!(keepers.names(), Some(vec![name.clone()]));
        assert_eq!(keeper.0.load(Ordering::Relaxed), 1);
        keepers.remove(&name, second);
        keepers.recall(&name);
        assert_eq!(keeper.0.load(Ordering::Relaxed), 1);
        assert_eq!(keepers.names(), None);
        assert!(!keepers.keeps_any());
    }
}
