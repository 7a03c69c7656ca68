//! The search for deadlocks: the verbs, with their parameters and outcomes.
//!
//! Only an owner that waits can be in a circle of waits. So when a waiter of a named owner joins a queue, its client
//! tells which grants the owner holds: a row in `rowlock_waiting_owner` for each, until the wait is over. A row whose
//! waiter is gone means nothing.
//!
//! An *edge* leads from a waiter to another one whose owner holds what the first one waits for. It counts only while
//! the grant is live, and both waiters are in their queues, in live sessions. All edges of one answer are from one
//! snapshot.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use uuid::Uuid;

use super::columns::read_columns;
use super::fault::Fault;
use super::queue::LookParams;
use crate::model::{Blocked, Name};

/// The verbs of the search.
#[async_trait]
pub(crate) trait DeadlockStore {
    /// Tells which grants the owner of a waiter holds, in one transaction. It may be told again.
    async fn deadlock_tell(&mut self, params: &TellParams) -> Result<(), Fault>;

    /// The waits of these waiters are over. One transaction.
    async fn deadlock_forget(&mut self, grant_ids: &[Uuid]) -> Result<(), Fault>;

    /// The waiters that can be reached from these waiters, and the edges that lead to them.
    async fn deadlock_edges(&mut self, all: &[LookParams]) -> Result<Vec<Edge>, Fault>;

    /// Removes at most `limit` rows whose waiters are gone.
    async fn deadlock_clean(&mut self, limit: u32) -> Result<(), Fault>;
}

/// How many grants are in one statement, where it has them in a text.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) const PAGE: usize = 500;

#[derive(Debug, Clone)]
pub(crate) struct TellParams {
    /// The waiter.
    pub(crate) waiter: LookParams,
    pub(crate) owner: String,
    /// The grants that its owner holds.
    pub(crate) held: Vec<Uuid>,
}

/// A waiter, and how it was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The grant id of a waiter that waits for this one's owner; `None`: it was asked for.
    pub(crate) via: Option<Uuid>,
    pub(crate) grant_id: Uuid,
    pub(crate) name: Vec<u8>,
    pub(crate) owner: String,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) joined_at: i64,
}

read_columns! {
    Edge: (Option<Uuid>, Uuid, Vec<u8>, Option<String>, i64)
        => |(via, grant_id, name, owner, joined_at)| Self {
            via,
            grant_id,
            name,
            owner: owner.unwrap_or_default(),
            joined_at,
        };
}

/// A circle of waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// The waiters, by their grant ids: each waits for what the owner of the next one holds.
    pub(crate) waiters: Vec<Uuid>,
    /// What each of them waits for.
    pub(crate) blocked: Vec<Blocked>,
    /// The waiter that joined last.
    pub(crate) youngest: Uuid,
}

/// The circle that a waiter is in, if it is in one.
pub(crate) fn cycle(edges: &[Edge], start: Uuid) -> Option<Cycle> {
    let mut next: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    let mut nodes: HashMap<Uuid, &Edge> = HashMap::new();
    for edge in edges {
        nodes.entry(edge.grant_id).or_insert(edge);
        if let Some(via) = edge.via {
            next.entry(via).or_default().push(edge.grant_id);
        }
    }
    let path = path(&next, start)?;
    let nodes: Vec<&Edge> = path
        .iter()
        .filter_map(|id| nodes.get(id).copied())
        .collect();
    let youngest = nodes
        .iter()
        .max_by_key(|node| (node.joined_at, node.grant_id))?;
    let blocked = nodes.iter().filter_map(|node| {
        let name = Name::from_bytes(&node.name)?;
        let owner = node.owner.clone();
        Some(Blocked { owner, name })
    });
    Some(Cycle {
        blocked: blocked.collect(),
        youngest: youngest.grant_id,
        waiters: path,
    })
}

/// The way from a waiter back to itself.
fn path(next: &HashMap<Uuid, Vec<Uuid>>, start: Uuid) -> Option<Vec<Uuid>> {
    let mut seen = HashSet::from([start]);
    let mut open = vec![vec![start]];
    while let Some(path) = open.pop() {
        let last = path.last()?;
        for &to in next.get(last).map_or(&[][..], Vec::as_slice) {
            if to == start {
                return Some(path);
            }
            if seen.insert(to) {
                let mut longer = path.clone();
                longer.push(to);
                open.push(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(via: Option<u128>, to: u128) -> Edge {
        Edge {
            via: via.map(Uuid::from_u128),
            grant_id: Uuid::from_u128(to),
            name: format!("name {to}").into_bytes(),
            owner: format!("owner {to}"),
            joined_at: i64::try_from(to).unwrap(),
        }
    }

    #[test]
    fn a_circle_is_found_and_its_youngest_waiter() {
        let edges = [
            edge(None, 1),
            edge(Some(1), 3),
            edge(Some(3), 2),
            edge(Some(2), 1),
            edge(Some(3), 9),
        ];
        let found = cycle(&edges, Uuid::from_u128(1)).expect("it is in a circle");
        assert_eq!(found.waiters, [1, 3, 2].map(Uuid::from_u128));
        assert_eq!(found.youngest, Uuid::from_u128(3));
        let owners: Vec<_> = found
            .blocked
            .iter()
            .map(|blocked| &*blocked.owner)
            .collect();
        assert_eq!(owners, ["owner 1", "owner 3", "owner 2"]);
        assert_eq!(found.blocked[0].name.as_str(), "name 1");
    }

    #[test]
    fn a_chain_and_a_circle_of_others_are_none() {
        let chain = [edge(None, 1), edge(Some(1), 2), edge(Some(2), 3)];
        assert_eq!(cycle(&chain, Uuid::from_u128(1)), None);
        let others = [
            edge(None, 1),
            edge(Some(1), 2),
            edge(Some(2), 3),
            edge(Some(3), 2),
        ];
        assert_eq!(cycle(&others, Uuid::from_u128(1)), None);
        assert_eq!(cycle(&[], Uuid::from_u128(1)), None);
    }
}
