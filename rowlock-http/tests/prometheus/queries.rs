//! The queries of the dashboard and of the alerts.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::server::Prometheus;

pub(crate) fn path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A query, and the labels that are shown of what it finds.
struct Query {
    text: String,
    shown: Vec<String>,
}

/// The names between these: `{{outcome}}`, `{{ $labels.outcome }}`.
fn placeholders(text: &str) -> Vec<String> {
    let names = text
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}}"));
    let names = names.map(|(name, _)| name.trim().trim_start_matches("$labels."));
    names.map(str::to_owned).collect()
}

/// The variables of Grafana, as it fills them in for all jobs.
fn filled_in(text: &str) -> String {
    text.replace("$job", ".+").replace("$__rate_interval", "1m")
}

fn of_dashboard() -> Vec<Query> {
    let dashboard = fs::read_to_string(path("docs/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| Query {
        text: filled_in(target["expr"].as_str().unwrap()),
        shown: placeholders(target["legendFormat"].as_str().unwrap()),
    });
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| variable["query"]["query"].as_str());
    let variables = variables.map(|query| {
        let values = query.strip_prefix("label_values(").unwrap();
        let (metric, label) = values.strip_suffix(')').unwrap().split_once(", ").unwrap();
        Query {
            text: metric.to_owned(),
            shown: vec![label.to_owned()],
        }
    });
    let queries: Vec<_> = queries.chain(variables).collect();
    assert!(queries.len() > 15, "it has panels");
    queries
}

/// A query for each value that a label of a metric must have: a regular expression may name several.
fn values(query: &str) -> Vec<String> {
    let mut values = Vec::new();
    for (at, _) in query.match_indices("rowlock_") {
        let rest = &query[at..];
        let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = name.clone().next().unwrap();
        let matchers = rest[name.len()..].strip_prefix('{');
        let Some((matchers, _)) = matchers.and_then(|rest| rest.split_once('}')) else {
            continue;
        };
        for matcher in matchers.split(',') {
            let (label, value) = matcher.split_once('=').unwrap();
            let value = value.trim_start_matches('~').trim_matches('"');
            let of_label = |value| format!("{name}{{{label}=\"{value}\"}}");
            if value != ".+" {
                values.extend(value.split('|').map(of_label));
            }
        }
    }
    values
}

/// What Prometheus has no data for, and the alerts that are not raised.
pub(crate) async fn missing(prometheus: &Prometheus) -> Vec<String> {
    let mut missing = Vec::new();
    for query in of_dashboard() {
        let found = prometheus.query(&query.text).await;
        let has_data = |(series, value): &(Value, f64)| {
            !value.is_nan() && query.shown.iter().all(|label| series[label].is_string())
        };
        if !found.iter().any(has_data) {
            missing.push(format!("{}: {found:?}", query.text));
        }
        missing.extend(without_series(prometheus, &query.text).await);
    }
    let rules = prometheus.rules().await;
    assert!(rules.len() > 5, "{rules:?}");
    for rule in rules {
        let alerts = rule["alerts"].as_array().unwrap();
        let shown = placeholders(rule["annotations"]["summary"].as_str().unwrap());
        let is_whole = |alert: &Value| shown.iter().all(|label| alert["labels"][label].is_string());
        if rule["health"] != "ok" || !alerts.iter().any(is_whole) {
            missing.push(rule.to_string());
        }
        missing.extend(without_series(prometheus, rule["query"].as_str().unwrap()).await);
    }
    missing
}

async fn without_series(prometheus: &Prometheus, query: &str) -> Vec<String> {
    let mut without = Vec::new();
    for value in values(query) {
        if prometheus.query(&value).await.is_empty() {
            without.push(value);
        }
    }
    without
}
