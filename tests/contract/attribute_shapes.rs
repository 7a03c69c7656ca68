//! The functions that can have an attribute: methods, type parameters, lifetimes, references, traits, both attributes
//! at once.

use std::fmt::{Debug, Display};

use rowlock::attributes::Refused;
use rowlock::{Error, Rowlock, idempotent, locked};
use rowlock_test::{Db, on_every_engine};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

type ShopResult<T> = Result<T, Failed>;

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rowlock(#[from] Error),
    #[error(transparent)]
    Refused(#[from] Refused),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    number: u64,
    parts: (String, u32),
}

#[derive(Debug)]
struct Shop {
    rowlock: Rowlock,
    name: String,
    sold: Vec<u64>,
}

trait Till {
    async fn open(&self, number: u32) -> ShopResult<String>;
}

impl Till for Shop {
    #[locked(name = "till:{number}")]
    async fn open(&self, number: u32) -> ShopResult<String> {
        Ok(held.name().to_string())
    }
}

impl Shop {
    #[locked(name = "{self.name}:{order.number}:{order.parts.1}:{{}}", guard = lease)]
    async fn name_of(&self, order: &Order) -> ShopResult<String> {
        Ok(lease.name().to_string())
    }

    #[locked(name = "{self.name}")]
    async fn borrow(&self, at: usize) -> ShopResult<&u64> {
        tokio::task::yield_now().await;
        Ok(&self.sold[at])
    }

    #[locked(name = "{self.name}")]
    async fn change<'a>(&'a mut self, number: u64) -> ShopResult<&'a mut u64> {
        self.sold.push(number);
        tokio::task::yield_now().await;
        Ok(self.sold.last_mut().unwrap())
    }

    #[locked(name = "{self.name}", client = self.rowlock.clone())]
    async fn take_apart(self) -> ShopResult<impl Iterator<Item = u64> + Send> {
        tokio::task::yield_now().await;
        Ok(self.sold.into_iter())
    }

    #[locked(name = "{prefix}:{id}", client = &shop.rowlock)]
    async fn longest<'a, 'b: 'a, T>(
        shop: &Self,
        prefix: &str,
        id: &'a T,
        mut more: Vec<&'b T>,
        (pick, at): (impl AsyncFn(usize) -> bool + Send + Sync, usize),
    ) -> ShopResult<Vec<&'a T>>
    where
        T: Display + Debug + Sync + ?Sized,
    {
        if pick(at).await {
            more.push(id);
        }
        held.with(async || ()).await?;
        Ok(more)
    }

    #[idempotent(scope = "{self.name}", key = "sell:{order.number}", skip(shops), guard = sale)]
    async fn sell<T>(&self, order: &Order, paid: T, mut shops: Vec<&Self>) -> ShopResult<(T, i64)>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
    {
        shops.push(self);
        tokio::task::yield_now().await;
        Ok((paid, sale.attempt()))
    }
}

/// The lower attribute is outside: a replay needs no lock.
#[locked(name = "order:{number}")]
#[idempotent(scope = "shop", key = "{number}", client = rowlock)]
async fn both(rowlock: &Rowlock, number: u64) -> ShopResult<(i64, String)> {
    let name = held.name().to_string();
    tokio::task::yield_now().await;
    Ok((attempt.attempt(), name))
}

on_every_engine! {
    async fn functions_of_every_shape_hold_a_lock(db: &Db) {
        let rowlock = db.rowlock().await;
        let name = "berlin".to_owned();
        let mut shop = Shop { rowlock: rowlock.clone(), name, sold: vec![1] };
        // Spawned, because a future of an application has to be `Send`.
        let task = tokio::spawn(async move {
            let order = Order { number: 7, parts: ("a".into(), 8) };
            assert_eq!(shop.name_of(&order).await.unwrap(), "berlin:7:8:{}");
            assert_eq!(shop.open(3).await.unwrap(), "till:3");
            assert_eq!(*shop.borrow(0).await.unwrap(), 1);
            *shop.change(2).await.unwrap() += 1;
            let longest = Shop::longest(&shop, "x", "y", vec!["z"], (async |at| at == 1, 1)).await;
            assert_eq!(longest.unwrap(), ["z", "y"]);
            let sold: Vec<u64> = shop.take_apart().await.unwrap().collect();
            assert_eq!(sold, [1, 3]);
        });
        task.await.unwrap();
        assert_eq!(rowlock.admin().list().await.unwrap(), [], "all are released");
    }

    async fn functions_of_every_shape_run_once(db: &Db) {
        let rowlock = db.rowlock().await;
        let shop = Shop { rowlock: rowlock.clone(), name: "berlin".into(), sold: vec![] };
        let task = tokio::spawn(async move {
            let order = Order { number: 7, parts: ("a".into(), 8) };
            let first = shop.sell(&order, Some(500), vec![]).await.unwrap();
            let again = shop.sell(&order, Some(500), vec![&shop]).await.unwrap();
            assert_eq!((first.0, again), (Some(500), first));
            let other = shop.sell(&order, "500".to_owned(), vec![]).await.unwrap_err();
            assert!(matches!(other, Failed::Refused(Refused::Mismatch { .. })), "{other:?}");
        });
        task.await.unwrap();
    }

    async fn one_function_can_have_both_attributes(db: &Db) {
        let rowlock = db.rowlock().await;
        let task = tokio::spawn(async move {
            let first = both(&rowlock, 7).await.unwrap();
            assert_eq!(first.1, "order:7");
            assert_eq!(rowlock.inspect("order:7").await.unwrap(), None);
            let _busy = rowlock.lock("order:7").acquire().await.unwrap();
            assert_eq!(both(&rowlock, 7).await.unwrap(), first);
        });
        task.await.unwrap();
    }
}
