//! Handlers of axum as people write them: what they capture, what they return, and how they fail.

on_both! {
    use axum::Router;
    use axum::extract::State;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::post;
    use rowlock::Rowlock;
    use rowlock_http::{Idempotent, IdempotencyLayer};

    struct AppError(anyhow::Error);

    impl<E: Into<anyhow::Error>> From<E> for AppError {
        fn from(error: E) -> Self {
            Self(error.into())
        }
    }

    impl IntoResponse for AppError {
        fn into_response(self) -> Response {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}", self.0)).into_response()
        }
    }

    #[derive(Clone)]
    struct Shop {
        rowlock: Rowlock,
        pool: Pool,
    }

    /// `?` after the call: the error type of the closure stands on it.
    async fn sell(State(shop): State<Shop>, item: String) -> Result<String, AppError> {
        let left = shop.rowlock.retry().run(&shop.pool, async |mut tx| -> anyhow::Result<i64> {
            shop.rowlock.in_tx(&mut tx).lock(format!("stock:{item}")).acquire().await?;
            let sell = "UPDATE stock SET items = items - 1 WHERE id = $1 AND items > 0 RETURNING items";
            Ok(sqlx::query_scalar(sell).bind(&item).fetch_one(&mut *tx).await?)
        }).await?;
        Ok(format!("{left} {item}s left"))
    }

    /// A handler whose type says no more than axum's own.
    async fn pay(State(shop): State<Shop>, once: Idempotent, body: String) -> Result<Response, AppError> {
        let paid = once.in_tx(&shop.pool, async |mut tx| -> anyhow::Result<_> {
            sqlx::query("INSERT INTO payment VALUES ($1)").bind(&body).execute(&mut *tx).await?;
            Ok((StatusCode::CREATED, "paid"))
        }).await?;
        Ok(paid)
    }

    struct User(String);

    impl<S: Sync> axum::extract::FromRequestParts<S> for User {
        type Rejection = (StatusCode, &'static str);

        async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
            let user = parts.headers.get("user").and_then(|user| user.to_str().ok());
            Ok(Self(user.ok_or((StatusCode::FORBIDDEN, "log in first"))?.into()))
        }
    }

    fn router(shop: Shop) -> Router {
        let layer = IdempotencyLayer::from_extractor(shop.rowlock.idempotency(), |user: User| user.0);
        Router::new()
            .route("/payments", post(pay))
            .route_layer(layer)
            .route("/sales", post(sell))
            .with_state(shop)
    }

    async fn served(shop: Shop) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router(shop)).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn handlers_sell_and_pay_once() {
        let (db, rowlock, pool) = shop().await;
        let server = served(Shop { rowlock, pool }).await;
        let http = reqwest::Client::new();
        let sell = || http.post(format!("{server}/sales")).body("chair").send();
        assert_eq!(sell().await.unwrap().text().await.unwrap(), "1 chairs left");
        assert_eq!(sell().await.unwrap().text().await.unwrap(), "0 chairs left");
        assert_eq!(sell().await.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
        for _ in 0..2 {
            let pay = http.post(format!("{server}/payments")).header("user", "ann").header("idempotency-key", "\"k\"");
            let paid = pay.body("500").send().await.unwrap();
            assert_eq!(paid.status(), StatusCode::CREATED);
            assert_eq!(paid.text().await.unwrap(), "paid");
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 1);
        // The same key of another user is another request, and the extractor's refusal is the answer to a stranger.
        let pay = || http.post(format!("{server}/payments")).header("idempotency-key", "\"k\"").body("500");
        assert_eq!(pay().header("user", "bob").send().await.unwrap().status(), StatusCode::CREATED);
        let refused = pay().send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert_eq!(refused.text().await.unwrap(), "log in first");
        assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 2);
    }
}
