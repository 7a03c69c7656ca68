//! A stand-in for a payment provider: a server with its own SQLite file that charges once for each key.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::net::TcpListener;

use crate::Failure;

/// The shop's request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Charge {
    pub reference: String,
    pub amount_cents: i64,
    pub currency: String,
    /// How long the provider waits before the charge.
    #[serde(default)]
    pub delay_ms: u64,
}

/// The provider's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charged {
    pub charge_id: String,
    /// `captured` or `declined`.
    pub status: String,
}

/// A charge in the provider's books.
#[derive(Debug, Serialize, Deserialize, sqlx::FromRow)]
pub struct Entry {
    pub key: String,
    pub reference: String,
    pub amount_cents: i64,
    pub status: String,
}

/// The provider's routes, on its file. An error names the file.
pub async fn router(file: PathBuf) -> Result<Router, Failure> {
    let pool = open(&file).await;
    let pool = pool.map_err(|error| format!("cannot open {}: {error}", file.display()))?;
    Ok(Router::new()
        .route("/charges", get(list).post(charge))
        .with_state(pool))
}

async fn open(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS charge (
            key TEXT NOT NULL PRIMARY KEY, reference TEXT NOT NULL, amount_cents INTEGER NOT NULL,
            currency TEXT NOT NULL, status TEXT NOT NULL)",
    )
    .execute(&pool)
    .await?;
    Ok(pool)
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, router: Router) -> Result<(), Failure> {
    Ok(axum::serve(listener, router).await?)
}

async fn charge(
    State(pool): State<SqlitePool>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let Some(key) = key else {
        return (
            StatusCode::BAD_REQUEST,
            "Idempotency-Key is missing: send one",
        )
            .into_response();
    };
    tokio::time::sleep(Duration::from_millis(charge.delay_ms)).await;
    match take(&pool, key, &charge).await {
        Ok(Some(charged)) => (StatusCode::CREATED, Json(charged)).into_response(),
        Ok(None) => {
            let said = "the key was used for another charge: use a new key";
            (StatusCode::UNPROCESSABLE_ENTITY, said).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Charges, unless the key has already charged. `None`: the key belongs to another charge.
async fn take(
    pool: &SqlitePool,
    key: &str,
    charge: &Charge,
) -> Result<Option<Charged>, sqlx::Error> {
    let declined = charge.amount_cents % 100 == 13;
    let status = if declined { "declined" } else { "captured" };
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO charge VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(key)
        .bind(&charge.reference)
        .bind(charge.amount_cents)
        .bind(&charge.currency)
        .bind(status)
        .execute(&mut *tx)
        .await?;
    let (reference, cents, status): (String, i64, String) =
        sqlx::query_as("SELECT reference, amount_cents, status FROM charge WHERE key = ?")
            .bind(key)
            .fetch_one(&mut *tx)
            .await?;
    tx.commit().await?;
    let same = reference == charge.reference && cents == charge.amount_cents;
    Ok(same.then(|| Charged {
        charge_id: format!("ch_{}", key.get(..16).unwrap_or(key)),
        status,
    }))
}

async fn list(State(pool): State<SqlitePool>) -> Response {
    let entries: Result<Vec<Entry>, _> =
        sqlx::query_as("SELECT key, reference, amount_cents, status FROM charge ORDER BY rowid")
            .fetch_all(&pool)
            .await;
    match entries {
        Ok(entries) => Json(entries).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
