//! The first start: which process makes the tables.

use std::process::Stdio;

use rowlock_test::{Db, on_every_engine};

use crate::command::command;

on_every_engine! {
    in an empty database:
    async fn sixteen_processes_start_at_once_on_an_empty_database(db: &Db) {
        let processes: Vec<_> = (0..16)
            .map(|_| {
                command(&db.url, &["migrate"])
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut applied = 0;
        for process in processes {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            applied += String::from_utf8_lossy(&output.stdout).matches("applied V").count();
        }
        let history = db.number("SELECT COUNT(*) FROM rowlock_schema_history").await;
        assert!(history > 0);
        assert_eq!(i64::try_from(applied).unwrap(), history, "each migration is applied by one process");
    }
}
