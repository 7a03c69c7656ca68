//! Payments, protected by the `Idempotency-Key` header. The shop charges an order once, whatever keys its requests
//! have.
//!
//! A key makes one *request* happen once. Two keys for one order are two requests. So the charge belongs to the order:
//!
//! - Before the first charge, the order gets an *open charge*: the provider's idempotency key, and the amount. The
//!   first request makes it. Every other request for this order uses the same open charge, also after the first
//!   request's process has died.
//! - The provider charges once for its key, however many requests ask for it.
//! - The shop drops an open charge only when the provider has declined it, which is final. An open charge that is
//!   under way, was captured, or has an unknown outcome stays, and the order gets no other charge.
//!
//! So the shop never refunds a charge, and a superseded attempt needs no cleanup: it may ask the provider once more,
//! which charges nothing, and then its `complete_in` fails.
//!
//! The provider must remember its keys for longer than an order stays half paid. A real shop runs a job that asks the
//! provider about older open charges.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use rowlock::Error;
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

/// The result of the attempt to pay an order.
#[derive(Debug, Serialize, Deserialize)]
enum Settled {
    /// This request or another request has paid it.
    Paid(Payment),
    /// The provider declined this request's charge, and no other request has paid.
    Declined,
}

impl PaymentRequest {
    fn parse(body: &[u8]) -> Result<Self, Problem> {
        let request: Self = parse(body)?;
        check("order_id", &request.order_id)?;
        if request.amount_cents <= 0 {
            return Err(Problem::bad("amount_cents must be greater than 0"));
        }
        if request.currency != "EUR" {
            return Err(Problem::bad("currency must be \"EUR\""));
        }
        Ok(request)
    }

    fn charge(self, charge_key: String) -> OpenCharge {
        OpenCharge {
            charge_key,
            order_id: self.order_id,
            amount_cents: self.amount_cents,
            currency: self.currency,
        }
    }
}

impl Settled {
    /// The answer to the request whose own charge this is. If another charge has paid the order, it is a conflict.
    fn answer(self, own: &OpenCharge) -> Result<(StatusCode, Payment), Problem> {
        match self {
            Self::Paid(payment) if payment.payment_id == payment_id(own) => {
                Ok((StatusCode::CREATED, payment))
            }
            Self::Paid(payment) => Ok((StatusCode::CONFLICT, payment)),
            Self::Declined => Err(Problem::new(
                StatusCode::PAYMENT_REQUIRED,
                "the card was declined: pay with another card, under a new key",
            )),
        }
    }
}

pub(crate) async fn pay(
    State(shop): State<Arc<Shop>>,
    Extension(Principal(who)): Extension<Principal>,
    once: Idempotent,
    body: Bytes,
) -> Result<Response, Problem> {
    let own = PaymentRequest::parse(&body)?.charge(once.downstream_key("charge")?);
    // The step runs once for the key, over all attempts.
    let settled = once.step("charge", Box::pin(shop.settle(&who, &own)));
    let (who, (status, payment)) = (&who, &settled.await?.answer(&own)?);
    // The payment and the response commit together, or not at all.
    on_database!(&shop.database, pool => {
        let answer = once.in_tx(pool, async |mut tx| {
            tx.add_payment(who, payment).await?;
            Ok::<_, Error>((*status, Json(payment)))
        });
        Ok(answer.await?.into_response())
    })
}

/// The payment that a charge makes.
fn payment_id(charge: &OpenCharge) -> String {
    format!("pay_{}", &charge.charge_key[..16])
}

impl Shop {
    /// Pays the order with its open charge: `own`, or the open charge of another request.
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

    /// Returns the order's open charge. Stores `own` if there is none.
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
                // Another request was first. The loop reads its charge.
                Err(error) if is_duplicate(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks the provider, which charges once for each key.
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
