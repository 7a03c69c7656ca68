//! Forms that answer the second question. Each is used once, within a time: who sends one again gets the end of the
//! first sending.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Obstacle;
use crate::session::random;

/// An older form is refused.
const LASTS: Duration = Duration::from_mins(10);

/// The most forms at a time. One more ends the oldest one.
const MOST: usize = 1_000;

/// How an action ended.
pub(crate) type End = Result<(), Obstacle>;

/// The forms, by the random word in each.
#[derive(Debug, Default)]
pub(crate) struct SureForms(Mutex<HashMap<String, SureForm>>);

#[derive(Debug)]
struct SureForm {
    at: Instant,
    /// It was sent.
    end: Option<watch::Receiver<Option<End>>>,
}

impl SureForms {
    /// The word of a new form.
    pub(crate) fn make(&self) -> String {
        let word = random();
        let mut all = self.0.lock();
        all.retain(|_, form| form.at.elapsed() < LASTS);
        if all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, form)| form.at);
            let oldest = oldest.map(|(word, _)| word.clone());
            oldest.and_then(|word| all.remove(&word));
        }
        let at = Instant::now();
        all.insert(word.clone(), SureForm { at, end: None });
        word
    }

    /// Begins the work of a form, unless it was sent before. Returns where its end will be; `None`: the form is too
    /// old. The work does not end with the connection of who has sent it.
    pub(crate) fn send<W>(
        &self,
        word: &str,
        work: impl FnOnce() -> W,
    ) -> Option<watch::Receiver<Option<End>>>
    where
        W: Future<Output = End> + Send + 'static,
    {
        let mut all = self.0.lock();
        let form = all.get_mut(word).filter(|form| form.at.elapsed() < LASTS)?;
        let begin = || {
            let (ends, end) = watch::channel(None);
            let work = work();
            tokio::spawn(async move { ends.send_replace(Some(work.await)) });
            end
        };
        Some(form.end.get_or_insert_with(begin).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_form_is_used_once_and_not_when_it_is_old() {
        let forms = SureForms::default();
        let word = forms.make();
        let mut end = forms.send(&word, || async { Ok(()) }).unwrap();
        assert!(end.wait_for(Option::is_some).await.is_ok());
        let again = forms.send(&word, || async { unreachable!("it was sent") });
        assert!(again.is_some());
        assert!(forms.send("", || async { Ok(()) }).is_none());
        let old = forms.make();
        let long_ago = Instant::now().checked_sub(LASTS).unwrap();
        forms.0.lock().get_mut(&old).unwrap().at = long_ago;
        assert!(forms.send(&old, || async { Ok(()) }).is_none());
        for _ in 0..=MOST {
            forms.make();
        }
        assert_eq!(forms.0.lock().len(), MOST);
    }
}
