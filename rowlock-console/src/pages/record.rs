//! One idempotency record.

use maud::{Markup, html};
use rowlock::{Error, Outcome, RecordInfo, RecordKey, RecordState, Scope, StepInfo};

use super::columns;
use super::records::{lasts, state};
use crate::Shared;
use crate::content::{Content, Links};
use crate::text::{PART, count, part, span, text, time};

#[derive(Debug)]
pub(crate) struct Record {
    info: Option<RecordInfo>,
    steps: Vec<StepInfo>,
    shows_outcomes: bool,
}

pub(crate) async fn read(shared: &Shared, key: &RecordKey) -> Result<Record, Error> {
    let idempotency = shared.rowlock.idempotency();
    let of = || Scope(key.scope()).key(key.key());
    let most = if shared.shows_outcomes { PART } else { 0 };
    Ok(Record {
        info: idempotency.inspect(of()).await?,
        // A record may have many steps with long results, and this is read once a second.
        steps: idempotency.steps_cut(of(), most).await?,
        shows_outcomes: shared.shows_outcomes,
    })
}

impl Content for Record {
    fn html(&self, links: Links<'_>) -> Markup {
        html! {
            @match &self.info {
                Some(info) => {
                    p.about { span.kind { "Record" } }
                    (actions(info, links))
                    (self.facts(info))
                }
                None => { p { "There is no such record: the key was never used, or its record was forgotten." } }
            }
            h2 { "Finished steps" }
            @if self.steps.is_empty() { p { "None." } } @else { (self.steps()) }
        }
    }
}

/// The decisions that this record may need.
fn actions(info: &RecordInfo, links: Links<'_>) -> Markup {
    let (scope, key) = (
        hex::encode(info.record.scope()),
        hex::encode(info.record.key()),
    );
    let fields = [("scope", scope.as_str()), ("key", &key)];
    html! {
        p.actions {
            @match info.state {
                RecordState::Unknown => (links.act("resolve", &fields, "Resolve it")),
                RecordState::Lapsed | RecordState::Poisoned | RecordState::Free => {
                    (links.act("reset", &fields, "Reset it"))
                }
                _ => "",
            }
        }
    }
}

impl Record {
    fn facts(&self, info: &RecordInfo) -> Markup {
        html! {
            dl {
                dt { "State" }
                dd { (state(info.state)) @if let Some(left) = lasts(info) { ", for another " (span(left)) } }
                dt { "Attempt" } dd { "number " (info.attempt) }
                @if !matches!(info.state, RecordState::Done | RecordState::Expired) {
                    dt { "Abandoned in a row" } dd { (info.abandoned) " of at most " (info.max_attempts) }
                }
                dt { "Holder of the last attempt" } dd { (text(&info.holder)) }
                dt { "First attempt" } dd { (time(info.began_at)) }
                dt { "Last attempt" } dd { (time(info.attempted_at)) }
                @if let Some(done) = info.done_at { dt { "Done" } dd { (time(done)) } }
                @if let Some(left) = info.remembered_for { dt { "Remembered for another" } dd { (span(left)) } }
                dt { "Fingerprint" } dd { code { (hex::encode(info.fingerprint.as_bytes())) } }
                @if let Some(step) = &info.open_step {
                    dt { "Open step" }
                    dd {
                        (text(step)) " may or may not have happened."
                        @if let Ok(key) = info.downstream_key(step) {
                            " The other server knows it as " code { (key) } "."
                        }
                    }
                }
                dt { "Outcome" }
                dd { @match &info.outcome { Some(outcome) => (self.outcome(outcome, outcome.bytes().len())), None => "none" } }
            }
        }
    }

    fn outcome(&self, outcome: &Outcome, size: usize) -> Markup {
        html! {
            @if !self.shows_outcomes {
                "hidden (" (count(size as u64, "byte", "bytes")) ")"
            } @else {
                (text(outcome.content_type())) ": " code.outcome { (part(outcome.bytes(), size)) }
            }
        }
    }

    fn steps(&self) -> Markup {
        html! {
            table {
                (columns(&["Step", "Attempt", "Done", "Result"]))
                tbody {
                    @for step in &self.steps {
                        @let size = usize::try_from(step.size).unwrap_or(usize::MAX);
                        tr data-key=(step.step) {
                            td data-label="Step" { (text(&step.step)) }
                            td data-label="Attempt" { (step.attempt) }
                            td data-label="Done" { (time(step.done_at)) }
                            td data-label="Result" { (self.outcome(&step.outcome, size)) }
                        }
                    }
                }
            }
        }
    }
}
