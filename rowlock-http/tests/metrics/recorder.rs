//! The recorder of this process.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use metrics_util::{CompositeKey, MetricKind};

static SNAPSHOTS: OnceLock<Snapshotter> = OnceLock::new();

/// What was recorded before. (A snapshot takes the values away.)
static SEEN: Mutex<Vec<(CompositeKey, Vec<f64>)>> = Mutex::new(Vec::new());

pub(crate) fn with_recorder() {
    SNAPSHOTS.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let snapshots = recorder.snapshotter();
        recorder.install().unwrap();
        snapshots
    });
}

/// All values of the metrics with this name and these labels.
fn values(kind: MetricKind, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    let mut seen = SEEN.lock().unwrap();
    for (key, _, _, value) in SNAPSHOTS.get().unwrap().snapshot().into_vec() {
        let values: Vec<f64> = match value {
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(gauge) => vec![gauge.into_inner()],
            DebugValue::Histogram(all) => all.into_iter().map(f64::from).collect(),
        };
        match seen.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.extend(values),
            None => seen.push((key, values)),
        }
    }
    let is_it = |key: &CompositeKey| {
        let has: HashMap<_, _> = key
            .key()
            .labels()
            .map(|label| (label.key(), label.value()))
            .collect();
        let all = labels
            .iter()
            .all(|(name, value)| has.get(name) == Some(value));
        key.kind() == kind && key.key().name() == name && all
    };
    let found = seen.iter().filter(|(key, _)| is_it(key));
    found.flat_map(|(_, values)| values.clone()).collect()
}

pub(crate) fn recorded(name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    values(MetricKind::Histogram, name, labels)
}

pub(crate) fn counted(name: &str, labels: &[(&str, &str)]) -> u64 {
    let sum: f64 = values(MetricKind::Counter, name, labels).iter().sum();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let count = sum as u64;
    count
}

pub(crate) fn gauge(name: &str, labels: &[(&str, &str)]) -> f64 {
    values(MetricKind::Gauge, name, labels).iter().sum()
}

/// The metrics that have this label.
pub(crate) fn labelled(label: &str) -> BTreeSet<String> {
    values(MetricKind::Counter, "", &[]);
    let seen = SEEN.lock().unwrap();
    let keys = seen.iter().map(|(key, _)| key.key());
    let keys = keys.filter(|key| key.labels().any(|has| has.key() == label));
    keys.map(|key| key.name().to_owned()).collect()
}
