//! Looks whether another client waits for a lease that lingers here, or whether its name is paused.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Queue;
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::handle::Lanes;
use crate::store::verbs::Store;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// The looks leave the server and the connection alone for this many times as long as the last ones took, at most for
/// [`LONGEST_REST`].
const REST: u32 = 10;
const LONGEST_REST: Duration = Duration::from_secs(1);

/// How many names one statement looks at.
const PAGE: usize = 1_000;

/// Looks now and then, as long as leases linger.
pub(crate) async fn look_after(lanes: Weak<Lanes>, queue: Arc<Queue>) {
    let mut rest = Duration::ZERO;
    loop {
        sleep_until(Moment::now() + rest.clamp(PAUSE, LONGEST_REST)).await;
        let Some(lanes) = lanes.upgrade() else {
            return;
        };
        let began = Moment::now();
        let Some(names) = queue.keepers.names() else {
            return;
        };
        for page in names.chunks(PAGE) {
            let page = page.to_vec();
            let look = async move |store: &mut dyn Store| store.queue_recall_due(&page).await;
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
        rest = began.elapsed() * REST;
    }
}
