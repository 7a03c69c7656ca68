//! `#[idempotent]` on functions of one name in one module: those of two types are two functions, and so are those
//! inside of two functions.

use std::marker::PhantomData;

use rowlock::attributes::Refused;
use rowlock::{Error, Rowlock, idempotent};
use rowlock_test::{Db, on_every_engine};

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rowlock(#[from] Error),
    #[error(transparent)]
    Refused(#[from] Refused),
}

type PaidResult = Result<String, Failed>;

trait Gateway {
    fn client(&self) -> &Rowlock;

    async fn pay(&self, cents: u64) -> PaidResult;

    #[idempotent(scope = "shop", key = "default", client = self.client())]
    async fn pay_by_default(&self, cents: u64) -> PaidResult {
        Ok(format!("{cents}"))
    }
}

struct Card(Rowlock);
struct Paypal(Rowlock);

impl Gateway for Card {
    fn client(&self) -> &Rowlock {
        &self.0
    }

    #[idempotent(scope = "shop", key = "method", client = self.0)]
    async fn pay(&self, cents: u64) -> PaidResult {
        Ok(format!("{cents} by card"))
    }
}

impl Gateway for Paypal {
    fn client(&self) -> &Rowlock {
        &self.0
    }

    #[idempotent(scope = "shop", key = "method", client = self.0)]
    async fn pay(&self, cents: u64) -> PaidResult {
        Ok(format!("{cents} by paypal"))
    }
}

impl Card {
    #[idempotent(scope = "shop", key = "associated")]
    async fn charge(rowlock: &Rowlock, cents: u64) -> PaidResult {
        Ok(format!("{cents} by card"))
    }

    #[idempotent(scope = "shop", key = "by itself", skip(card), client = &card.0)]
    async fn by_itself(card: &Self, cents: u64) -> PaidResult {
        Ok(format!("{cents} by card"))
    }
}

impl Paypal {
    #[idempotent(scope = "shop", key = "associated")]
    async fn charge(rowlock: &Rowlock, cents: u64) -> PaidResult {
        Ok(format!("{cents} by paypal"))
    }

    #[idempotent(scope = "shop", key = "by itself", skip(paypal), client = &paypal.0)]
    async fn by_itself(paypal: &Self, cents: u64) -> PaidResult {
        Ok(format!("{cents} by paypal"))
    }
}

trait Refunds {
    async fn pay(&self, cents: u64) -> PaidResult;
}

impl Refunds for Card {
    #[idempotent(scope = "shop", key = "method", client = self.0)]
    async fn pay(&self, cents: u64) -> PaidResult {
        Ok(format!("{cents} back"))
    }
}

struct Of<T>(Rowlock, PhantomData<T>);

impl<T> Of<T> {
    #[idempotent(scope = "shop", key = "parameter", client = self.0)]
    async fn pay(&self, cents: u64) -> PaidResult {
        Ok(format!("{cents} by {}", std::any::type_name::<T>()))
    }
}

async fn in_one(rowlock: &Rowlock, cents: u64) -> PaidResult {
    #[idempotent(scope = "shop", key = "inside")]
    async fn pay(rowlock: &Rowlock, cents: u64) -> PaidResult {
        Ok(format!("{cents} in one"))
    }
    pay(rowlock, cents).await
}

async fn in_another(rowlock: &Rowlock, cents: u64) -> PaidResult {
    #[idempotent(scope = "shop", key = "inside")]
    async fn pay(rowlock: &Rowlock, cents: u64) -> PaidResult {
        Ok(format!("{cents} in another"))
    }
    pay(rowlock, cents).await
}

/// Each caller has a closure of its own: the same function.
#[idempotent(scope = "shop", key = "free", skip(how))]
async fn free(rowlock: &Rowlock, cents: u64, how: impl Fn() -> u32) -> PaidResult {
    Ok(format!("{cents} in way {}", how()))
}

fn is_mismatch(paid: &PaidResult) {
    let is_mismatch = matches!(paid, Err(Failed::Refused(Refused::Mismatch { .. })));
    assert!(is_mismatch, "the other function's result: {paid:?}");
}

on_every_engine! {
    async fn a_method_of_another_type_is_another_request(db: &Db) {
        let rowlock = db.rowlock().await;
        let (card, paypal) = (Card(rowlock.clone()), Paypal(rowlock.clone()));
        for _ in 0..2 {
            assert_eq!(Gateway::pay(&card, 5).await.unwrap(), "5 by card");
            is_mismatch(&paypal.pay(5).await);
            assert_eq!(card.pay_by_default(5).await.unwrap(), "5");
            is_mismatch(&paypal.pay_by_default(5).await);
            assert_eq!(Card::charge(&rowlock, 5).await.unwrap(), "5 by card");
            is_mismatch(&Paypal::charge(&rowlock, 5).await);
            assert_eq!(Card::by_itself(&card, 5).await.unwrap(), "5 by card");
            is_mismatch(&Paypal::by_itself(&paypal, 5).await);
        }
    }

    async fn a_method_of_another_trait_is_another_request(db: &Db) {
        let card = Card(db.rowlock().await);
        for _ in 0..2 {
            assert_eq!(Gateway::pay(&card, 5).await.unwrap(), "5 by card");
            is_mismatch(&Refunds::pay(&card, 5).await);
        }
    }

    async fn a_type_counts_with_its_parameters(db: &Db) {
        let rowlock = db.rowlock().await;
        let (one, another) = (Of::<u8>(rowlock.clone(), PhantomData), Of::<u16>(rowlock, PhantomData));
        for _ in 0..2 {
            assert_eq!(one.pay(5).await.unwrap(), "5 by u8");
            is_mismatch(&another.pay(5).await);
        }
    }

    async fn functions_inside_of_two_functions_are_two_requests(db: &Db) {
        let rowlock = db.rowlock().await;
        for _ in 0..2 {
            assert_eq!(in_one(&rowlock, 5).await.unwrap(), "5 in one");
            is_mismatch(&in_another(&rowlock, 5).await);
        }
    }

    async fn a_function_is_the_same_for_all_its_callers(db: &Db) {
        let rowlock = db.rowlock().await;
        assert_eq!(free(&rowlock, 5, || 1).await.unwrap(), "5 in way 1");
        assert_eq!(free(&rowlock, 5, || 2).await.unwrap(), "5 in way 1");
    }
}
