//! The results: medians, ratios within a round, a table, CSV files.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::figures::{median, table};
use crate::plan::{Heat, Start};
use crate::processes::Run;
use crate::workload::Workload;

/// The runs of one contender in one heat.
#[derive(Debug)]
pub(crate) struct Score {
    pub(crate) start: Start,
    /// A run for each round; none where it failed.
    pub(crate) runs: Vec<Option<Run>>,
    pub(crate) failures: Vec<String>,
}

impl Score {
    pub(crate) fn new(start: Start) -> Self {
        Self {
            start,
            runs: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, run: Result<Run, Failure>) {
        match run {
            Ok(run) => self.runs.push(Some(run)),
            Err(failure) => {
                self.failures.push(failure.to_string());
                self.runs.push(None);
            }
        }
    }

    /// The median of a figure of all runs.
    fn median(&self, figure: impl Fn(&Run) -> f64) -> Option<f64> {
        let figures: Vec<_> = self.runs.iter().flatten().map(figure).collect();
        (!figures.is_empty()).then(|| median(figures))
    }

    pub(crate) fn pairs(&self) -> Option<f64> {
        self.median(|run| run.pairs_per_second)
    }

    /// The latency at a quantile, in microseconds.
    fn latency(&self, quantile: f64) -> Option<f64> {
        let has_latencies = self
            .runs
            .iter()
            .flatten()
            .any(|run| !run.latencies.is_empty());
        let median = self.median(|run| micros(run.latencies.value_at_quantile(quantile)));
        median.filter(|_| has_latencies)
    }

    /// How many times the pairs of this one `other` has: the median of the ratios within the rounds.
    fn ratio(&self, other: &Self) -> Option<f64> {
        let rounds = self.runs.iter().zip(&other.runs);
        let both = rounds.filter_map(|(own, other)| Some((own.as_ref()?, other.as_ref()?)));
        let ratios: Vec<_> = both
            .map(|(own, other)| other.pairs_per_second / own.pairs_per_second)
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    /// The pairs of this heat beside those that were possible. A possible pair takes as long as one of `quick`, and
    /// two of the additional round-trip times. The median of the rounds.
    fn share_of_possible(&self, quick: &Self) -> Option<f64> {
        let longer = self
            .start
            .heat
            .round_trip?
            .checked_sub(quick.start.heat.round_trip?)?;
        let of_a_task = |run: &Run| run.pairs_per_second / f64::from(self.start.heat.tasks);
        let rounds = self.runs.iter().zip(&quick.runs);
        let both = rounds.filter_map(|(own, quick)| Some((own.as_ref()?, quick.as_ref()?)));
        let shares: Vec<_> = both
            .map(|(own, quick)| {
                of_a_task(own) * (1.0 / of_a_task(quick) + 2.0 * longer.as_secs_f64())
            })
            .collect();
        (!shares.is_empty()).then(|| median(shares))
    }

    /// The last whole second's pairs, as a part of the first second's.
    fn decline(&self) -> Option<f64> {
        self.median(|run| {
            let (first, last) = (run.by_second.first(), run.by_second.last());
            let count = |pairs: Option<&u64>| to_float(pairs.copied().unwrap_or(0));
            count(last) / count(first).max(1.0)
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn to_float(count: u64) -> f64 {
    count as f64
}

pub(crate) fn micros(nanoseconds: u64) -> f64 {
    to_float(nanoseconds) / 1000.0
}

/// A line of `race.csv`: the medians of one contender in one heat.
#[derive(Debug, Serialize)]
struct Line<'a> {
    workload: &'a str,
    names: u32,
    tasks: u32,
    processes: u32,
    /// In milliseconds, through a network.
    round_trip_ms: Option<f64>,
    contender: &'a str,
    durability: &'a str,
    rounds: usize,
    failed: usize,
    pairs_per_second: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// How many times the pairs of this contender the base has.
    base_ratio: Option<f64>,
    least_share: Option<f64>,
    least_task_share: Option<f64>,
    last_second_of_first: Option<f64>,
}

/// A line of `runs.csv`: one run.
#[derive(Debug, Serialize)]
struct Single<'a> {
    workload: &'a str,
    names: u32,
    tasks: u32,
    processes: u32,
    round_trip_ms: Option<f64>,
    contender: &'a str,
    round: usize,
    pairs_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    least_share: f64,
    least_task_share: f64,
}

impl<'a> Line<'a> {
    fn new(score: &'a Score, base: &str, all: &[Score]) -> Self {
        let Start { entry, heat } = score.start;
        let is_base = |other: &&Score| other.start.entry.name == base && other.start.heat == heat;
        let base = all.iter().find(is_base);
        Self {
            workload: heat.workload.kind(),
            names: heat.workload.names(heat.tasks),
            tasks: heat.tasks,
            processes: heat.processes,
            round_trip_ms: heat.round_trip.map(|time| time.as_secs_f64() * 1e3),
            contender: entry.name,
            durability: entry.durability,
            rounds: score.runs.len(),
            failed: score.failures.len(),
            pairs_per_second: score.pairs(),
            p50_us: score.latency(0.5),
            p99_us: score.latency(0.99),
            base_ratio: base.and_then(|base| score.ratio(base)),
            least_share: score.median(|run| run.least_share),
            least_task_share: score.median(|run| run.least_task_share),
            last_second_of_first: score.decline(),
        }
    }
}

fn text(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(
        || "failed".to_owned(),
        |figure| format!("{figure:.digits$}"),
    )
}

/// Prints the table of a group of heats.
pub(crate) fn print(base: &str, group: &[Heat], scores: &[Score]) {
    let Some(Heat {
        tasks, processes, ..
    }) = group.first()
    else {
        return;
    };
    let names: Vec<_> = group.iter().map(Heat::to_string).collect();
    println!(
        "\n{}: tasks {tasks}, processes {processes}\n",
        names.join(" and ")
    );
    let ratio = format!("{base} ÷ it");
    let mut header = vec![
        "contender",
        "durability",
        "pairs/s",
        "p50 µs",
        "p99 µs",
        &ratio,
    ];
    let (is_shared, is_compared) = (*processes > 1, group.len() > 1);
    let is_snapshot = group.iter().any(|heat| heat.workload == Workload::Snapshot);
    if is_compared {
        header.insert(2, "heat");
        header.push("it ÷ its first heat");
    }
    let has_networks = group.iter().any(|heat| heat.round_trip.is_some());
    if has_networks {
        header.push("of the possible");
    }
    if is_shared {
        header.push("least share of a process");
    }
    if *tasks > 1 {
        header.push("least share of a task");
    }
    if is_snapshot {
        header.push("last ÷ first second");
    }
    let mut table = table(&header);
    for score in scores {
        let line = Line::new(score, base, scores);
        let mut row = vec![line.contender.to_owned(), line.durability.to_owned()];
        if is_compared {
            row.push(score.start.heat.to_string());
        }
        row.push(text(line.pairs_per_second, 0));
        for latency in [line.p50_us, line.p99_us] {
            row.push(latency.map_or_else(String::new, |latency| format!("{latency:.0}")));
        }
        row.push(
            line.base_ratio
                .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        );
        if is_compared {
            let same = |other: &&Score| other.start.entry.name == score.start.entry.name;
            let first = scores.iter().find(same);
            row.push(text(first.and_then(|first| first.ratio(score)), 2));
        }
        if has_networks {
            let quick = |other: &&Score| {
                other.start.entry.name == score.start.entry.name
                    && other.start.heat.workload == score.start.heat.workload
            };
            let quick = scores
                .iter()
                .filter(quick)
                .min_by_key(|score| score.start.heat.round_trip);
            row.push(text(
                quick.and_then(|quick| score.share_of_possible(quick)),
                2,
            ));
        }
        if is_shared {
            row.push(text(line.least_share, 2));
        }
        if *tasks > 1 {
            row.push(text(line.least_task_share, 2));
        }
        if is_snapshot {
            row.push(text(line.last_second_of_first, 2));
        }
        table.add_row(row);
    }
    println!("{table}");
    for score in scores {
        for failure in &score.failures {
            eprintln!(
                "{}, {}: {failure}",
                score.start.entry.name, score.start.heat
            );
        }
    }
}

/// Writes `race.csv`, `runs.csv` and `seconds.csv`.
pub(crate) fn write(folder: &Path, base: &str, scores: &[Score]) -> Result<(), Failure> {
    let mut lines = csv::Writer::from_path(folder.join("race.csv"))?;
    let mut runs = csv::Writer::from_path(folder.join("runs.csv"))?;
    let mut seconds = csv::Writer::from_path(folder.join("seconds.csv"))?;
    seconds.write_record([
        "workload",
        "tasks",
        "processes",
        "round_trip_ms",
        "contender",
        "round",
        "second",
        "pairs",
    ])?;
    for score in scores {
        let line = Line::new(score, base, scores);
        lines.serialize(&line)?;
        for (round, run) in score.runs.iter().enumerate() {
            let Some(run) = run else {
                continue;
            };
            runs.serialize(Single {
                workload: line.workload,
                names: line.names,
                tasks: line.tasks,
                processes: line.processes,
                round_trip_ms: line.round_trip_ms,
                contender: line.contender,
                round,
                pairs_per_second: run.pairs_per_second,
                p50_us: micros(run.latencies.value_at_quantile(0.5)),
                p99_us: micros(run.latencies.value_at_quantile(0.99)),
                least_share: run.least_share,
                least_task_share: run.least_task_share,
            })?;
            for (second, pairs) in run.by_second.iter().enumerate() {
                seconds.serialize((
                    line.workload,
                    line.tasks,
                    line.processes,
                    line.round_trip_ms,
                    line.contender,
                    round,
                    second,
                    pairs,
                ))?;
            }
        }
    }
    lines.flush()?;
    runs.flush()?;
    Ok(seconds.flush()?)
}
