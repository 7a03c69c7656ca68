//! The plots, as SVG: throughput over tasks and over names, latency over percentiles, throughput over time.

use std::path::Path;

use hdrhistogram::Histogram;

use crate::Failure;
use crate::contender::ENTRIES;
use crate::plan::Heat;
use crate::plot::{Line, Plot, plain};
use crate::report::{Score, micros, to_float};
use crate::runner::latencies;
use crate::workload::Workload;

/// The quantiles of a plot of latencies: 0.5, 0.9, 0.99, …
const QUANTILES: [f64; 9] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999];

/// Writes a plot for each question that the scores answer.
pub(crate) fn write(folder: &Path, scores: &[Score]) -> Result<(), Failure> {
    let mut heats: Vec<Heat> = Vec::new();
    for score in scores {
        if !heats.contains(&score.start.heat) {
            heats.push(score.start.heat);
        }
    }
    let mut drawn = Vec::new();
    for heat in heats {
        let Heat {
            workload,
            tasks,
            processes,
            ..
        } = heat;
        let kind = workload.kind();
        let title = format!("{workload}, tasks {tasks}, processes {processes}");
        let plot = Plot {
            title: format!("Latency of an acquire: {title}"),
            x: ("percentile", percentile),
            y: "µs",
            color: color_of,
        };
        let names = workload.names(tasks);
        let file = format!("latency-{kind}-{names}n-{tasks}t-{processes}p.svg");
        plot.draw(
            &folder.join(file),
            &lines(scores, |other| other == heat, over_percentiles),
        )?;
        if workload == Workload::Snapshot {
            let plot = Plot {
                title: format!(
                    "Throughput beside an old snapshot: tasks {tasks}, processes {processes}"
                ),
                x: ("second", plain),
                y: "pairs/s",
                color: color_of,
            };
            let file = format!("snapshot-{tasks}t-{processes}p.svg");
            plot.draw(
                &folder.join(file),
                &lines(scores, |other| other == heat, over_time),
            )?;
        }
        if drawn.contains(&(kind, processes)) {
            continue;
        }
        drawn.push((kind, processes));
        let same = |other: Heat| other.workload.kind() == kind && other.processes == processes;
        let (what, x): (_, fn(&Score) -> f64) = match workload {
            Workload::Growth(_) => ("names", |score| {
                score
                    .start
                    .heat
                    .workload
                    .names(score.start.heat.tasks)
                    .into()
            }),
            _ => ("tasks", |score| score.start.heat.tasks.into()),
        };
        let plot = Plot {
            title: format!("Throughput over {what}: {kind}, processes {processes}"),
            x: (what, plain),
            y: "pairs/s",
            color: color_of,
        };
        let file = format!("throughput-{kind}-{processes}p.svg");
        let point = |score: &Score| {
            score
                .pairs()
                .map(|pairs| (x(score), pairs))
                .into_iter()
                .collect()
        };
        plot.draw(&folder.join(file), &lines(scores, same, point))?;
    }
    Ok(())
}

/// A line for each contender, with the points of all its scores in the heats `of`.
fn lines(
    scores: &[Score],
    of: impl Fn(Heat) -> bool,
    points: impl Fn(&Score) -> Vec<(f64, f64)>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for score in scores.iter().filter(|score| of(score.start.heat)) {
        let (name, new) = (score.start.entry.name, points(score));
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.extend(new),
            None => lines.push((name, new)),
        }
    }
    for line in &mut lines {
        line.1.sort_by(|one, other| one.0.total_cmp(&other.0));
        line.1
            .dedup_by(|one, other| one.0.total_cmp(&other.0).is_eq());
    }
    lines
}

/// The latencies of all rounds together.
fn over_percentiles(score: &Score) -> Vec<(f64, f64)> {
    let mut all: Histogram<u64> = latencies();
    for run in score.runs.iter().flatten() {
        // Both have the same bounds.
        let _ = all.add(&run.latencies);
    }
    let at = |quantile: f64| {
        (
            1.0 / (1.0 - quantile),
            micros(all.value_at_quantile(quantile)),
        )
    };
    if all.is_empty() {
        Vec::new()
    } else {
        QUANTILES.map(at).to_vec()
    }
}

/// The pairs of each second, from 1: the mean of the rounds.
fn over_time(score: &Score) -> Vec<(f64, f64)> {
    let runs: Vec<_> = score.runs.iter().flatten().collect();
    let seconds = runs
        .iter()
        .map(|run| run.by_second.len())
        .max()
        .unwrap_or(0);
    let mean = |second: usize| {
        let sum: u64 = runs
            .iter()
            .filter_map(|run| run.by_second.get(second))
            .sum();
        to_float(sum) / to_float(runs.len() as u64)
    };
    (0..seconds)
        .map(|second| (to_float(second as u64 + 1), mean(second)))
        .collect()
}

/// The axis has 1 / (1 - quantile), so that each further nine has as much room.
fn percentile(x: f64) -> String {
    format!("{}", ((1.0 - 1.0 / x) * 100_000.0).round() / 1000.0)
}

/// A contender has the same colour in all plots.
fn color_of(name: &str) -> usize {
    let number = ENTRIES.iter().position(|entry| entry.name == name);
    number.unwrap_or(ENTRIES.len())
}
