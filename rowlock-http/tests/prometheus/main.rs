//! What an operator's tools read: a Prometheus scrapes a program that has trouble of every kind. Then it has data for
//! each query of the dashboard (docs/grafana.json), and each alert of docs/alerts.yml is raised.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod load;
mod queries;
mod server;

use std::time::Instant;

use rowlock_test::patience;

use load::Load;
use server::{Prometheus, promtool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_has_data_and_the_alerts_are_raised() {
    let exporter = server::exporter();
    let prometheus = Prometheus::start(&exporter);
    let load = Load::new().await;
    // Nothing has happened yet: the counters of rare events are there, and one event raises an alert.
    let scraped = r#"rowlock_idempotency_total{outcome="lost"} == 0"#;
    prometheus.eventually(scraped).await;
    let began = Instant::now();
    loop {
        load.round().await;
        let missing = queries::missing(&prometheus).await;
        if missing.is_empty() {
            break;
        }
        let missing = missing.join("\n");
        assert!(began.elapsed() < patience(), "not there:\n{missing}");
    }
    let metrics = server::text(&format!("http://{exporter}/metrics")).await;
    promtool(&["check", "metrics"], &metrics);
}

#[test]
fn the_rules_are_rules() {
    let rules = queries::path("docs/alerts.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
}
