//! A connection that nobody has used for long is closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::select;

use super::{Link, Made, end};
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;

/// A connection that nobody has used for this long is closed, if nobody [keeps](Link::keep) it.
const IDLE: Duration = Duration::from_mins(1);

impl Link {
    /// Whether the connection stays when nobody uses it.
    pub(crate) fn keep(&mut self, keeps: bool) {
        if keeps && !self.keeps {
            self.slot.keepers.fetch_add(1, Ordering::Relaxed);
        } else if self.keeps && !keeps {
            self.slot.keepers.fetch_sub(1, Ordering::Relaxed);
        }
        self.keeps = keeps;
    }

    /// When [`Self::close_idle`] has to close the connection; `None`: there is none, or somebody keeps it.
    pub(crate) fn idle_at(&self) -> Option<Moment> {
        if self.slot.keepers.load(Ordering::Relaxed) > 0 {
            return None;
        }
        match self.slot.try_connection() {
            Some(lock) => Some(lock.as_ref()?.used + IDLE),
            // In use.
            None => Some(Moment::now() + IDLE),
        }
    }

    /// Closes the connection when nobody has used it for long, and nobody keeps it.
    pub(crate) async fn close_idle(&mut self) {
        if !self.idle_at().is_some_and(Moment::has_passed) {
            return;
        }
        let mut lock = self.slot.connection(self.is_urgent).await;
        let is_idle = |made: &Made| (made.used + IDLE).has_passed();
        let made = lock.take_if(|made| is_idle(made));
        // Nobody waits for the end.
        drop(lock);
        end(made).await;
    }

    /// Waits for `news`. Closes the connection when it is idle for long.
    pub(crate) async fn rest(&mut self, news: impl Future<Output = ()>) {
        self.precedence = None;
        let mut news = std::pin::pin!(news);
        while let Some(at) = self.idle_at() {
            select! {
                () = &mut news => return,
                () = sleep_until(at) => self.close_idle().await,
            }
        }
        news.await;
    }
}
