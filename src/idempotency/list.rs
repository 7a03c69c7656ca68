//! Lists of records, page by page.

use super::record::RecordInfo;
use super::request::Idempotency;
use crate::model::list::{check_limit, cursor, key_at};
use crate::model::{Error, Page, RecordFilter, RecordState};
use crate::store::verbs::Store;
use crate::store::verbs::list::{PAGE, end_of_prefix, next_key};
use crate::store::verbs::record_admin::RecordRange;
use crate::store::verbs::record_row::RecordRow;

/// How many times [`PAGE`] rows one call reads, if it finds too few records in them.
const PAGES: usize = 5;

impl Idempotency {
    /// The records of `filter`, sorted by scope and key, without their outcomes: one page of them. It reads some
    /// thousand rows at most, on a connection of its own, however many there are.
    ///
    /// # Errors
    ///
    /// A limit out of bounds, a `from` that is not the `next` of another page, a database out of reach, a damaged
    /// record.
    pub async fn list(&self, filter: &RecordFilter) -> Result<Page<RecordInfo>, Error> {
        let limit = check_limit(filter.limit)?;
        let mut range = range(filter)?;
        let mut items = Vec::new();
        for _ in 0..PAGES {
            let rows = self.rows(range.clone()).await?;
            let last = rows.get(PAGE - 1);
            let next = last.map(|row| (row.scope.clone(), next_key(&row.key)));
            for row in rows {
                let begin = (row.scope.clone(), row.key.clone());
                let info = row.info()?;
                if filter.state.is_some_and(|state| state != info.state) {
                    continue;
                }
                if items.len() == limit {
                    return Ok(page(items, Some(begin)));
                }
                items.push(info);
            }
            let Some(next) = next else {
                return Ok(page(items, None));
            };
            range.from = next;
        }
        Ok(page(items, Some(range.from)))
    }

    /// Records that may need a person, without their outcomes: those in the states [`Unknown`](RecordState::Unknown),
    /// [`Poisoned`](RecordState::Poisoned) and [`Lapsed`](RecordState::Lapsed), at most some thousand of them. It
    /// finds them by an index, however many records there are. If the last attempt of a poisoned record gave its key
    /// up, the record is in [`list`](Self::list) only.
    ///
    /// # Errors
    ///
    /// A database out of reach, a damaged record.
    pub async fn list_undecided(&self) -> Result<Vec<RecordInfo>, Error> {
        let head = self.core.lanes.look(None, "list records");
        let list = async |store: &mut dyn Store| store.record_open().await;
        let rows = self.core.lanes.run_slow(head, list).await?;
        let infos: Result<Vec<RecordInfo>, Error> = rows.into_iter().map(RecordRow::info).collect();
        let mut infos = infos?;
        infos.retain(|info| {
            matches!(
                info.state,
                RecordState::Unknown | RecordState::Poisoned | RecordState::Lapsed
            )
        });
        Ok(infos)
    }

    async fn rows(&self, range: RecordRange) -> Result<Vec<RecordRow>, Error> {
        let head = self.core.lanes.look(None, "list records");
        let list = async move |store: &mut dyn Store| store.record_list(&range).await;
        self.core.lanes.run_slow(head, list).await
    }
}

/// The records that a filter may find.
fn range(filter: &RecordFilter) -> Result<RecordRange, Error> {
    let mut range = match &filter.scope {
        None => RecordRange {
            from: (Vec::new(), Vec::new()),
            until: (end_of_prefix(b""), Vec::new()),
        },
        Some(scope) => RecordRange {
            from: (scope.clone(), filter.key.clone()),
            until: (scope.clone(), end_of_prefix(&filter.key)),
        },
    };
    if let Some(from) = &filter.from {
        range.from = begin(from)?.max(range.from);
    }
    Ok(range)
}

/// The scope and key at which a page begins. (A scope has at most 255 bytes: its length is the first one.)
fn begin(cursor: &str) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let bytes = key_at(cursor)?;
    let length = bytes.first().copied().unwrap_or(0);
    let rest = bytes.get(1..).unwrap_or_default();
    let (scope, key) = rest.split_at(rest.len().min(length.into()));
    Ok((scope.to_vec(), key.to_vec()))
}

fn page(items: Vec<RecordInfo>, next: Option<(Vec<u8>, Vec<u8>)>) -> Page<RecordInfo> {
    let next = next.map(|(scope, key)| {
        let length = u8::try_from(scope.len()).unwrap_or(u8::MAX);
        cursor(&[&[length], &scope[..], &key].concat())
    });
    Page { items, next }
}
