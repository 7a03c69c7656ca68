//! The result, as a table or as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) engine: &'static str,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) mode: String,
    pub(crate) guarded: bool,
    pub(crate) requests: u32,
    pub(crate) added: u32,
    pub(crate) lost: u32,
    pub(crate) failed: u32,
    pub(crate) requests_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) longest_ms: f64,
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header([
            "mode",
            "requests",
            "added",
            "lost",
            "failed",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "longest ms",
        ]);
        for run in &self.runs {
            table.add_row([
                run.mode.clone(),
                run.requests.to_string(),
                run.added.to_string(),
                run.lost.to_string(),
                run.failed.to_string(),
                format!("{:.1}", run.requests_per_s),
                format!("{:.1}", run.p50_ms),
                format!("{:.1}", run.p99_ms),
                format!("{:.1}", run.longest_ms),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Fails if a guarded session has lost an item.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let wrong = self.runs.iter().filter(|run| run.guarded && run.lost > 0);
        let wrong = wrong.map(|run| format!("{} lost {} of {}", run.mode, run.lost, run.added));
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("; "))
        }
    }
}

pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0.0)
}

/// To a tenth.
pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(guarded: bool, lost: u32) -> Report {
        let run = Run {
            mode: "lease".to_owned(),
            guarded,
            requests: 10,
            added: 9,
            lost,
            failed: 1,
            requests_per_s: 0.0,
            p50_ms: 0.0,
            p99_ms: 0.0,
            longest_ms: 0.0,
        };
        Report {
            engine: "sqlite",
            runs: vec![run],
        }
    }

    #[test]
    fn a_lost_item_is_a_failure_only_where_a_lock_guards_it() {
        assert_eq!(report(true, 0).verdict(), Ok(()));
        assert_eq!(report(false, 3).verdict(), Ok(()));
        let wrong = report(true, 1).verdict();
        assert_eq!(wrong, Err("lease lost 1 of 9".to_owned()));
    }
}
