//! The example, as its user starts it.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::process::{Command, Output};

/// Sells two items to three buyers.
fn sell(dir: &tempfile::TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flash_sale"));
    command
        .args([
            "--stock",
            "2",
            "--buyers",
            "3",
            "--processes",
            "2",
            "--modes",
            "lease",
        ])
        .args(arguments)
        .current_dir(dir.path());
    let exported = format!("sqlite:{}", dir.path().join("exported.db").display());
    command.env("ROWLOCK_URL", exported).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn it_leaves_the_database_of_rowlock_url_alone() {
    let dir = tempfile::tempdir().unwrap();
    let sold = sell(&dir, &[]);
    assert!(sold.status.success(), "{}", text(&sold.stderr));
    assert!(!dir.path().join("exported.db").exists());
    let help = text(&sell(&dir, &["--help"]).stdout);
    assert!(!help.contains("ROWLOCK_URL"), "{help}");
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let warning = "It removes and makes the tables flash_sale_stock and flash_sale_orders there; rowlock's own tables stay.";
    assert!(help.contains(warning), "{help}");
}

#[test]
fn it_prints_the_database_that_it_uses() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named.db");
    let url = format!("sqlite:{}", named.display());
    let sold = sell(&dir, &["--url", &url]);
    assert!(sold.status.success(), "{}", text(&sold.stderr));
    let head = text(&sold.stdout).lines().next().unwrap().to_owned();
    assert!(head.contains(&url), "{head}");
    assert!(named.exists());
    assert!(!dir.path().join("exported.db").exists());
}

#[test]
fn four_processes_sell_a_striped_stock_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let sale = [
        "--modes",
        "striped",
        "--stripes",
        "8",
        "--stock",
        "100",
        "--buyers",
        "130",
        "--json",
    ];
    let sold = Command::new(env!("CARGO_BIN_EXE_flash_sale"))
        .args(sale)
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(sold.status.success(), "{}", text(&sold.stderr));
    let report = text(&sold.stdout);
    assert!(report.contains(r#""sold":100,"oversold":0"#), "{report}");
}
