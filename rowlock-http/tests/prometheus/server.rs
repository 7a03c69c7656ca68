//! A Prometheus, what it scrapes, and its tool.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use reqwest::Url;
use rowlock_test::{Own, eventually};
use serde_json::Value;

use crate::queries::path;

/// The exporter of this program, as docs/METRICS.md has it. A connection of another program may take a port that was
/// free.
pub(crate) fn exporter() -> SocketAddr {
    let listening = (0..100).find_map(|_| try_exporter());
    listening.expect("one of 100 ports stays free")
}

fn try_exporter() -> Option<SocketAddr> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let installed = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[0.001, 0.01, 0.1, 1.0])
        .unwrap()
        .set_buckets_for_metric(Matcher::Full("rowlock_batch_size".into()), &[1.0, 16.0])
        .unwrap()
        .with_http_listener(address)
        .install();
    match installed {
        Err(BuildError::FailedToCreateHTTPListener(_)) => None,
        installed => installed.map(|()| Some(address)).unwrap(),
    }
}

pub(crate) async fn text(url: &str) -> String {
    let answer = reqwest::get(url).await.unwrap();
    answer.error_for_status().unwrap().text().await.unwrap()
}

/// A Prometheus that has the alerts, and scrapes the exporter as the job `shop`.
pub(crate) struct Prometheus(Own);

impl Prometheus {
    pub(crate) fn start(exporter: &SocketAddr) -> Self {
        let rules = path("docs/alerts.yml");
        let more = [&*exporter.to_string(), rules.to_str().unwrap()];
        Self(Own::start("prometheus", &more))
    }

    async fn get(&self, call: &str, params: &[(&str, &str)]) -> Value {
        let url = format!("{}/api/v1/{call}", self.0.url);
        let url = Url::parse_with_params(&url, params).unwrap();
        let answer = reqwest::get(url).await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["status"], "success", "{params:?}: {answer}");
        answer["data"].clone()
    }

    /// The series that a query finds, and their values.
    pub(crate) async fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let data = self.get("query", &[("query", query)]).await;
        let series = data["result"].as_array().unwrap().iter();
        let value = |series: &Value| series["value"][1].as_str().unwrap().parse().unwrap();
        let series = series.map(|series| (series["metric"].clone(), value(series)));
        series.collect()
    }

    pub(crate) async fn eventually(&self, query: &str) {
        eventually(query, async || !self.query(query).await.is_empty()).await;
    }

    pub(crate) async fn rules(&self) -> Vec<Value> {
        let groups = self.get("rules", &[]).await["groups"].take();
        let groups = groups.as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
        rules.collect()
    }
}

/// Runs Prometheus' own tool, which finds nothing to say.
pub(crate) fn promtool(arguments: &[&str], input: &str) {
    let mut tool = Command::new(path("docker/servers.sh"))
        .args(["run", "prometheus", "promtool"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = tool.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let told = tool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    let output = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{arguments:?}: {said}{output}");
}
