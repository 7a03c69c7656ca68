//! The shop's tables, on any engine.
#![allow(
    clippy::struct_field_names,
    reason = "the fields have the names of the JSON"
)]

use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::Failure;

/// A payment that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
pub struct Payment {
    pub payment_id: String,
    pub order_id: String,
    pub amount_cents: i64,
    pub currency: String,
    pub status: String,
}

/// An order that was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
pub(crate) struct Order {
    pub(crate) order_id: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

/// The one charge that may pay an order. The order gets another charge only after the provider has declined this one.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct OpenCharge {
    /// The provider's idempotency key.
    pub(crate) charge_key: String,
    pub(crate) order_id: String,
    pub(crate) amount_cents: i64,
    pub(crate) currency: String,
}

/// `create_tables` replaces `TEXT` by a type for up to 100 bytes that the engine compares byte by byte.
const CREATE: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS order_payment (
        principal TEXT NOT NULL, order_id TEXT NOT NULL, payment_id TEXT NOT NULL,
        amount_cents BIGINT NOT NULL, currency TEXT NOT NULL, status TEXT NOT NULL,
        PRIMARY KEY (principal, order_id))",
    "CREATE TABLE IF NOT EXISTS open_charge (
        principal TEXT NOT NULL, order_id TEXT NOT NULL, charge_key TEXT NOT NULL,
        amount_cents BIGINT NOT NULL, currency TEXT NOT NULL,
        PRIMARY KEY (principal, order_id))",
    "CREATE TABLE IF NOT EXISTS placed_order (
        principal TEXT NOT NULL, order_id TEXT NOT NULL, sku TEXT NOT NULL,
        quantity BIGINT NOT NULL, PRIMARY KEY (principal, order_id))",
];

/// The shop's pool.
#[derive(Debug, Clone)]
pub(crate) enum Database {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same code on the pool of any engine.
macro_rules! on_database {
    ($database:expr, $pool:ident => $body:expr) => {
        match $database {
            $crate::database::Database::Postgres($pool) => $body,
            $crate::database::Database::MySql($pool) => $body,
            $crate::database::Database::Sqlite($pool) => $body,
        }
    };
}
pub(crate) use on_database;

/// `$1` is `?` on MySQL and MariaDB, and `ON CONFLICT DO NOTHING` is an update that changes nothing.
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
            .replace(
                "ON CONFLICT DO NOTHING",
                "ON DUPLICATE KEY UPDATE order_id = order_id",
            )
            .replace('$', "?")
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect();
        AssertSqlSafe(text).into_sql_str()
    }
}

/// Implements the statements for one type of connection. (sqlx is not generic over the types.)
macro_rules! statements {
    ($connection:ty) => {
        impl Statements for $connection {
            async fn add_payment(&mut self, principal: &str, payment: &Payment) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "INSERT INTO order_payment (principal, order_id, payment_id, amount_cents, currency, status)
                     VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
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
                    "SELECT payment_id, order_id, amount_cents, currency, status FROM order_payment
                     WHERE principal = $1 ORDER BY order_id",
                ))
                .bind(principal)
                .fetch_all(self)
                .await
            }

            async fn payment(
                &mut self,
                principal: &str,
                order: &str,
            ) -> Result<Option<Payment>, sqlx::Error> {
                sqlx::query_as(Self::sql(
                    "SELECT payment_id, order_id, amount_cents, currency, status FROM order_payment
                     WHERE principal = $1 AND order_id = $2",
                ))
                .bind(principal)
                .bind(order)
                .fetch_optional(self)
                .await
            }

            async fn open_charge(
                &mut self,
                principal: &str,
                order: &str,
            ) -> Result<Option<OpenCharge>, sqlx::Error> {
                sqlx::query_as(Self::sql(
                    "SELECT charge_key, order_id, amount_cents, currency FROM open_charge
                     WHERE principal = $1 AND order_id = $2",
                ))
                .bind(principal)
                .bind(order)
                .fetch_optional(self)
                .await
            }

            async fn add_open_charge(
                &mut self,
                principal: &str,
                charge: &OpenCharge,
            ) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "INSERT INTO open_charge (principal, order_id, charge_key, amount_cents, currency)
                     VALUES ($1, $2, $3, $4, $5)",
                ))
                .bind(principal)
                .bind(&charge.order_id)
                .bind(&charge.charge_key)
                .bind(charge.amount_cents)
                .bind(&charge.currency)
                .execute(self)
                .await
                .map(|_| ())
            }

            async fn drop_open_charge(
                &mut self,
                principal: &str,
                charge: &OpenCharge,
            ) -> Result<(), sqlx::Error> {
                sqlx::query(Self::sql(
                    "DELETE FROM open_charge WHERE principal = $1 AND order_id = $2 AND charge_key = $3",
                ))
                .bind(principal)
                .bind(&charge.order_id)
                .bind(&charge.charge_key)
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

/// The shop's statements, on a connection or in a transaction.
pub(crate) trait Statements: Dialect {
    /// Does nothing if the order has its payment: all requests for an order settle on the same one.
    fn add_payment(
        &mut self,
        principal: &str,
        payment: &Payment,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn payments(
        &mut self,
        principal: &str,
    ) -> impl Future<Output = Result<Vec<Payment>, sqlx::Error>> + Send;

    fn payment(
        &mut self,
        principal: &str,
        order: &str,
    ) -> impl Future<Output = Result<Option<Payment>, sqlx::Error>> + Send;

    fn open_charge(
        &mut self,
        principal: &str,
        order: &str,
    ) -> impl Future<Output = Result<Option<OpenCharge>, sqlx::Error>> + Send;

    /// A second open charge of an order is a unique violation.
    fn add_open_charge(
        &mut self,
        principal: &str,
        charge: &OpenCharge,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Lets the order have another charge. Call it only after the provider has declined this charge, which is final.
    fn drop_open_charge(
        &mut self,
        principal: &str,
        charge: &OpenCharge,
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
        match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            "postgres" | "postgresql" => {
                let pool = PgPoolOptions::new().max_connections(connections);
                Ok(Self::Postgres(pool.connect(url).await?))
            }
            "sqlite" => {
                let options: SqliteConnectOptions = url.parse()?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
                    .busy_timeout(std::time::Duration::from_secs(30));
                let pool = SqlitePoolOptions::new().max_connections(connections);
                Ok(Self::Sqlite(pool.connect_with(options).await?))
            }
            "mysql" | "mariadb" => {
                let pool = MySqlPoolOptions::new().max_connections(connections);
                Ok(Self::MySql(pool.connect(url).await?))
            }
            // The message does not show the URL, which may have a password.
            _ => Err("the shop has no tables for the scheme of this URL: use postgres://, mysql://, mariadb:// or sqlite:PATH".into()),
        }
    }

    /// Only one process at a time may call it: on PostgreSQL, `CREATE TABLE IF NOT EXISTS` fails when two sessions run
    /// it at once.
    pub(crate) async fn create_tables(&self) -> Result<(), sqlx::Error> {
        let text = match self {
            // With the default collation, `ord` and `ORD` would be one order.
            Self::MySql(_) => "VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            Self::Postgres(_) | Self::Sqlite(_) => "VARCHAR(100)",
        };
        for create in CREATE {
            let create = AssertSqlSafe(create.replace("TEXT", text));
            on_database!(self, pool => {
                sqlx::raw_sql(create).execute(pool).await?;
            });
        }
        Ok(())
    }
}

pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

#[cfg(test)]
mod tests {
    use super::Database;

    #[tokio::test]
    async fn a_url_of_another_scheme_is_refused_without_its_password() {
        for url in [
            "redis://me:s3cret@localhost/shop",
            "postgresx:shop",
            "shop",
            "",
        ] {
            let error = Database::open(url, 1).await.unwrap_err().to_string();
            assert!(error.contains("use postgres://"), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
