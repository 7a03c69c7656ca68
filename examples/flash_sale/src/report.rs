//! The result of a sale, as a table or as JSON.

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
    pub(crate) stock: u32,
    pub(crate) buyers: u32,
    pub(crate) sold: u32,
    pub(crate) oversold: u32,
    pub(crate) orders_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Report {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header([
            "mode", "stock", "sold", "oversold", "orders/s", "p50 ms", "p99 ms",
        ]);
        for run in &self.runs {
            table.add_row([
                run.mode.clone(),
                run.stock.to_string(),
                run.sold.to_string(),
                run.oversold.to_string(),
                format!("{:.1}", run.orders_per_s),
                format!("{:.1}", run.p50_ms),
                format!("{:.1}", run.p99_ms),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
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
