//! A lease, its answer when somebody has it, and its end.

on_both! {
    use std::time::Duration;

    use rowlock::{Error, Loss};

    #[tokio::test]
    async fn a_lock_that_is_taken_is_none_and_who_has_it_can_be_asked() -> anyhow::Result<()> {
        let (_db, rowlock, pool) = shop().await;
        let other = crate::client(&pool).await;
        if let Some(held) = rowlock.lock("x").holder("me").try_acquire().await? {
            assert!(other.lock("x").try_acquire().await?.is_none());
            let asked = other.lock("x").wait(Duration::ZERO).acquire().await;
            let Err(Error::WaitTimeout { busy, .. }) = asked else { panic!("{asked:?}") };
            assert_eq!(busy.holder.expect("it is held").holder, "me");
            held.release().await?;
        }
        let held = other.lock("x").try_acquire().await?.expect("it is free");
        held.release().await?;
        // Already released: nothing to say.
        held.release().await?;
        Ok(())
    }

    #[tokio::test]
    async fn a_lease_that_was_lost_before_its_release_is_an_error() -> anyhow::Result<()> {
        let (_db, rowlock, pool) = shop().await;
        let operator = crate::client(&pool).await;
        let held = rowlock.lock("x").acquire().await?;
        operator.admin().force_release("x").await?;
        match held.release().await {
            Err(Error::Lost { name, loss: Loss::TakenOver }) => assert_eq!(name.as_str(), "x"),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_lock_in_a_transaction_that_is_taken_is_none() -> anyhow::Result<()> {
        let (_db, rowlock, pool) = shop().await;
        let held = rowlock.lock("x").acquire().await?;
        let mut tx = pool.begin().await?;
        assert!(rowlock.in_tx(&mut tx).lock("x").try_acquire().await?.is_none());
        let asked = rowlock.in_tx(&mut tx).lock("x").wait(Duration::ZERO).acquire().await;
        assert!(matches!(asked, Err(Error::WaitTimeout { .. })), "{asked:?}");
        tx.rollback().await?;
        held.release().await?;
        let mut tx = pool.begin().await?;
        let locked = rowlock.in_tx(&mut tx).lock("x").try_acquire().await?.expect("it is free");
        assert!(locked.fence() > held.fence());
        tx.commit().await?;
        Ok(())
    }
}
