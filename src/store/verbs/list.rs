//! Lists for operators, in pages by key: the verbs. No statement reads more than [`PAGE`] rows of a table, however
//! many the table has. Nothing is locked.

use async_trait::async_trait;

use super::fault::Fault;
use super::queue::WaiterRow;
use super::row::LockRow;
use crate::model::Name;

/// The most rows that one statement reads.
pub(crate) const PAGE: usize = 1_000;

/// The verbs for lists.
#[async_trait]
pub(crate) trait ListStore {
    /// The first [`PAGE`] rows of locks in the range, by key: free ones, too, and the permits of semaphores.
    async fn list_rows(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault>;

    /// The rows of the first [`PAGE`] names in the range that have waiters, by key.
    async fn list_awaited(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault>;

    /// The first [`PAGE`] waiters of a name whose sessions are live and whose positions are after `after`, in their
    /// order.
    async fn list_waiters(&mut self, name: &Name, after: i64) -> Result<Vec<WaiterRow>, Fault>;
}

/// Keys from `from` on, and before `until`.
#[derive(Debug, Clone)]
pub(crate) struct KeyRange {
    pub(crate) from: Vec<u8>,
    pub(crate) until: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`.
    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        Self {
            from: prefix.to_vec(),
            until: end_of_prefix(prefix),
        }
    }
}

/// The first key after all keys of at most 288 bytes that begin with `prefix`.
pub(crate) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let Some(last) = last else {
        return vec![u8::MAX; 289];
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

/// The key directly after `key`.
pub(crate) fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of_prefix(b"a"), b"b");
        assert_eq!(end_of_prefix(&[b'a', 0xff]), b"b");
        for all in [&b""[..], &[0xff, 0xff]] {
            let longest = [all, &[0xff; 288][all.len()..]].concat();
            assert!(longest < end_of_prefix(all));
        }
        assert!(b"a".to_vec() < next_key(b"a") && next_key(b"a") < b"a\0\0".to_vec());
    }
}
