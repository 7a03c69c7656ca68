//! A contract test: one promise, on every engine.

/// A test of a promise, run on every engine: `sqlite::name`, `postgres::name`, …
///
/// Each gets a database with rowlock's tables. After the words `in an empty database:` it gets one without tables.
#[macro_export]
macro_rules! on_every_engine {
    (in an empty database: $($tests:tt)*) => {
        $crate::on_every_engine!(@tests empty $($tests)*);
    };
    (@tests $make:ident $($(#[$meta:meta])* async fn $name:ident($db:ident: &Db) $body:block)*) => {
        mod promise {
            use super::*;
            $($(#[$meta])* pub(super) async fn $name($db: &Db) $body)*
        }
        $crate::engines!(on_every_engine @engines $make [$($name)*]);
    };
    (@engines $make:ident $names:tt $(($module:ident $engine:ident))+) => {
        $($crate::on_every_engine!(@engine $make $module $engine $names);)+
    };
    (@engine $make:ident $module:ident $engine:ident [$($name:ident)*]) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let db = $crate::Db::$make(rowlock::Engine::$engine).await;
                    // If a promise is broken, its event may never come. An event that is waited for by name says so
                    // first.
                    let test = async {
                        super::promise::$name(&db).await;
                        db.remove().await;
                    };
                    tokio::time::timeout(2 * $crate::patience(), test)
                        .await
                        .expect("done within a test's patience");
                }
            )*
        }
    };
    ($($tests:tt)*) => {
        $crate::on_every_engine!(@tests new $($tests)*);
    };
}
