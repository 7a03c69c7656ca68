//! Permits on Galera: there are none.

use std::sync::Arc;

use libtest_mimic::Trial;
use rowlock::Error;

use crate::galera::Cluster;
use crate::trial;

pub(crate) fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    vec![trial("permits_are_refused", cluster, refused)]
}

async fn refused(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (rowlock, _) = db.at(0).await;
    let semaphore = rowlock.semaphore("exports", 2);
    let catalog = rowlock.rw_lock("catalog");
    let refused = [
        semaphore.acquire().await.map(drop),
        semaphore.try_acquire().await.map(drop),
        semaphore.set_capacity().await.map(drop),
        catalog.read().await.map(drop),
        catalog.try_write().await.map(drop),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
        assert!(error.to_string().contains("Galera"), "{error}");
    }
    assert!(rowlock.lock("a").acquire().await.unwrap().is_held());
    db.remove().await;
}
