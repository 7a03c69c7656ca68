//! What the command says of a URL that it cannot use, and of the connection that it makes: no password, at any level
//! of the log.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use rowlock_test::{Db, on_every_engine};

use crate::command::command;

/// Whatever the log may show.
fn everything_said(url: &str, pgpass: &std::path::Path) -> (i32, String) {
    let mut command = command(url, &["ls"]);
    let command = command
        .env("ROWLOCK_LOG", "trace")
        .env("PGPASSFILE", pgpass);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().unwrap();
    (code, String::from_utf8(said).unwrap())
}

on_every_engine! {
    async fn no_password_is_in_the_log(db: &Db) {
        let dir = tempfile::tempdir().unwrap();
        let pgpass = dir.path().join("pgpass");
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create(true).mode(0o600).open(&pgpass).unwrap();
        file.write_all(b"s3cret\n").unwrap();
        let sign = if db.url.contains('?') { '&' } else { '?' };
        for parameter in ["pasword=s3cret", "sslmode=s3cret", "rowlock_pooler=s3cret", "x&s3cret"] {
            let (code, said) = everything_said(&format!("{}{sign}{parameter}", db.url), &pgpass);
            assert!(code == 64 && !said.contains("s3cret"), "{code} {parameter}: {said}");
        }
        let url = db.url.replacen(":pw@", ":s3cret@", 1);
        let (_, said) = everything_said(&url, &pgpass);
        assert!(!said.contains("s3cret"), "{said}");
    }
}
