//! `rowlock jobs`: the last runs.

use comfy_table::{Table, presets};
use rowlock::{Name, RunInfo};
use serde::Serialize;

use crate::out::{milliseconds, print_json, say};
use crate::show::{for_people, rfc3339};
use crate::{ABSENT, Failure, database, quarantine};

/// The last run of each job, or the last runs of one.
pub(crate) async fn jobs(url: &str, name: Option<Name>, json: bool) -> Result<u8, Failure> {
    let rowlock = database::find(url).await?;
    let is_of_one = name.is_some();
    let (runs, none) = if let Some(name) = name {
        let none = format!("no run of a job {name:?} is known: `rowlock jobs` lists all jobs");
        (rowlock.admin().runs_of(name).await?, none)
    } else {
        let none = "no job has run (`rowlock run NAME --at-least-for 50s -- CMD` runs one)";
        (rowlock.admin().runs().await?, none.into())
    };
    print_runs(&runs, json, &none)?;
    if !json {
        quarantine::tell_of_it(&rowlock).await?;
    }
    if runs.is_empty() && !json {
        database::tell_where(&rowlock);
    }
    Ok(if runs.is_empty() && is_of_one {
        ABSENT
    } else {
        0
    })
}

/// A run in JSON.
#[derive(Debug, Serialize)]
struct JsonRun<'a> {
    name: &'a str,
    state: &'static str,
    began_at: String,
    /// `null`: it was abandoned, and nobody knows.
    took_ms: Option<u64>,
    holder: &'a str,
    fence: i64,
    message: &'a str,
}

impl<'a> From<&'a RunInfo> for JsonRun<'a> {
    fn from(run: &'a RunInfo) -> Self {
        Self {
            name: run.name.as_str(),
            state: run.state.name(),
            began_at: rfc3339(run.began_at),
            took_ms: run.took.map(milliseconds),
            holder: &run.holder,
            fence: run.fence,
            message: &run.message,
        }
    }
}

/// `none`: what is printed when there are none.
fn print_runs(runs: &[RunInfo], json: bool, none: &str) -> Result<(), Failure> {
    if json {
        return print_json(&runs.iter().map(JsonRun::from).collect::<Vec<_>>());
    }
    if runs.is_empty() {
        return say!("{none}");
    }
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(["JOB", "LAST RUN", "TOOK", "RESULT", "BY", "MESSAGE"]);
    for run in runs {
        table.add_row([
            run.name.as_str().escape_debug().to_string(),
            for_people(run.began_at),
            run.took
                .map_or_else(|| "-".into(), |took| format!("{took:.1?}")),
            run.state.to_string(),
            run.holder.escape_debug().to_string(),
            run.message.escape_debug().to_string(),
        ]);
    }
    say!("{table}")
}
