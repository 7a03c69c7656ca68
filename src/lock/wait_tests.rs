//! A waiter whose first try fails.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::runtime::rows::tests::core;

/// Fails for a while, as a database does that is busy.
struct Failing {
    tries: AtomicU32,
}

impl Asker for Failing {
    async fn ask(&self) -> Result<Acquired, Error> {
        let target = "here".to_owned();
        let tries = self.tries.fetch_add(1, Ordering::Relaxed);
        Err(match tries {
            0 => Error::Unreachable {
                target,
                detail: "no answer in time".into(),
            },
            _ => Error::NotOneRow { rows: 0 },
        })
    }
}

#[tokio::test]
async fn what_may_pass_is_waited_for_and_what_will_not_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let core = core(&dir).await;
    let name = Name::new("a").unwrap();
    // Without time left the first failure is the last one.
    for (wait, tries) in [(Some(Duration::ZERO), 1), (None, 2)] {
        let asker = Failing {
            tries: AtomicU32::new(0),
        };
        let failed = acquire(&core, &name, wait, &asker).await.unwrap_err();
        assert_eq!(asker.tries.into_inner(), tries);
        assert_eq!(matches!(failed, Error::NotOneRow { .. }), tries == 2);
    }
}
