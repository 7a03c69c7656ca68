//! Durable servers for one run, in temporary folders, stopped at the end.

use rowlock::Engine;
use rowlock_test::Own;
use tempfile::TempDir;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A database of one engine. Dropping this removes it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    _home: Home,
}

/// The home of the database. Dropping this stops the server and removes its folder.
#[derive(Debug)]
enum Home {
    File { _in: TempDir },
    Server { _own: Own },
}

impl Server {
    pub(crate) fn start(engine: Engine) -> Result<Self, Failure> {
        if engine == Engine::Sqlite {
            let dir = tempfile::Builder::new()
                .prefix("rowlock-bench-")
                .tempdir()?;
            let url = format!("sqlite:{}", dir.path().join("bench.db").display());
            return Ok(Self {
                engine,
                url,
                _home: Home::File { _in: dir },
            });
        }
        let own = Own::durable(engine.name());
        Ok(Self {
            engine,
            url: own.url.clone(),
            _home: Home::Server { _own: own },
        })
    }
}
