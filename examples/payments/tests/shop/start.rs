//! The start: also several at the same time, and with wrong settings.

use rowlock_test::{Db, on_every_engine};

use payments::gateway;
use payments::server::{self, Settings};

fn settings(url: &str) -> Settings {
    Settings {
        url: url.into(),
        gateway: "http://127.0.0.1:9".into(),
        connections: 2,
        ..Settings::default()
    }
}

on_every_engine! {
    async fn several_make_the_tables_at_once(db: &Db) {
        for _ in 0..5 {
            let mut starts = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let settings = settings(&db.url);
                starts.spawn(async move {
                    let app = server::router(&settings).await;
                    app.map(drop).map_err(|error| error.to_string())
                });
            }
            for started in starts.join_all().await {
                started.unwrap();
            }
            for table in ["order_payment", "open_charge", "placed_order"] {
                assert_eq!(db.number(&format!("SELECT COUNT(*) FROM {table}")).await, 0);
                db.execute(&format!("DROP TABLE {table}")).await;
            }
        }
    }
}

#[tokio::test]
async fn what_cannot_be_opened_is_named_without_its_password() {
    let cases = [
        ("postgres://me:s3cret@127.0.0.1:1/shop", "127.0.0.1:1"),
        ("mysql://me:s3cret@127.0.0.1:1/shop", "127.0.0.1:1"),
        ("sqlite:/no/such/folder/shop.db", "/no/such/folder/shop.db"),
        ("redis://localhost", "postgres://"),
    ];
    for (url, says) in cases {
        let error = server::router(&settings(url))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(says) && !error.contains("s3cret"),
            "{url}: {error}"
        );
    }
    let refused = Settings {
        gateway: "nonsense".into(),
        ..settings("sqlite:/no/such/folder/shop.db")
    };
    let error = server::router(&refused).await.unwrap_err().to_string();
    assert!(error.contains("\"nonsense\""), "{error}");
    let error = gateway::router("/no/such/folder/gateway.db".into()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/no/such/folder/gateway.db"), "{error}");
}
