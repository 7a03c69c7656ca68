//! What a client knows of lock rows, and how it makes missing rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::model::{Busy, Error, Kind, LockInfo, Name, Subject};
use crate::runtime::batch::alone::alone;
use crate::runtime::batch::handle::{ASIDE_LIMIT, Lanes};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::requests::take::busy;
use crate::store::verbs::Store;
use crate::store::verbs::lock_row::RowAction;
use crate::store::verbs::row::LockRow;

/// How many names a client remembers to have rows.
const MAX_ROWS: usize = 10_000;

const LOOK: &str = "look up";

/// The pending answer of the job that makes a row.
type Row = oneshot::Receiver<Result<Option<LockRow>, Error>>;

/// The row of a name.
#[derive(Debug, Clone)]
pub(crate) struct RowView {
    pub(crate) fence: i64,
    /// The grant in the row, live or expired: an expired lease may still be pinned.
    pub(crate) grant: Option<LockInfo>,
    /// This look freed the name from a session that had ended.
    pub(crate) reclaimed: bool,
    /// What is in the way, if a live lease or a pause is.
    busy: Option<Busy>,
}

impl RowView {
    fn of(name: &Name, row: LockRow) -> Result<Self, Error> {
        let busy = busy(name.clone(), Kind::Lock, Some(row.clone()))?;
        Ok(Self {
            fence: row.fence,
            reclaimed: row.reclaimed,
            grant: row.grant()?,
            busy: Some(busy).filter(|busy| busy.remaining().is_some()),
        })
    }

    /// Whether an expired session has left the name behind, and the look could not free it.
    pub(crate) fn is_left_behind(&self) -> bool {
        let grant = self.grant.as_ref();
        grant.is_some_and(|grant| grant.session.is_some() && grant.remaining.is_zero())
    }

    /// The holder of a live lease.
    pub(crate) fn holder(&self) -> Option<&LockInfo> {
        self.grant
            .as_ref()
            .filter(|grant| !grant.remaining.is_zero())
    }

    /// What is in the way, if a live lease or a pause is.
    pub(crate) fn busy(self) -> Option<Busy> {
        self.busy
    }
}

/// What a client knows of a name that a transaction of its own asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KnownRow {
    /// The last fence that a transaction of this client was granted, until that transaction is known to have ended.
    pub(crate) granted: Option<i64>,
    /// A lease or a pause of the name was seen.
    pub(crate) leased: bool,
}

/// What a client knows of lock rows.
#[derive(Debug)]
pub(crate) struct KnownRows {
    lanes: Arc<Lanes>,
    one_writer: bool,
    /// Names known to have a row.
    rows: Mutex<HashMap<Name, KnownRow>>,
}

impl KnownRows {
    /// `one_writer`: the database has one writer at a time.
    pub(crate) fn new(lanes: &Arc<Lanes>, one_writer: bool) -> Self {
        Self {
            lanes: Arc::clone(lanes),
            one_writer,
            rows: Mutex::default(),
        }
    }

    /// Looks up the row of `name`, and makes a missing one.
    pub(crate) async fn row(&self, name: &Name) -> Result<RowView, Error> {
        let making = self.make_row(name);
        self.made_row(name, making).await
    }

    fn make_row(&self, name: &Name) -> Row {
        self.make_row_until(name, self.lanes.progress())
    }

    fn make_row_until(&self, name: &Name, progress: Progress) -> Row {
        let (reply, row) = oneshot::channel();
        let head = JobHead::new(Subject::Lock(name.clone()), LOOK, Manner::Look, progress);
        let name = name.clone();
        let make = async move |store: &mut dyn Store| store.lock_row(&name, RowAction::Make).await;
        self.lanes.send(alone(head, make, reply));
        row
    }

    async fn made_row(&self, name: &Name, row: Row) -> Result<RowView, Error> {
        let Some(row) = self.lanes.heard(row).await? else {
            let what = "another session removes it as soon as it is made";
            return Err(Error::damaged("rowlock_lock", name.as_bytes(), what));
        };
        let seen = RowView::of(name, row)?;
        self.rows().entry(name.clone()).or_default().leased |= seen.busy.is_some();
        Ok(seen)
    }

    /// [`Self::row`] for a version. A transaction of the caller's may keep the lane from writing; there, the
    /// connection for looks reads an existing row first.
    pub(crate) async fn look_version(&self, name: &Name) -> Result<RowView, Error> {
        if self.one_writer
            && let Ok(Some(seen)) = self.look_at_row(name).await
        {
            if seen.grant.is_none() || seen.holder().is_some() {
                return Ok(seen);
            }
            // The lane frees an expired lease, unless a transaction has the file: that transaction may have pinned the
            // lease.
            let freed = self.make_row_until(name, Progress::within(ASIDE_LIMIT));
            return match self.lanes.heard(freed).await {
                Ok(Some(freed)) => RowView::of(name, freed),
                _ => Ok(seen),
            };
        }
        self.row(name).await
    }

    /// The committed fence of `name`, as other sessions see it; `None` when there is no row.
    pub(crate) async fn committed_fence(&self, name: &Name) -> Result<Option<i64>, Error> {
        Ok(self.look_at_row(name).await?.map(|seen| seen.fence))
    }

    /// Who has the name now, as far as a look tells. The look comes after the jobs on this name, such as leaving its
    /// queue.
    pub(crate) async fn busy_now(&self, name: &Name, kind: Kind) -> Busy {
        let head = self.lanes.look(Subject::Lock(name.clone()), LOOK);
        let of = name.clone();
        let look = async move |store: &mut dyn Store| store.lock_row(&of, RowAction::Look).await;
        let row = self.lanes.run(head, look).await.ok().flatten();
        let waiters = row.as_ref().map_or(0, |row| row.waiters);
        let seen = busy(name.clone(), kind, row);
        if let Some(busy) = seen.ok().filter(|busy| busy.remaining().is_some()) {
            return busy;
        }
        let quarantine = self.quarantine(Subject::Lock(name.clone())).await;
        Busy {
            name: name.clone(),
            kind,
            holder: None,
            waiters,
            quarantine: quarantine.ok().flatten(),
            pause: None,
        }
    }

    /// The time for which the database is in quarantine. `None`: it is not.
    pub(crate) async fn quarantine(&self, subject: Subject) -> Result<Option<Duration>, Error> {
        let head = self.lanes.look(subject, LOOK);
        let look = async move |store: &mut dyn Store| store.quarantine_left().await;
        self.lanes.run(head, look).await
    }

    async fn look_at_row(&self, name: &Name) -> Result<Option<RowView>, Error> {
        let head = self.lanes.look_beside(Subject::Lock(name.clone()), LOOK);
        let of = name.clone();
        let look = async move |store: &mut dyn Store| store.lock_row(&of, RowAction::Look).await;
        let row = self.lanes.run_aside(head, look).await?;
        row.map(|row| RowView::of(name, row)).transpose()
    }

    /// What this client knows of the row of `name`.
    pub(crate) fn known(&self, name: &Name) -> Option<KnownRow> {
        self.rows().get(name).copied()
    }

    /// A transaction was granted `name`.
    pub(crate) fn remember_grant(&self, name: &Name, fence: i64) {
        self.rows().entry(name.clone()).or_default().granted = Some(fence);
    }

    /// The transaction that was granted this fence has ended.
    pub(crate) fn grant_ended(&self, name: &Name, fence: i64) {
        if let Some(known) = self.rows().get_mut(name) {
            known.granted = known.granted.filter(|granted| *granted != fence);
        }
    }

    /// A lease or a pause of `name` was seen.
    pub(crate) fn saw_lease(&self, name: &Name) {
        self.rows().entry(name.clone()).or_default().leased = true;
    }

    /// The row of `name` is gone.
    pub(crate) fn drop_known(&self, name: &Name) {
        self.rows().remove(name);
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<Name, KnownRow>> {
        let mut rows = self.rows.lock();
        // A name that is dropped here only costs another look.
        if rows.len() > MAX_ROWS {
            rows.clear();
        }
        rows
    }
}

/// Makes missing rows, all at once.
pub(crate) async fn make_rows(rows: Vec<(Arc<KnownRows>, Name)>) {
    let make = |(known, name): (Arc<KnownRows>, Name)| (known.make_row(&name), known, name);
    let making: Vec<_> = rows.into_iter().map(make).collect();
    for (making, known, name) in making {
        let _ = known.made_row(&name, making).await;
    }
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "rows_tests.rs"]
pub(crate) mod tests;
