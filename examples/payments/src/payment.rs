//! Payments, behind the `Idempotency-Key` header. An order is charged once, whatever keys its requests have.
//!
//! A key makes one *request* once. Two keys for one order are two requests, so that the charge belongs to the order:
//!
//! - Before anything is charged, the order gets an *open charge*: the provider's idempotency key, and the amount. The first
//!   request makes it; every other one for this order goes on with it, also when the first one's process has died.
//! - The provider charges once for its key, however many requests ask for it.
//! - An open charge is dropped only when the provider has declined it, which is for ever. One that is under way, or was
//!   captured, or of which nobody knows, stays, and with it the order's only charge.
//!
//! So there is nothing to give back, and nothing for a superseded attempt to do. It may ask the provider once more, which
//! charges nothing, and fails when it completes.
//!
//! The provider has to remember its keys for longer than an order stays half paid. In a shop that is open for years, a job
//! asks the provider about open charges that are older than that.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use rowlock::{Error, Retry};
use rowlock_http::Idempotent;
use serde::{Deserialize, Serialize};

use crate::database::{OpenCharge, Payment, Statements, is_duplicate, on_database};
use crate::gateway::{Charge, Charged};
use crate::problem::{Problem, check, parse};
use crate::server::{Principal, Shop};

#[derive(Debug, Deserialize)]
struct PaymentRequest {
    order_id: String,
    amount_cents: i64,
    currency: String,
}

/// What has become of an order.
#[derive(Debug, Serialize, Deserialize)]
enum Settled {
    /// By this request, or by another one.
    Paid(Payment),
    /// This request's own charge was declined, and there is no other.
    Declined,
}

pub(crate) async fn pay(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
    Extension(once): Extension<Idempotent>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request: PaymentRequest = parse(&body)?;
    check("order_id", &request.order_id)?;
    if request.amount_cents <= 0 {
        return Err(Problem::bad("amount_cents is greater than 0"));
    }
    if request.currency != "EUR" {
        return Err(Problem::bad("currency is \"EUR\""));
    }
    let own = OpenCharge {
        charge_key: once.downstream_key("charge")?,
        order_id: request.order_id,
        amount_cents: request.amount_cents,
        currency: request.currency,
    };
    // Once for the key, over all attempts.
    let settled = Box::pin(shop.settle(&principal, &own));
    let settled = once.step("charge", settled).await?;
    let Settled::Paid(payment) = settled else {
        let declined = Problem::new(StatusCode::PAYMENT_REQUIRED, "the card was declined");
        return Err(declined);
    };
    let status = if payment.payment_id == payment_id(&own) {
        StatusCode::CREATED
    } else {
        StatusCode::CONFLICT
    };
    // The payment and the response: both or neither.
    let (once, who, payment) = (&once, &principal, &payment);
    let response = on_database!(&shop.database, pool => {
        Retry::new().run(pool, |mut tx| async move {
            tx.add_payment(who, payment).await?;
            once.complete_in(&mut tx, (status, Json(payment)).into_response()).await
        }).await
    });
    match response {
        Ok(response) => Ok(response.into_response()),
        // Another request for this order was first to write the same payment down.
        Err(Error::Application { cause }) if is_duplicate(cause.sqlx()) => {
            Ok((status, Json(payment)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

/// The payment that a charge makes.
fn payment_id(charge: &OpenCharge) -> String {
    format!("pay_{}", &charge.charge_key[..16])
}

impl Shop {
    /// Pays the order with its open charge: `own`, or that of another request.
    async fn settle(&self, principal: &str, own: &OpenCharge) -> Result<Settled, Problem> {
        loop {
            let paid = on_database!(&self.database, pool => {
                pool.acquire().await?.payment(principal, &own.order_id).await?
            });
            if let Some(payment) = paid {
                return Ok(Settled::Paid(payment));
            }
            let charge = self.open_charge(principal, own).await?;
            let charged = self.charge(&charge).await?;
            if charged.status != "declined" {
                return Ok(Settled::Paid(Payment {
                    payment_id: payment_id(&charge),
                    order_id: charge.order_id,
                    amount_cents: charge.amount_cents,
                    currency: charge.currency,
                    status: charged.status,
                }));
            }
            on_database!(&self.database, pool => {
                pool.acquire().await?.drop_open_charge(principal, &charge).await?;
            });
            if charge.charge_key == own.charge_key {
                return Ok(Settled::Declined);
            }
        }
    }

    /// The order's open charge; `own`, if there is none.
    async fn open_charge(&self, principal: &str, own: &OpenCharge) -> Result<OpenCharge, Problem> {
        loop {
            let (open, added) = on_database!(&self.database, pool => {
                let mut connection = pool.acquire().await?;
                match connection.open_charge(principal, &own.order_id).await? {
                    Some(open) => (open, Ok(())),
                    None => (own.clone(), connection.add_open_charge(principal, own).await),
                }
            });
            match added {
                Ok(()) => return Ok(open),
                // Another request was first: its charge is the one.
                Err(error) if is_duplicate(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks the provider, which charges once for a key.
    async fn charge(&self, charge: &OpenCharge) -> Result<Charged, Problem> {
        let answer = self
            .client
            .post(format!("{}/charges", self.gateway))
            .header("Idempotency-Key", &charge.charge_key)
            .json(&Charge {
                reference: charge.order_id.clone(),
                amount_cents: charge.amount_cents,
                currency: charge.currency.clone(),
                delay_ms: self.gateway_delay_ms,
            })
            .send()
            .await
            .and_then(reqwest::Response::error_for_status);
        let answer = answer.map_err(|error| Problem::trouble(&error))?;
        let charged = answer.json().await;
        charged.map_err(|error| Problem::trouble(&error))
    }
}

pub(crate) async fn payments(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(principal)): Extension<Principal>,
) -> Result<Json<Vec<Payment>>, Problem> {
    on_database!(&shop.database, pool => {
        Ok(Json(pool.acquire().await?.payments(&principal).await?))
    })
}
