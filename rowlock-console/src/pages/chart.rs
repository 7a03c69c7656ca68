//! The last runs of a job, as a chart and as a table.

use std::time::Duration;

use maud::{Markup, html};
use rowlock::{RunInfo, RunState};

use super::columns;
use crate::text::{count, text, time, took};

/// The most runs that are kept.
const RUNS: u32 = 20;
const WIDTH: u32 = 6;
const HEIGHT: u32 = 14;
/// The room for crosses, above the bars.
const CROSS: u32 = 6;
/// The lowest bar: that of a run whose length is unknown, or short.
const LEAST: u32 = 2;

/// A bar for each run, the last one on the right. A run that failed or was abandoned has a cross over its bar.
pub(crate) fn chart(runs: &[RunInfo]) -> Markup {
    let runs: Vec<&RunInfo> = runs.iter().take(RUNS as usize).collect();
    let longest = runs.iter().filter_map(|run| run.took).max();
    let longest = longest.unwrap_or_default();
    let number = |state| runs.iter().filter(|run| run.state == state).count() as u64;
    let all = count(runs.len() as u64, "run", "runs");
    let (failed, abandoned) = (number(RunState::Failed), number(RunState::Abandoned));
    let label = format!(
        "The last {all}: {failed} failed, {abandoned} abandoned; the longest took {}",
        took(longest)
    );
    html! {
        svg.runs role="img" aria-label=(label) width=(RUNS * WIDTH) height=(HEIGHT + CROSS)
            viewBox={ "0 0 " (RUNS * WIDTH) " " (HEIGHT + CROSS) } {
            @for (place, run) in (0_u32..).zip(&runs) {
                @let x = (RUNS - 1 - place) * WIDTH;
                @let height = height(run.took, longest);
                @let top = HEIGHT + CROSS - height;
                rect class=(run.state.name()) x=(x + 1) y=(top) width=(WIDTH - 2) height=(height) {
                    title {
                        (run.began_at.format("%F %T UTC")) ": " (run.state)
                        @if let Some(long) = run.took { ", " (took(long)) }
                    }
                }
                @if matches!(run.state, RunState::Failed | RunState::Abandoned) {
                    path.cross d={ "M" (x + 1) " " (top - 5) "l4 4m0 -4l-4 4" } {}
                }
            }
        }
    }
}

/// The height of a bar: its part of the longest one.
fn height(took: Option<Duration>, longest: Duration) -> u32 {
    let (took, longest) = (took.unwrap_or_default().as_micros(), longest.as_micros());
    let height = (took * u128::from(HEIGHT)).checked_div(longest);
    let height = height.and_then(|height| u32::try_from(height).ok());
    height.unwrap_or_default().clamp(LEAST, HEIGHT)
}

/// What the chart shows, in words.
pub(crate) fn runs(runs: &[RunInfo]) -> Markup {
    html! {
        table {
            (columns(&["Began", "State", "Took", "Holder", "Fence", "Message"]))
            tbody {
                @for run in runs {
                    tr data-key=(run.fence) {
                        td data-label="Began" { (time(run.began_at)) }
                        td data-label="State" { (state(run)) }
                        td data-label="Took" { (length(run)) }
                        td data-label="Holder" { (text(&run.holder)) }
                        td data-label="Fence" { (run.fence) }
                        td data-label="Message" { @if !run.message.is_empty() { (text(&run.message)) } }
                    }
                }
            }
        }
    }
}

pub(crate) fn state(run: &RunInfo) -> Markup {
    let is_bad = matches!(run.state, RunState::Failed | RunState::Abandoned);
    html! { @if is_bad { strong.bad { (run.state) } } @else { (run.state) } }
}

pub(crate) fn length(run: &RunInfo) -> String {
    run.took.map_or_else(|| "unknown".into(), took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_part_of_the_longest_one() {
        let second = Duration::from_secs(1);
        assert_eq!(height(Some(second), 2 * second), HEIGHT / 2);
        assert_eq!(height(Some(second), second), HEIGHT);
        for (took, longest) in [
            (None, second),
            (Some(Duration::ZERO), Duration::ZERO),
            (Some(Duration::ZERO), Duration::MAX),
        ] {
            assert_eq!(height(took, longest), LEAST);
        }
        assert_eq!(height(Some(Duration::MAX), Duration::MAX), HEIGHT);
    }
}
