//! The shop's tables, on whichever engine.
#![allow(
    clippy::struct_field_names,
    reason = "the fields are those of the JSON"
)]

use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::Failure;

/// A payment that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
pub(crate) struct Payment {
    pub(crate) payment_id: String,
    pub(crate) order_id: String,
    pub(crate) amount_cents: i64,
    pub(crate) currency: String,
    pub(crate) status: String,
}

/// An order that was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
pub(crate) struct Order {
    pub(crate) order_id: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

const CREATE: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS payment (
        principal VARCHAR(100) NOT NULL, order_id VARCHAR(100) NOT NULL, payment_id VARCHAR(100) NOT NULL,
        amount_cents BIGINT NOT NULL, currency VARCHAR(3) NOT NULL, status VARCHAR(10) NOT NULL,
        PRIMARY KEY (principal, order_id))",
    // Whose request may pay an order: one of them, until it has been declined.
    "CREATE TABLE IF NOT EXISTS paying (
        principal VARCHAR(100) NOT NULL, order_id VARCHAR(100) NOT NULL, request VARCHAR(100) NOT NULL,
        attempt BIGINT NOT NULL, PRIMARY KEY (principal, order_id))",
    "CREATE TABLE IF NOT EXISTS placed_order (
        principal VARCHAR(100) NOT NULL, order_id VARCHAR(100) NOT NULL, sku VARCHAR(100) NOT NULL,
        quantity BIGINT NOT NULL, PRIMARY KEY (principal, order_id))",
];

/// The shop's pool.
#[derive(Debug, Clone)]
pub(crate) enum Database {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same on whichever pool it is.
macro_rules! on_database {
    ($database:expr, $pool:ident => $body:expr) => {
        match $database {
            $crate::service::database::Database::Postgres($pool) => $body,
            $crate::service::database::Database::MySql($pool) => $body,
            $crate::service::database::Database::Sqlite($pool) => $body,
        }
    };
}
pub(crate) use on_database;

/// `$1` is `?` on MySQL and MariaDB.
pub(crate) trait Dialect {
    fn sql(text: &'static str) -> SqlStr {
        text.into_sql_str()
    }
}

impl Dialect for PgConnection {}
impl Dialect for SqliteConnection {}
impl Dialect for MySqlConnection {
    fn sql(text: &'static str) -> SqlStr {
        let text: String = text
            .replace('$', "?")
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect();
        AssertSqlSafe(text).into_sql_str()
    }
}

/// The statements, for each brand of connection: sqlx's are not generic over them.
macro_rules! statements {
    ($connection:ty) => {
        impl Statements for $connection {
            async fn add_payment(&mut self, principal: &str, payment: &Payment) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "INSERT INTO payment (principal, order_id, payment_id, amount_cents, currency, status)
                     VALUES ($1, $2, $3, $4, $5, $6)",
                ))
                .bind(principal)
                .bind(&payment.order_id)
                .bind(&payment.payment_id)
                .bind(payment.amount_cents)
                .bind(&payment.currency)
                .bind(&payment.status)
                .execute(self)
                .await
                .map(|_| ())
            }

            async fn payments(&mut self, principal: &str) -> Result<Vec<Payment>, sqlx::Error> {
                sqlx::query_as(Self::sql(
                    "SELECT payment_id, order_id, amount_cents, currency, status FROM payment
                     WHERE principal = $1 ORDER BY order_id",
                ))
                .bind(principal)
                .fetch_all(self)
                .await
            }

            async fn reserve(
                &mut self,
                principal: &str,
                order: &str,
                request: &str,
                attempt: i64,
            ) -> Result<bool, sqlx::Error> {
                let reserve = sqlx::query(Self::sql(
                    "INSERT INTO paying (principal, order_id, request, attempt) VALUES ($1, $2, $3, $4)",
                ))
                .bind(principal)
                .bind(order)
                .bind(request)
                .bind(attempt)
                .execute(&mut *self)
                .await;
                match reserve {
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
                    other => return other.map(|_| true),
                }
                sqlx::query(Self::sql(
                    "UPDATE paying SET attempt = $1
                     WHERE principal = $2 AND order_id = $3 AND request = $4 AND attempt <= $5",
                ))
                .bind(attempt)
                .bind(principal)
                .bind(order)
                .bind(request)
                .bind(attempt)
                .execute(self)
                .await
                .map(|done| done.rows_affected() > 0)
            }

            async fn give_back(
                &mut self,
                principal: &str,
                order: &str,
                request: &str,
                attempt: i64,
            ) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "DELETE FROM paying WHERE principal = $1 AND order_id = $2 AND request = $3 AND attempt = $4",
                ))
                .bind(principal)
                .bind(order)
                .bind(request)
                .bind(attempt)
                .execute(self)
                .await
                .map(|_| ())
            }

            async fn add_order(&mut self, principal: &str, order: &Order) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "INSERT INTO placed_order (principal, order_id, sku, quantity) VALUES ($1, $2, $3, $4)",
                ))
                .bind(principal)
                .bind(&order.order_id)
                .bind(&order.sku)
                .bind(order.quantity)
                .execute(self)
                .await
                .map(|_| ())
            }

            async fn orders(&mut self, principal: &str) -> Result<Vec<Order>, sqlx::Error> {
                sqlx::query_as(Self::sql(
                    "SELECT order_id, sku, quantity FROM placed_order WHERE principal = $1 ORDER BY order_id",
                ))
                .bind(principal)
                .fetch_all(self)
                .await
            }
        }
    };
}

/// What the shop does on a connection, in a transaction or not.
pub(crate) trait Statements: Dialect {
    /// A second payment of an order is a unique violation.
    fn add_payment(
        &mut self,
        principal: &str,
        payment: &Payment,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn payments(
        &mut self,
        principal: &str,
    ) -> impl Future<Output = Result<Vec<Payment>, sqlx::Error>> + Send;

    /// Whether `request` is the one that may pay the order, and no later attempt of it has come.
    fn reserve(
        &mut self,
        principal: &str,
        order: &str,
        request: &str,
        attempt: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn give_back(
        &mut self,
        principal: &str,
        order: &str,
        request: &str,
        attempt: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// A second order of the same number is a unique violation.
    fn add_order(
        &mut self,
        principal: &str,
        order: &Order,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn orders(
        &mut self,
        principal: &str,
    ) -> impl Future<Output = Result<Vec<Order>, sqlx::Error>> + Send;
}

statements!(PgConnection);
statements!(MySqlConnection);
statements!(SqliteConnection);

impl Database {
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Failure> {
        let database = if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(connections);
            Self::Postgres(pool.connect(url).await?)
        } else if url.starts_with("sqlite") {
            let options: SqliteConnectOptions = url.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                .busy_timeout(std::time::Duration::from_secs(30));
            let pool = SqlitePoolOptions::new().max_connections(connections);
            Self::Sqlite(pool.connect_with(options).await?)
        } else {
            let pool = MySqlPoolOptions::new().max_connections(connections);
            Self::MySql(pool.connect(url).await?)
        };
        for create in CREATE {
            on_database!(&database, pool => {
                sqlx::raw_sql(create).execute(pool).await?;
            });
        }
        Ok(database)
    }
}
