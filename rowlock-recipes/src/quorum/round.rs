//! Asking all databases at the same time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Futures that run together. Their results are in their places.
pub(super) struct Round<'a, T> {
    running: Vec<Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>>,
    pub(super) done: Vec<Option<T>>,
}

impl<'a, T> Round<'a, T> {
    pub(super) fn of(asks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>) -> Self {
        let running: Vec<Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>> = asks
            .into_iter()
            .map(|ask| Some(Box::pin(ask) as Pin<Box<dyn Future<Output = T> + Send + 'a>>))
            .collect();
        let done = running.iter().map(|_| None).collect();
        Self { running, done }
    }

    /// Runs them until `is_enough` says so, or all have ended.
    pub(super) async fn run(&mut self, is_enough: impl Fn(&Self) -> bool) {
        poll_fn(|cx| {
            self.poll(cx);
            if self.is_over() || is_enough(self) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        for (running, done) in self.running.iter_mut().zip(&mut self.done) {
            if let Some(future) = running
                && let Poll::Ready(result) = future.as_mut().poll(cx)
            {
                *done = Some(result);
                *running = None;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.running.iter().all(Option::is_none)
    }

    /// The numbers of those that have not ended.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> {
        let running = self.running.iter().enumerate();
        running.filter_map(|(number, running)| running.as_ref().map(|_| number))
    }

    /// How many of the results that have arrived satisfy `is_like`.
    pub(super) fn count(&self, is_like: impl Fn(&T) -> bool) -> usize {
        self.done
            .iter()
            .flatten()
            .filter(|done| is_like(done))
            .count()
    }
}

/// The results of all futures.
pub(super) async fn all<'a, T>(
    asks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>,
) -> Vec<T> {
    let mut round = Round::of(asks);
    round.run(|_| false).await;
    round.done.into_iter().flatten().collect()
}

/// Resolves when `count` of the futures have ended, or all.
pub(super) async fn until<'a, T>(
    count: usize,
    asks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>,
) {
    let mut round = Round::of(asks);
    round.run(|round| round.count(|_| true) >= count).await;
}
