//! Read/write locks and semaphores: what the verbs do with their texts.

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, MySqlConnection, Row};
use uuid::Uuid;

use super::listener::wake;
use super::lock_row::make_row;
use super::permit_reclaim::look_text;
use super::permit_text::{Reclaim, join_text, pass_text, resize_text, weigh_text};
use super::queue::join_with;
use super::statement::in_one_transaction;
use super::statement::transact;
use crate::model::{Kind, Name, Share};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::{MOST, PermitStore, ResizeOutcome, WeighOutcome, WeighParams};
use crate::store::verbs::queue::{
    EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams, PassOutcome, PassParams, PassWhy,
    with_quarantine,
};
use crate::store::verbs::row::{LockRow, count};

#[async_trait]
impl PermitStore for MySqlConnection {
    async fn permit_join(
        &mut self,
        params: &JoinParams,
        share: Share,
    ) -> Result<Option<JoinOutcome>, Fault> {
        let name = &params.name;
        let mut rows = join_with(self, name, &join_text(params, share, Reclaim::Later)).await?;
        if rows.as_ref().is_some_and(Vec::is_empty) {
            make_row(self, name, share.kind).await?;
            rows = join_with(self, name, &join_text(params, share, Reclaim::Later)).await?;
        }
        if would_reclaim(rows.as_deref())? {
            rows = join_with(self, name, &join_text(params, share, Reclaim::Now)).await?;
        }
        // Without a row: the cleaner has removed it.
        let row = rows.and_then(|mut rows| rows.pop());
        let joined = row.as_ref().map(joined).transpose()?;
        with_quarantine(self, joined).await
    }

    async fn permit_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        let Some(round) = round(self, &pass_text(params, Reclaim::Later, MOST)).await? else {
            return Ok(None);
        };
        let ended = EndedGrant::of(round.status);
        let (next, is_locked) = rest(self, &params.name, round).await?;
        if is_locked && next.is_empty() && ended == Some(EndedGrant::Nothing) {
            return Ok(None);
        }
        Ok(ended.map(|ended| PassOutcome { ended, next }))
    }

    async fn permit_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        let mut names: Vec<&Name> = all.iter().map(|params| &params.name).collect();
        names.sort_unstable();
        names.dedup();
        let rows = in_one_transaction(self, &look_text(all, &names)).await?;
        let (waiters, times) = rows.split_at(all.len().min(rows.len()));
        let mut looked = Vec::with_capacity(all.len());
        for (params, row) in all.iter().zip(waiters) {
            let (granted, waits): (bool, bool) = FromRow::from_row(row)?;
            let time = names.binary_search(&&params.name).ok();
            let time = time.and_then(|at| times.get(at));
            let time: Option<i64> = time.map(|row| row.try_get(0)).transpose()?.flatten();
            looked.push(LookOutcome::from((granted, waits, time.unwrap_or(0))));
        }
        Ok(looked)
    }

    async fn permit_weigh(&mut self, params: &WeighParams) -> Result<Option<WeighOutcome>, Fault> {
        let mut found = round(self, &weigh_text(params, Reclaim::Later)).await?;
        if matches!(found, Some(Round { status: 3, .. })) {
            found = round(self, &weigh_text(params, Reclaim::Now)).await?;
        }
        let Some(found) = found else {
            return Ok(None);
        };
        Ok(Some(match (found.status, found.number) {
            (1, Some(fence)) => WeighOutcome::Done {
                fence,
                next: rest(self, &params.name, found).await?.0,
            },
            (2 | 3, _) => WeighOutcome::Full,
            (4, Some(fence)) => WeighOutcome::Stale(fence),
            _ => WeighOutcome::Gone,
        }))
    }

    async fn permit_resize(
        &mut self,
        name: &Name,
        capacity: u32,
    ) -> Result<Option<ResizeOutcome>, Fault> {
        let mut found = round(self, &resize_text(name, capacity)).await?;
        if matches!(found, Some(Round { status: 0, .. })) {
            if make_row(self, name, Kind::Semaphore { capacity }).await? {
                let (before, next) = (None, Vec::new());
                return Ok(Some(ResizeOutcome::Done { before, next }));
            }
            found = round(self, &resize_text(name, capacity)).await?;
        }
        let Some(found) = found else {
            return Ok(None);
        };
        Ok(match (found.status, found.number) {
            (1, Some(before)) => Some(ResizeOutcome::Done {
                before: Some(count(before)),
                next: rest(self, name, found).await?.0,
            }),
            (2, Some(before)) => Some(ResizeOutcome::Mismatch(Kind::of(before))),
            // Without a row: the cleaner has removed it.
            _ => None,
        })
    }
}

/// What a text did.
struct Round {
    status: i64,
    number: Option<i64>,
    would_reclaim: bool,
    next: Vec<Uuid>,
}

/// Runs a text that grants permits. `None`: another transaction has a row locked.
async fn round(conn: &mut MySqlConnection, text: &str) -> Result<Option<Round>, Fault> {
    let Some(mut rows) = transact(conn, text).await? else {
        return Ok(None);
    };
    let last = rows.pop().ok_or(sqlx::Error::RowNotFound)?;
    let next: Result<_, sqlx::Error> = rows.iter().map(|row| row.try_get(0)).collect();
    let listeners: Result<Vec<Option<i64>>, _> = rows.iter().map(|row| row.try_get(1)).collect();
    wake(conn, listeners?.into_iter().flatten()).await;
    Ok(Some(Round {
        status: last.try_get(0)?,
        number: last.try_get(1)?,
        would_reclaim: last.try_get::<i64, _>(2)? == 1,
        next: next?,
    }))
}

/// Reclaims if that would help, and grants permits to the waiters that fit then. Returns all that were granted, and
/// whether the row of the name was locked before the end: then those who look find the rest.
async fn rest(
    conn: &mut MySqlConnection,
    name: &Name,
    last: Round,
) -> Result<(Vec<Uuid>, bool), Fault> {
    let mut next = last.next;
    if !last.would_reclaim || next.len() >= MOST {
        return Ok((next, false));
    }
    let params = PassParams {
        name: name.clone(),
        why: PassWhy::Orphaned,
    };
    let Some(found) = round(conn, &pass_text(&params, Reclaim::Now, MOST - next.len())).await?
    else {
        return Ok((next, true));
    };
    next.extend(found.next);
    Ok((next, false))
}

fn would_reclaim(rows: Option<&[MySqlRow]>) -> Result<bool, sqlx::Error> {
    let row = rows.and_then(<[_]>::first);
    row.map_or(Ok(false), |row| Ok(row.try_get::<i64, _>("dead")? == 1))
}

fn joined(row: &MySqlRow) -> Result<JoinOutcome, sqlx::Error> {
    let found = LockRow::from_row(row)?;
    if row.try_get::<i64, _>("ours")? == 0 {
        return Ok(JoinOutcome::Mismatch(found.kind));
    }
    if let Some(fence) = row.try_get("granted")? {
        return Ok(JoinOutcome::Granted { fence });
    }
    let Some(position) = row.try_get("queued_at")? else {
        return Ok(JoinOutcome::Full(found));
    };
    Ok(JoinOutcome::Queued {
        position,
        is_orphaned: false,
    })
}
