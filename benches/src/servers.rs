//! Servers for one run: durable ones, in a temporary folder, stopped at the end.

use std::path::PathBuf;
use std::process::Command;

use rowlock::Engine;
use tempfile::TempDir;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A database of an engine, for as long as the value lives.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    dir: TempDir,
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docker/servers.sh")
}

impl Server {
    pub(crate) fn start(engine: Engine) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("rowlock-bench-")
            .tempdir()?;
        if engine == Engine::Sqlite {
            let url = format!("sqlite:{}", dir.path().join("bench.db").display());
            return Ok(Self { engine, url, dir });
        }
        let output = Command::new(script())
            .args(["start", engine.name()])
            .arg(dir.path())
            .env("ROWLOCK_DURABLE", "1")
            .stderr(std::process::Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("{engine} does not start").into());
        }
        let url = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(Self { engine, url, dir })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.engine != Engine::Sqlite {
            let _ = Command::new(script())
                .arg("stop")
                .arg(self.dir.path())
                .status();
        }
    }
}
