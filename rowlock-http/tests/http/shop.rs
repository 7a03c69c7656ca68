//! What the server does: the header `x-act`, which is no part of the fingerprint, asks for it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use rowlock::{Error, IdempotencyGuard, Outcome, StepFailed, TransactionError};
use rowlock_http::Idempotent;
use sqlx::SqlitePool;
use tokio::sync::Semaphore;

use crate::responses::{Panics, odd, short, stream, stream_of, trailers};

pub(crate) struct Shop {
    pool: SqlitePool,
    /// How often the handler has run.
    runs: AtomicU32,
    /// The keys whose handler has begun.
    begun: Mutex<HashSet<String>>,
    /// How many requests the server was handed.
    handed: AtomicU32,
    /// The keys of all requests that the server was handed.
    pub(crate) seen: Mutex<HashSet<String>>,
    /// The keys of answers that nobody has waited for.
    pub(crate) dropped: Mutex<HashSet<String>>,
    /// The keys of the other answers.
    pub(crate) answered: Mutex<HashSet<String>>,
    /// Who waits goes on with a permit.
    pub(crate) gate: Semaphore,
    /// What the handler has seen of its attempts.
    pub(crate) noted: Mutex<Vec<String>>,
}

/// One request, until it is answered.
pub(crate) struct Watch(Arc<Shop>, Option<String>);

impl Watch {
    pub(crate) fn answered(mut self) {
        if let Some(key) = self.1.take() {
            self.0.answered.lock().unwrap().insert(key);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(key) = self.1.take() {
            self.0.dropped.lock().unwrap().insert(key);
        }
    }
}

impl Shop {
    pub(crate) fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            runs: AtomicU32::new(0),
            begun: Mutex::default(),
            handed: AtomicU32::new(0),
            seen: Mutex::default(),
            dropped: Mutex::default(),
            answered: Mutex::default(),
            gate: Semaphore::new(0),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn has_begun(&self, key: &str) -> bool {
        self.begun.lock().unwrap().contains(&format!("\"{key}\""))
    }

    pub(crate) fn handed(&self) -> u32 {
        self.handed.load(Ordering::SeqCst)
    }

    pub(crate) fn watch(self: &Arc<Self>, headers: &HeaderMap) -> Watch {
        let key = text(headers, "idempotency-key").unwrap_or_default();
        self.handed.fetch_add(1, Ordering::SeqCst);
        self.seen.lock().unwrap().insert(key.clone());
        Watch(Arc::clone(self), Some(key))
    }

    pub(crate) fn noted(&self) -> Vec<String> {
        self.noted.lock().unwrap().clone()
    }

    pub(crate) fn note(&self, what: impl Into<String>) {
        self.noted.lock().unwrap().push(what.into());
    }

    pub(crate) async fn wait(&self) {
        self.gate.acquire().await.unwrap().forget();
    }

    async fn effect(&self, key: &str) {
        let insert = sqlx::query("INSERT INTO effect VALUES (?)").bind(key);
        insert.execute(&self.pool).await.unwrap();
    }
}

pub(crate) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The response tells which run it is from, so that a second run would show.
pub(crate) async fn handle(State(shop): State<Arc<Shop>>, request: Request) -> Response {
    let run = shop.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let key = text(&parts.headers, "idempotency-key").unwrap_or_default();
    shop.begun.lock().unwrap().insert(key.clone());
    let idempotent = parts.extensions.get::<Idempotent>().cloned();
    let act = text(&parts.headers, "x-act").unwrap_or_else(|| "201".into());
    let (act, argument) = act.split_once(' ').unwrap_or((&act, ""));
    let said = String::from_utf8_lossy(&body);
    let said = format!("run {run}: {} {} {said}", parts.method, parts.uri);

    if let (
        Some(idempotent),
        "commit" | "rollback" | "in-tx" | "large-in-tx" | "trailers-in-tx" | "wait-in-tx" | "steps"
        | "open-step" | "wait-in-step" | "complete" | "guard-commit" | "guard-rollback",
    ) = (&idempotent, act)
    {
        return attempt(&shop, idempotent, &key, act, argument, said).await;
    }
    shop.effect(&key).await;
    let mut response = match act {
        "panic" => panic!("as was asked"),
        // Its work is done, and it says so.
        "kept-claimed" => {
            idempotent.as_ref().unwrap().keep_claimed();
            assert_ne!(argument, "panic", "as was asked");
            (StatusCode::INTERNAL_SERVER_ERROR, said).into_response()
        }
        "wait" => {
            shop.wait().await;
            let status = StatusCode::from_bytes(argument.as_bytes());
            (status.unwrap_or(StatusCode::CREATED), said).into_response()
        }
        // It says that it did nothing.
        "nothing" => {
            idempotent.as_ref().unwrap().nothing_happened();
            match argument {
                "panic" => panic!("as was asked"),
                "wait" => {
                    shop.wait().await;
                    said.into_response()
                }
                status => {
                    (StatusCode::from_bytes(status.as_bytes()).unwrap(), said).into_response()
                }
            }
        }
        // The header says how long another response would be.
        "of-length" => {
            let (status, length) = argument.split_once(' ').unwrap();
            let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
            (status, [("content-length", length)], ()).into_response()
        }
        "come-back-503" => (
            StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", "7")],
            said,
        )
            .into_response(),
        "come-back" => (StatusCode::CONFLICT, [("retry-after", "1")], said).into_response(),
        "bytes" => odd(),
        "trailers" => trailers(said),
        "short" => short(),
        "panic-in-body" => (StatusCode::CREATED, Body::new(Panics)).into_response(),
        "needs" => {
            let status = StatusCode::from_bytes(argument.as_bytes()).unwrap();
            let headers = [("www-authenticate", "Bearer"), ("allow", "GET,HEAD")];
            (status, headers, said).into_response()
        }
        "large" => vec![b'x'; argument.parse().unwrap()].into_response(),
        "stream" => stream(Arc::clone(&shop), argument),
        "wide" => {
            let mut response = said.into_response();
            let value = HeaderValue::from_str(&"x".repeat(argument.parse().unwrap())).unwrap();
            response.headers_mut().insert("x-wide", value);
            response
        }
        "many" => {
            let mut response = said.into_response();
            for n in 0..60 {
                let name: HeaderName = format!("x-many-{n}").parse().unwrap();
                response
                    .headers_mut()
                    .insert(name, HeaderValue::from_static("x"));
            }
            response
        }
        status => {
            let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
            (status, said).into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(LOCATION, format!("/payments/{run}").parse().unwrap());
    headers.append(SET_COOKIE, "session=secret".parse().unwrap());
    headers.append(SET_COOKIE, "other=secret".parse().unwrap());
    headers.insert("x-run", run.into());
    headers.insert(
        "x-has-attempt",
        HeaderValue::from(u16::from(idempotent.is_some())),
    );
    response
}

/// `2 201`: the first two transactions meet a conflict. `0 201 500`: it answers something else than what it has kept.
/// `0 201 twice`: it tries another one after the commit.
async fn in_tx(
    shop: &Shop,
    idempotent: &Idempotent,
    key: &str,
    argument: &str,
    said: &str,
) -> Response {
    let (conflicts, status) = argument.split_once(' ').unwrap();
    let (status, then) = status.split_once(' ').unwrap_or((status, ""));
    let conflicts: u32 = conflicts.parse().unwrap();
    let status = StatusCode::from_bytes(status.as_bytes()).unwrap();
    let (tries, said) = (&AtomicU32::new(0), said);
    let kept = idempotent.in_tx(&shop.pool, |mut tx| async move {
        let insert = sqlx::query("INSERT INTO effect VALUES (?)").bind(key);
        insert.execute(&mut *tx).await?;
        if then == "402" {
            // Its commit fails.
            let orphan = sqlx::query("INSERT INTO child VALUES (1)");
            orphan.execute(&mut *tx).await?;
        }
        let tries = tries.fetch_add(1, Ordering::SeqCst);
        rowlock::one_changed(u64::from(tries >= conflicts))?;
        let cookie = [(SET_COOKIE, "session=secret")];
        Ok::<_, Error>((status, cookie, format!("{said}, try {}", tries + 1)))
    });
    match kept.await {
        Ok(_) if then == "twice" => {
            let again = async |_| Ok::<_, Error>(StatusCode::ACCEPTED);
            let again = idempotent.in_tx(&shop.pool, again).await;
            shop.note(again.unwrap_err().to_string());
            StatusCode::ACCEPTED.into_response()
        }
        Ok(_) if !then.is_empty() => StatusCode::from_bytes(then.as_bytes())
            .unwrap()
            .into_response(),
        Ok(response) => response.into_response(),
        Err(error) => {
            shop.note(error.to_string());
            if then == "402" {
                return StatusCode::PAYMENT_REQUIRED.into_response();
            }
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

/// Acts on the attempt itself.
async fn attempt(
    shop: &Shop,
    idempotent: &Idempotent,
    key: &str,
    act: &str,
    argument: &str,
    said: String,
) -> Response {
    let insert = "INSERT INTO effect VALUES (?)";
    let response = (
        StatusCode::CREATED,
        [(SET_COOKIE, "session=secret")],
        said.clone(),
    )
        .into_response();
    match act {
        "steps" => {
            let step = idempotent.step("charge", async { Ok::<_, Error>(shop.runs()) });
            let run = step.await.unwrap();
            let downstream = idempotent.downstream_key("charge").unwrap();
            shop.note(format!("charged in run {run} as {downstream}"));
            shop.note(idempotent.attempt().to_string());
            StatusCode::from_bytes(argument.as_bytes())
                .unwrap()
                .into_response()
        }
        "open-step" => {
            let lost = Error::Transaction(TransactionError::NotOneRow { rows: 0 });
            let step = async { Err::<(), _>(StepFailed::Unknown(lost)) };
            let (status, name) = argument.split_once(' ').unwrap_or(("402", "charge"));
            idempotent.step_once(name, step).await.unwrap_err();
            StatusCode::from_bytes(status.as_bytes())
                .unwrap()
                .into_response()
        }
        "in-tx" => in_tx(shop, idempotent, key, argument, &said).await,
        "wait-in-step" => {
            let step = async {
                shop.wait().await;
                Ok::<_, StepFailed<Error>>(())
            };
            idempotent.step_once("charge", step).await.unwrap();
            response
        }
        "complete" => {
            shop.effect(key).await;
            let outcome = Outcome::json(&"by hand").unwrap();
            idempotent.complete(&outcome).await.unwrap();
            response
        }
        _ => {
            let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            sqlx::query(insert)
                .bind(key)
                .execute(&mut *tx)
                .await
                .unwrap();
            if act == "wait-in-tx" {
                shop.wait().await;
            }
            if let Some(end) = act.strip_prefix("guard-") {
                let guard: &IdempotencyGuard = idempotent;
                let outcome = Outcome::json(&"by hand").unwrap();
                guard.complete_in(&mut tx, &outcome).await.unwrap();
                match end {
                    "commit" => tx.commit().await.unwrap(),
                    _ => tx.rollback().await.unwrap(),
                }
                return response;
            }
            let response = match act {
                "large-in-tx" => stream_of(&[&[b'x'; 2_000]]),
                "trailers-in-tx" => trailers("all".into()),
                _ => response,
            };
            let kept = match idempotent.complete_in(&mut tx, response).await {
                Ok(response) => response,
                Err(error) => {
                    shop.note(error.to_string());
                    return StatusCode::INSUFFICIENT_STORAGE.into_response();
                }
            };
            if act == "commit" {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            match argument {
                "" => kept.into_response(),
                "panic" => panic!("as was asked"),
                status => StatusCode::from_bytes(status.as_bytes())
                    .unwrap()
                    .into_response(),
            }
        }
    }
}
