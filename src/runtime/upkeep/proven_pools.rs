//! The pools of which this client knows that they lead to its database.

use std::any::Any;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// What a pool connects with. It is another value when the application changes it.
pub(crate) type PoolOptions = Weak<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct ProvenPools(Mutex<Vec<PoolOptions>>);

impl ProvenPools {
    pub(crate) fn contains(&self, options: &PoolOptions) -> bool {
        let proven = self.0.lock();
        proven.iter().any(|one| one.ptr_eq(options))
    }

    pub(crate) fn insert(&self, options: PoolOptions) {
        let mut proven = self.0.lock();
        proven.retain(|one| one.strong_count() > 0 && !one.ptr_eq(&options));
        proven.push(options);
    }
}

/// The options of a pool, as they are compared.
pub(crate) fn options<O: Any + Send + Sync>(options: Arc<O>) -> PoolOptions {
    let options: Arc<dyn Any + Send + Sync> = options;
    Arc::downgrade(&options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_that_still_exists_is_remembered_once() {
        let proven = ProvenPools::default();
        let [one, two] = ["one", "two"].map(Arc::new);
        for pool in [&one, &two, &two] {
            proven.insert(options(Arc::clone(pool)));
        }
        assert_eq!(proven.0.lock().len(), 2);
        assert!(proven.contains(&options(Arc::clone(&one))));
        let gone = options(one);
        proven.insert(options(two));
        assert_eq!(proven.0.lock().len(), 1);
        assert!(!proven.contains(&gone));
    }
}
