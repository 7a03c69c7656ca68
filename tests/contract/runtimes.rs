//! The caller's runtime: what asks once needs neither its timers nor its sockets.

use rowlock::{Begun, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{Db, on_every_engine};

on_every_engine! {
    async fn asking_once_needs_no_timers_of_the_callers_runtime(db: &Db) {
        let url = db.url.clone();
        let work = async move {
            let rowlock = Rowlock::connect(&url).await.unwrap();
            let (me, request) = (rowlock.owner(), Fingerprint::of("request"));
            let held = rowlock.lock("a").owner(&me).try_acquire().await.unwrap().unwrap();
            let again = rowlock.lock("a").owner(&me).acquire().await.unwrap();
            assert!(rowlock.lock("a").try_acquire().await.unwrap().is_none());
            assert_eq!(rowlock.inspect("a").await.unwrap().unwrap().fence, held.fence());
            drop(again);
            held.release().await.unwrap();
            let begun = rowlock.idempotency().begin(Scope("scope").key("k"), &request).await.unwrap();
            let Begun::New(guard) = begun else { panic!("{begun:?}") };
            assert_eq!(guard.step("s", async { Ok::<_, rowlock::Error>(1) }).await.unwrap(), 1);
            guard.complete(&Outcome::empty()).await.unwrap();
            rowlock.form_tokens().issue("scope").await.unwrap();
            rowlock.version("a").await.unwrap();
        };
        let thread = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(work);
        });
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    }
}
