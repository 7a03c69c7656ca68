//! A verb that is sent again while a transaction has a row locked.

use crate::model::{Error, Moment, Name, Subject};
use crate::runtime::Core;
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// Runs a verb, again and again while it answers that a transaction has a row locked (`None`), for the operation
/// timeout.
pub(super) async fn until_unlocked<T: Send + 'static>(
    core: &Core,
    name: &Name,
    doing: &'static str,
    verb: impl AsyncFnMut(&mut dyn Store) -> Result<Option<T>, Fault> + Clone + Send + 'static,
) -> Result<T, Error> {
    let give_up = Moment::now() + core.holdings.settings.operation_timeout;
    let mut backoff = backoff::poll();
    loop {
        let head = core.lanes.wish(Subject::Lock(name.clone()), doing);
        if let Some(done) = core.lanes.run(head, verb.clone()).await? {
            return Ok(done);
        }
        if give_up.has_passed() {
            let name = name.clone();
            return Err(Error::RowLocked { doing, name });
        }
        sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
    }
}
