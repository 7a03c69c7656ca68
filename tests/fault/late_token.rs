//! A form token that is issued once more when it was used.

use rowlock::{Engine, Rowlock, Scope};
use rowlock_test::{Db, Mode, on_tx, through_proxy};

/// Issuing it was sent twice, and the first sending reaches the server when the token was used: it is not good again.
pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let builder = Rowlock::builder().clean_every(None);
    let tokens = builder.connect(&url).await.unwrap().form_tokens();
    // Everything is prepared.
    tokens.issue("s").await.unwrap();
    proxy.set(Mode::KeepNextRequest);
    let token = tokens.issue("s").await.unwrap();
    assert_eq!(proxy.mode(), Mode::Pass, "a request was kept");
    for is_good in [true, false] {
        let mut tx = db.begin().await;
        let used =
            on_tx!(&mut tx, tx => tokens.consume_in(tx, Scope("s").key(token.as_str())).await);
        assert_eq!(used.unwrap(), is_good);
        tx.commit().await.unwrap();
        if is_good {
            let issued = "SELECT COUNT(*) FROM rowlock_form_token";
            let before = db.number(issued).await;
            proxy.deliver().await;
            assert_eq!(db.number(issued).await, before + 1, "it was issued late");
        }
    }
    db.remove().await;
}
