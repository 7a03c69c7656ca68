//! A contract test: one promise, on every engine.

/// A test of a promise, run on every engine: `sqlite::name`, `postgres::name`, …
#[macro_export]
macro_rules! on_every_engine {
    ($($(#[$meta:meta])* async fn $name:ident($db:ident: &Db) $body:block)*) => {
        mod promise {
            use super::*;
            $($(#[$meta])* pub(super) async fn $name($db: &Db) $body)*
        }
        $crate::engines!(on_every_engine @engines [$($name)*]);
    };
    (@engines $names:tt $(($module:ident $engine:ident))+) => {
        $($crate::on_every_engine!(@engine $module $engine $names);)+
    };
    (@engine $module:ident $engine:ident [$($name:ident)*]) => {
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
