//! A contract test: one promise, on every engine.

/// A test of a promise, run on every engine: `sqlite::name`, `postgres::name`, …
#[macro_export]
macro_rules! on_every_engine {
    ($($(#[$meta:meta])* async fn $name:ident($db:ident: &Db) $body:block)*) => {
        mod promise {
            use super::*;
            $($(#[$meta])* pub(super) async fn $name($db: &Db) $body)*
        }
        $crate::on_every_engine!(@engine sqlite Sqlite $($name)*);
        $crate::on_every_engine!(@engine postgres Postgres $($name)*);
        $crate::on_every_engine!(@engine mariadb MariaDb $($name)*);
        $crate::on_every_engine!(@engine mysql MySql $($name)*);
    };
    (@engine $module:ident $engine:ident $($name:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let db = $crate::Db::new(rowlock::Engine::$engine).await;
                    // If a promise is broken, its event may never come.
                    let test = super::promise::$name(&db);
                    tokio::time::timeout(std::time::Duration::from_mins(2), test)
                        .await
                        .expect("done within two minutes");
                    db.remove().await;
                }
            )*
        }
    };
}
