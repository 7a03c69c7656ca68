//! An application that has a newer SQLite library than sqlx's, and takes rowlock for its servers.

use std::path::Path;
use std::process::{Command, Output};

use rowlock::Engine;
use rowlock_test::Db;

/// Runs cargo on the application. It is outside of the workspace, whose members all use sqlx's SQLite library.
fn cargo(command: &str, engine: &str) -> Command {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/beside_rusqlite/Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--locked", "--quiet", "--manifest-path"]);
    cargo.arg(manifest);
    cargo.args(["--no-default-features", "--features", engine]);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("beside_rusqlite");
    cargo.env("CARGO_TARGET_DIR", target);
    cargo
}

fn stdout(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn an_application_with_the_current_rusqlite_takes_rowlock_for_its_servers() {
    for (engine, feature) in [(Engine::Postgres, "postgres"), (Engine::MySql, "mysql")] {
        let db = Db::new(engine).await;
        let mut run = cargo("run", feature);
        let run = run.args(["--", &db.url]).output().unwrap();
        let kept: i64 = stdout(run).trim().parse().unwrap();
        let fence = db.number("SELECT MAX(fence) FROM rowlock_lock").await;
        assert!(0 < kept && kept <= fence, "{kept}, {fence}");
        // None of its SQLite libraries is sqlx's.
        let tree = stdout(cargo("tree", feature).output().unwrap());
        assert!(
            tree.contains("rusqlite") && !tree.contains("sqlx-sqlite"),
            "{tree}"
        );
        db.remove().await;
    }
}
