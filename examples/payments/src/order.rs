//! Orders, protected by form tokens: a second click gets the answer of the first.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use rowlock::{Error, Fingerprint, Outcome, Scope, Submitted};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::database::{Order, Statements, is_duplicate, on_database};
use crate::problem::{Problem, check, parse};
use crate::server::{Principal, Shop};

#[derive(Debug, Deserialize)]
struct OrderRequest {
    form_token: String,
    order_id: String,
    sku: String,
    quantity: i64,
}

/// The answer to the first click, and to the second.
#[derive(Debug, Serialize, Deserialize)]
struct Ordered {
    #[serde(flatten)]
    order: Order,
    status: String,
    /// The token for the form on the next page.
    form_token: String,
}

pub(crate) async fn form_token(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Response, Problem> {
    let token = shop.tokens.issue(&principal).await?;
    let body = Json(json!({ "token": token.as_str() }));
    Ok((StatusCode::CREATED, body).into_response())
}

pub(crate) async fn order(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request: OrderRequest = parse(&body)?;
    check("order_id", &request.order_id)?;
    check("sku", &request.sku)?;
    if request.quantity <= 0 {
        return Err(Problem::bad("quantity must be greater than 0"));
    }
    let form = Fingerprint::builder()
        .part(&request.order_id)
        .part(&request.sku)
        .part(request.quantity.to_be_bytes())
        .finish();
    let order = Order {
        order_id: request.order_id,
        sku: request.sku,
        quantity: request.quantity,
    };
    let (tokens, placed, who) = (&shop.tokens, &order, &principal);
    let token = request.form_token.as_str();
    let submitted: Result<Submitted, Error> = on_database!(&shop.database, pool => {
        tokens.submit(pool, Scope(who).key(token), &form, async |mut tx| {
            tx.add_order(who, placed).await?;
            let next = tokens.issue_in(&mut tx, who).await?;
            Outcome::json(&Ordered {
                order: placed.clone(),
                status: "placed".into(),
                form_token: next.to_string(),
            })
        }).await
    });
    match submitted {
        Ok(Submitted::New(outcome) | Submitted::Replay(outcome)) => {
            let content_type = [(header::CONTENT_TYPE, outcome.content_type().to_owned())];
            let body = outcome.bytes().to_vec();
            Ok((StatusCode::CREATED, content_type, body).into_response())
        }
        Ok(Submitted::InFlight) => Err(Problem::new(
            StatusCode::CONFLICT,
            "the server is processing this form: send it again in a moment",
        )),
        Ok(Submitted::Mismatch) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this form was submitted before, with other contents: load it again for a new order",
        )),
        Ok(Submitted::Gone) => Err(Problem::new(
            StatusCode::GONE,
            "the form has expired: load it again",
        )),
        Err(Error::Application { cause }) if is_duplicate(cause.sqlx()) => {
            let orders = on_database!(&shop.database, pool => {
                pool.acquire().await?.orders(&principal).await?
            });
            let before = orders
                .into_iter()
                .find(|before| before.order_id == order.order_id);
            Ok((StatusCode::CONFLICT, Json(before)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn orders(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Json<Vec<Order>>, Problem> {
    on_database!(&shop.database, pool => {
        Ok(Json(pool.acquire().await?.orders(&principal).await?))
    })
}
