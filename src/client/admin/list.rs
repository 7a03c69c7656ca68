//! Lists of names and of waiters, page by page.

use super::Admin;
use crate::model::list::{check_limit, cursor, key_at};
use crate::model::{
    Error, Kind, LockInfo, Name, NameFilter, NameInfo, NameState, Page, Subject, WaiterInfo,
};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::list::{KeyRange, PAGE, next_key};
use crate::store::verbs::lock_row::{RowAction, end_of};
use crate::store::verbs::row::LockRow;

/// How many windows of rows one call reads, if it finds too few names in them.
const WINDOWS: usize = 5;

/// The most holders of a name in a list.
const HOLDERS: usize = 100;

impl Admin<'_> {
    /// The names of `filter`, sorted, with their holders: one page of them. It reads some thousand rows at most, on a
    /// connection of its own, however many there are. Names that were not used for ten days have no row.
    ///
    /// # Errors
    ///
    /// A limit out of bounds, a `from` that is not the `next` of another page, a database out of reach, or a damaged
    /// row.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// use rowlock::{NameFilter, NameState};
    ///
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// let held = rowlock.lock("stock:42").acquire().await?;
    /// let mut filter = NameFilter::new().prefix("stock:").state(NameState::InUse);
    /// loop {
    ///     let page = rowlock.admin().names(&filter).await?;
    ///     for info in page.items {
    ///         println!("{}: {} holders, {} wait", info.name, info.holders.len(), info.waiters);
    ///         # assert_eq!(info.name, *held.name());
    ///     }
    ///     if page.next.is_none() {
    ///         break;
    ///     }
    ///     filter = filter.from(page.next);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn names(self, filter: &NameFilter) -> Result<Page<NameInfo>, Error> {
        let limit = check_limit(filter.limit)?;
        let mut range = KeyRange::of_prefix(filter.prefix.as_bytes());
        if let Some(from) = &filter.from {
            range.from = key_at(from)?.max(range.from);
        }
        let state = filter.state;
        let list =
            async move |store: &mut dyn Store| find(store, range.clone(), (state, limit)).await;
        self.read(None, "list", list).await?
    }

    /// One name, with all its holders in the order of their fences. `None`: it has no row. It reads the rows of this
    /// name only, on a connection of its own.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    pub async fn name<N>(self, name: N) -> Result<Option<NameInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let subject = Subject::Lock(name.clone());
        let look = async move |store: &mut dyn Store| {
            let row = store.lock_row(&name, RowAction::Look).await?;
            let Some(row) = row else { return Ok(None) };
            Ok(Some((row, store.lock_holders(&name).await?)))
        };
        let found = self.read(subject, "look up", look).await?;
        let Some((row, holders)) = found else {
            return Ok(None);
        };
        let holders: Result<_, _> = holders.into_iter().map(LockRow::info).collect();
        Ok(Some(NameInfo {
            holders: holders?,
            ..row.name_info()?
        }))
    }

    /// All who wait for `name`, in their order. It does not show the waiters of sessions that have expired. It reads
    /// the rows of this queue only, on a connection of its own, 1,000 in a statement.
    ///
    /// # Errors
    ///
    /// An invalid name, a database out of reach, or a damaged row.
    pub async fn queue<N>(self, name: N) -> Result<Vec<WaiterInfo>, Error>
    where
        N: TryInto<Name>,
        N::Error: Into<Error>,
    {
        let name = name.try_into().map_err(Into::into)?;
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let of = name.clone();
            let list = async move |store: &mut dyn Store| store.list_waiters(&of, after).await;
            let subject = Subject::Lock(name.clone());
            let rows = self.read(subject, "list the waiters of", list).await?;
            next = rows.get(PAGE - 1).map(|row| row.position);
            for row in rows {
                all.push(row.info()?);
            }
        }
        Ok(all)
    }

    /// All live leases, sorted by name. It reads the whole table, page by page, on a connection of its own.
    ///
    /// # Errors
    ///
    /// A database out of reach, or a damaged row.
    pub async fn list(self) -> Result<Vec<LockInfo>, Error> {
        let (mut all, mut next) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = next {
            let range = KeyRange {
                from,
                ..KeyRange::of_prefix(b"")
            };
            let rows = self.rows(range).await?;
            next = rows.get(PAGE - 1).map(|row| next_key(&row.name));
            for row in rows.into_iter().filter(LockRow::is_live) {
                all.push(row.info()?);
            }
        }
        Ok(all)
    }

    async fn rows(self, range: KeyRange) -> Result<Vec<LockRow>, Error> {
        let list = async move |store: &mut dyn Store| store.list_rows(&range).await;
        self.read(None, "list", list).await
    }
}

/// The first names of a range that are in a state, at most `limit`: it reads [`WINDOWS`] on one connection. The inner
/// error: a damaged row.
async fn find(
    store: &mut dyn Store,
    mut range: KeyRange,
    (state, limit): (Option<NameState>, usize),
) -> Result<Result<Page<NameInfo>, Error>, Fault> {
    let (mut items, mut next) = (Vec::new(), Some(range.from.clone()));
    for _ in 0..WINDOWS {
        let Some(from) = next.clone() else { break };
        range.from = from;
        let (rows, after) = match state {
            Some(NameState::Awaited) => awaited(store, &range, true).await?,
            Some(NameState::Orphaned) => awaited(store, &range, false).await?,
            _ => window(store, &range).await?,
        };
        next = after;
        let infos = match grouped(rows) {
            Ok(infos) => infos,
            Err(damaged) => return Ok(Err(damaged)),
        };
        for info in infos {
            if items.len() == limit {
                let first: &[u8] = info.name.as_bytes();
                return Ok(Ok(page(items, Some(first.to_vec()))));
            }
            if state.is_none_or(|state| info.is(state)) {
                items.push(info);
            }
        }
        if items.len() == limit {
            break;
        }
    }
    Ok(Ok(page(items, next)))
}

/// Rows, and where the next ones begin.
type Window = (Vec<LockRow>, Option<Vec<u8>>);

/// The first rows of a range. The last name may have more permits than fit: it is left to the next window, unless it
/// is the only one.
async fn window(store: &mut dyn Store, range: &KeyRange) -> Result<Window, Fault> {
    let mut rows = store.list_rows(range).await?;
    if rows.len() < PAGE {
        return Ok((rows, None));
    }
    let begin = rows.iter().rposition(|row| row.weight == 0).unwrap_or(0);
    let last = rows[begin].name.clone();
    if begin > 0 {
        rows.truncate(begin);
        return Ok((rows, Some(last)));
    }
    let end = Name::from_bytes(&last).map_or_else(|| next_key(&last), |name| end_of(&name));
    Ok((rows, Some(end)))
}

/// The rows of the first names in a range that have waiters, with their first permits if these are wanted.
async fn awaited(
    store: &mut dyn Store,
    range: &KeyRange,
    with_permits: bool,
) -> Result<Window, Fault> {
    let names = store.list_awaited(range).await?;
    let next = names.get(PAGE - 1).map(|last| next_key(&last.name));
    let mut rows = Vec::with_capacity(names.len());
    for row in names {
        let has_permits = row.kind.is_some_and(Kind::has_permits);
        let range = permits_of(&row);
        rows.push(row);
        if has_permits && with_permits {
            rows.extend(store.list_rows(&range).await?);
        }
    }
    Ok((rows, next))
}

/// Where the permits of a name stand.
fn permits_of(row: &LockRow) -> KeyRange {
    KeyRange {
        from: next_key(&row.name),
        until: [&row.name[..], &[1]].concat(),
    }
}

/// The names that rows tell of. The rows of permits follow that of their name.
fn grouped(rows: Vec<LockRow>) -> Result<Vec<NameInfo>, Error> {
    let mut infos: Vec<NameInfo> = Vec::new();
    for row in rows {
        let is_permit = row.weight > 0;
        let info = row.is_live().then(|| row.clone().info()).transpose()?;
        if !is_permit {
            infos.push(row.name_info()?);
        }
        let Some(held) = info else { continue };
        // (The row of its name may have been forgotten since.)
        if let Some(last) = infos.last_mut().filter(|last| last.name == held.name)
            && last.holders.len() < HOLDERS
        {
            last.holders.push(held);
        }
    }
    // (The rows of permits are in the order of their ids.)
    for info in &mut infos {
        info.holders.sort_by_key(|held| held.fence);
    }
    Ok(infos)
}

fn page(items: Vec<NameInfo>, next: Option<Vec<u8>>) -> Page<NameInfo> {
    Page {
        items,
        next: next.map(|key| cursor(&key)),
    }
}
