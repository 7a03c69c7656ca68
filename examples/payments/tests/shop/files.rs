//! Where the server keeps its files, when nobody says it: users of one machine do not meet.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn two_users_in_two_folders_have_two_databases() {
    for _ in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Command::new(env!("CARGO_BIN_EXE_payments"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .current_dir(&dir)
            .env_remove("ROWLOCK_URL")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut said = said.map_while(Result::ok);
        let database = said.find(|line| line.starts_with("database ")).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let folder = dir.path().canonicalize().unwrap();
        assert!(database.contains(folder.to_str().unwrap()), "{database}");
        assert!(folder.join("rowlock-payments/gateway.db").exists());
    }
}
