//! Work on the caller's runtime that goes on when nobody waits for it any more.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime;

/// Runs `work`, which is never dropped in the middle: when the future is, a task of the caller's runtime goes on
/// with it, and drops what it brings. (sqlx leaves an open transaction in the pool when beginning one is cut off.)
pub(crate) fn finished<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    struct Finish<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

    impl<T: Send + 'static> Future for Finish<T> {
        type Output = T;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
            let Some(work) = &mut self.0 else {
                return Poll::Pending; // polled after it was done
            };
            let done = work.as_mut().poll(cx);
            if done.is_ready() {
                self.0 = None;
            }
            done
        }
    }

    impl<T: Send + 'static> Drop for Finish<T> {
        fn drop(&mut self) {
            if let (Some(work), Ok(runtime)) = (self.0.take(), runtime::Handle::try_current()) {
                runtime.spawn(work);
            }
        }
    }

    Finish(Some(Box::pin(work)))
}
