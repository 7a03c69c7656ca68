//! Statements in the closure of each function that takes one, with values of the caller's, in a task that may move.

on_both! {
    use rowlock::{Begun, Fingerprint, Outcome, Scope, Submitted};
    use rowlock_recipes::inbox::{Delivery, Inbox};

    /// An error of the application's.
    #[derive(Debug, thiserror::Error)]
    enum ShopError {
        #[error(transparent)]
        Lock(#[from] rowlock::Error),
        #[error(transparent)]
        Sql(#[from] sqlx::Error),
        #[error("sold out")]
        SoldOut,
    }

    impl rowlock::Retryable for ShopError {
        fn is_retryable(&self) -> bool {
            match self {
                Self::Lock(error) => error.is_retryable(),
                Self::Sql(error) => rowlock::is_retryable(error),
                Self::SoldOut => false,
            }
        }
    }

    const PAY: &str = "INSERT INTO payment VALUES ('chair')";

    #[tokio::test]
    async fn every_closure_runs_statements_on_the_transaction() {
        let (db, rowlock, pool) = shop().await;
        let (what, request) = (String::from("chair"), Fingerprint::of("chair"));
        // A task of its own: the future may move between threads.
        let done = tokio::spawn(async move {
            rowlock.retry().run(&pool, async |mut tx| {
                rowlock.in_tx(&mut tx).lock(&*what).acquire().await?;
                sqlx::query(PAY).execute(&mut *tx).await?;
                Ok::<_, rowlock::Error>(())
            }).await.unwrap();

            let key = Scope("ann").key(&what);
            let paid = rowlock.idempotency().run_in_tx(&pool, key, &request, async |mut tx| -> anyhow::Result<Outcome> {
                sqlx::query(PAY).execute(&mut *tx).await?;
                Ok(Outcome::json(&what)?)
            }).await.unwrap();
            assert!(matches!(paid, Begun::New(_)));

            let tokens = rowlock.form_tokens();
            let token = tokens.issue("ann").await.unwrap();
            let submitted = tokens.submit(&pool, Scope("ann").key(token.as_str()), &request, async |mut tx| {
                sqlx::query(PAY).execute(&mut *tx).await?;
                Outcome::json(&what)
            }).await.unwrap();
            assert!(matches!(submitted, Submitted::New(_)));

            let inbox = Inbox::new(rowlock.idempotency(), &pool, "billing");
            let delivery: Delivery<anyhow::Error> = inbox.receive("evt_1", &what, async |mut tx| {
                sqlx::query(PAY).execute(&mut *tx).await?;
                Ok(())
            }).await;
            assert!(matches!(delivery, Delivery::Done));
        });
        done.await.unwrap();
        assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 4);
    }

    /// The error type of the closure stands on it; nothing is moved out of the handler.
    #[tokio::test]
    async fn an_error_of_the_applications_own_rolls_back_and_is_not_tried_again() {
        let (db, rowlock, pool) = shop().await;
        let (what, tries) = (String::from("chair"), std::sync::atomic::AtomicU32::new(0));
        let sold: Result<(), ShopError> = async {
            let left = rowlock.retry().run(&pool, async |mut tx| -> Result<i64, ShopError> {
                tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                sqlx::query(PAY).execute(&mut *tx).await?;
                rowlock.in_tx(&mut tx).lock(&*what).acquire().await?;
                Err(ShopError::SoldOut)
            }).await?;
            unreachable!("{left}")
        }.await;
        assert!(matches!(sold, Err(ShopError::SoldOut)));
        assert_eq!(tries.into_inner(), 1);
        assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 0);
        assert_eq!(what, "chair");
    }

    /// A savepoint of the application's own.
    #[tokio::test]
    async fn a_savepoint_in_a_closure_is_rolled_back_alone() {
        use sqlx::Connection as _;

        let (db, rowlock, pool) = shop().await;
        rowlock.retry().run(&pool, async |mut tx| -> anyhow::Result<()> {
            sqlx::query(PAY).execute(&mut *tx).await?;
            let mut inner = tx.begin().await?;
            sqlx::query(PAY).execute(&mut *inner).await?;
            inner.rollback().await?;
            Ok(())
        }).await.unwrap();
        assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 1);
    }
}
