//! Medians and tables.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::ASCII_MARKDOWN)
        .set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time per call, in microseconds.
#[allow(clippy::cast_precision_loss, reason = "counts are small")]
pub(crate) fn micros(total: Duration, count: usize) -> f64 {
    total.as_secs_f64() * 1e6 / count as f64
}
