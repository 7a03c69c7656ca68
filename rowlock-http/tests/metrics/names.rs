//! The list in docs/METRICS.md, the dashboard, and the code have the same names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(path)).unwrap()
}

/// The words that begin with `rowlock_` and have the ending of a metric.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("rowlock_"));
    let plain = |word: &str| {
        let end = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| word.strip_suffix(end));
        end.unwrap_or(word).to_owned()
    };
    let ends = ["_total", "_seconds", "_size", "_waiters", "_leading"];
    let is_metric = |word: &String| ends.iter().any(|end| word.ends_with(end));
    words.map(plain).filter(is_metric).collect()
}

#[test]
fn what_is_counted_is_listed_and_is_on_the_dashboard() {
    let code = [
        text("src/runtime/base/meter/on.rs"),
        text("rowlock-http/src/problem.rs"),
        text("rowlock-recipes/src/meter.rs"),
    ];
    let code = names(&code.concat());
    assert!(code.len() > 8, "{code:?}");
    let listed: String = text("docs/METRICS.md")
        .lines()
        .filter(|line| line.starts_with("| `rowlock_"))
        .collect();
    assert_eq!(names(&listed), code);
    let dashboard: Value = serde_json::from_str(&text("docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let shown = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let shown: String = shown.map(|target| target["expr"].to_string()).collect();
    assert_eq!(names(&shown), code);
}
