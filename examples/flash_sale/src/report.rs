//! What a sale has come to, as a table or as JSON.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) engine: &'static str,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) mode: &'static str,
    pub(crate) stock: u32,
    pub(crate) buyers: u32,
    pub(crate) sold: u32,
    pub(crate) oversold: u32,
    pub(crate) orders_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

pub(crate) fn print_table(report: &Report) {
    println!("| mode        | stock | sold | oversold | orders/s | p50 ms | p99 ms |");
    println!("|-------------|-------|------|----------|----------|--------|--------|");
    for run in &report.runs {
        println!(
            "| {:<11} | {:>5} | {:>4} | {:>8} | {:>8.1} | {:>6.1} | {:>6.1} |",
            run.mode, run.stock, run.sold, run.oversold, run.orders_per_s, run.p50_ms, run.p99_ms
        );
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
