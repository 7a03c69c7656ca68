//! Looks whether another client waits for a lease that lingers here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Queue;
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::handle::Lanes;
use crate::store::verbs::Store;

/// The pause between two looks, where the server tells nothing.
const OFTEN: Duration = Duration::from_millis(100);

/// The pause between two looks for what was not told.
const SELDOM: Duration = Duration::from_secs(1);

/// The looks leave the server and the connection alone for this many times as long as the last ones took.
const REST: u32 = 10;

/// How many names one statement looks at.
const PAGE: usize = 1_000;

/// Looks now and then, as long as leases linger.
pub(crate) async fn look_after(lanes: Weak<Lanes>, queue: Arc<Queue>) {
    let mut looked = Moment::now();
    let mut rest = Duration::ZERO;
    loop {
        // Who came before the name had a keeper has told nobody, so a look follows soon.
        sleep_until(Moment::now() + OFTEN).await;
        let Some(lanes) = lanes.upgrade() else {
            return;
        };
        let pause = if queue.is_told() && !queue.keepers.has_new() {
            SELDOM
        } else {
            OFTEN
        };
        if !(looked + pause.max(rest)).has_passed() {
            continue;
        }
        let began = Moment::now();
        let Some(names) = queue.keepers.names() else {
            return;
        };
        for page in names.chunks(PAGE) {
            let page = page.to_vec();
            let look = async move |store: &mut dyn Store| store.queue_recalled(&page).await;
            let head = lanes.look(None, "look who waits");
            match lanes.run_aside(head, look).await {
                Ok(awaited) => awaited
                    .iter()
                    .for_each(|name| drop(queue.keepers.recall(name))),
                Err(error) => {
                    tracing::debug!(%error, "cannot look who waits for a name that lingers, will try again");
                }
            }
        }
        looked = Moment::now();
        rest = (looked - began) * REST;
    }
}
