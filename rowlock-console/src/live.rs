//! Pages that change while somebody looks at them.
//!
//! A feed is a task for one page with its parameters. It reads the page once a second and hands it to all who look at
//! it. It ends when nobody looks any more, so that the console sends no statement then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use http::StatusCode;
use http::request::Parts;
use parking_lot::Mutex;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::Shared;
use crate::content::Fragment;
use crate::fields::Fields;
use crate::layout::refusal;
use crate::session::digest;
use crate::view::{View, why};
use crate::viewer::Viewer;

/// How often a page is read.
const EVERY: Duration = Duration::from_secs(1);

/// A stream ends after this time, and the browser asks again: so the authentication in front of the console is asked,
/// too.
const LASTS: Duration = Duration::from_mins(1);

/// The most pages that are read at a time.
const FEEDS: usize = 64;

/// The most of them that one person has begun.
const OF_ONE: usize = 16;

/// Where a page is read for, and which one it is.
type Key = (String, View);

/// What the database has answered last.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Frame {
    /// Nothing yet.
    Nothing,
    Shown(Arc<Fragment>),
    /// Why it did not answer.
    Away(String),
}

/// A page that is read.
#[derive(Debug)]
struct Feed {
    frames: watch::Sender<Frame>,
    /// Who was the first to look.
    first: [u8; 32],
}

/// The feeds that somebody looks at.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<HashMap<Key, Feed>>);

impl Hub {
    /// The frames of a page. Begins to read it if nobody looks at it yet. `Err`: too many pages are looked at.
    fn look(
        &self,
        shared: &Arc<Shared>,
        key: Key,
        who: [u8; 32],
    ) -> Result<watch::Receiver<Frame>, &'static str> {
        let mut feeds = self.0.lock();
        let number = feeds.len();
        let own = feeds.values().filter(|feed| feed.first == who).count();
        match feeds.entry(key) {
            Entry::Occupied(feed) => {
                let mut frames = feed.get().frames.subscribe();
                // Also what was read before.
                frames.mark_changed();
                Ok(frames)
            }
            Entry::Vacant(_) if own >= OF_ONE => Err(
                "You look at 16 pages at a time: close one. This page tries again every second.",
            ),
            Entry::Vacant(_) if number >= FEEDS => {
                Err("Too many pages are looked at. This page tries again every second.")
            }
            Entry::Vacant(place) => {
                let (frames, receiver) = watch::channel(Frame::Nothing);
                let key = place.key().clone();
                tokio::spawn(feed(Arc::clone(shared), key, frames.clone()));
                place.insert(Feed { frames, first: who });
                Ok(receiver)
            }
        }
    }

    /// Ends a feed, unless somebody looks at it again.
    fn leave(&self, key: &Key) -> bool {
        let mut feeds = self.0.lock();
        let is_left = feeds
            .get(key)
            .is_none_or(|feed| feed.frames.receiver_count() == 0);
        if is_left {
            feeds.remove(key);
        }
        is_left
    }
}

async fn feed(shared: Arc<Shared>, key: Key, frames: watch::Sender<Frame>) {
    let _ends = Ends {
        hub: &shared.hub,
        key: &key,
        frames: &frames,
    };
    let mut seconds = interval(EVERY);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (base, view) = &key;
    loop {
        let read = async {
            seconds.tick().await;
            view.read(&shared, base).await
        };
        select! {
            read = read => {
                let frame = match read {
                    Ok(fragment) => Frame::Shown(Arc::new(fragment)),
                    Err(error) => Frame::Away(why(&error)),
                };
                frames.send_if_modified(|last| *last != frame && { *last = frame; true });
            }
            () = frames.closed() => {
                if shared.hub.leave(&key) {
                    return;
                }
            }
        }
    }
}

/// A feed that panics is no longer in the hub: who looks next begins another one.
struct Ends<'a> {
    hub: &'a Hub,
    key: &'a Key,
    frames: &'a watch::Sender<Frame>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut feeds = self.hub.0.lock();
        let feed = feeds.get(self.key);
        if feed.is_some_and(|feed| feed.frames.same_channel(self.frames)) {
            feeds.remove(self.key);
        }
    }
}

/// The frames of one page, for one who looks.
pub(crate) async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(viewer): Extension<Viewer>,
    parts: Parts,
) -> Response {
    let fields = Fields::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let page = parts.uri.path().strip_prefix("/live/").unwrap_or_default();
    let Some(view) = View::parse(page, &fields) else {
        return refusal(&viewer, StatusCode::NOT_FOUND, "There is no such page.");
    };
    let key = (viewer.base.clone(), view);
    let frames = match shared.hub.look(&shared, key, digest(viewer.person())) {
        Ok(frames) => frames,
        Err(why) => return refusal(&viewer, StatusCode::SERVICE_UNAVAILABLE, why),
    };
    let eye = Eye {
        shared,
        frames,
        viewer,
        parts,
    };
    Sse::new(events(eye)).into_response()
}

/// Who looks at a page, and the request for it.
struct Eye {
    shared: Arc<Shared>,
    frames: watch::Receiver<Frame>,
    viewer: Viewer,
    parts: Parts,
}

fn events(eye: Eye) -> impl Stream<Item = Result<Event, Infallible>> {
    let end = Instant::now() + LASTS;
    stream::unfold(eye, move |mut eye| async move {
        let shown = async {
            loop {
                eye.frames.changed().await.ok()?;
                // The login may have ended.
                eye.shared.admit(&mut eye.parts, &mut eye.viewer).ok()?;
                let event = event(&eye.frames.borrow_and_update(), &eye.viewer);
                if event.is_some() {
                    return event;
                }
            }
        };
        let event = select! {
            event = shown => event?,
            () = sleep_until(end) => return None,
        };
        Some((Ok(event), eye))
    })
}

/// One line of JSON: in an event's data, an end of a line would mean something.
fn event(frame: &Frame, viewer: &Viewer) -> Option<Event> {
    let (name, text) = match frame {
        Frame::Nothing => return None,
        Frame::Shown(fragment) => ("fragment", fragment.of(viewer)),
        Frame::Away(why) => ("away", why.as_str()),
    };
    let data = serde_json::to_string(text).unwrap_or_default();
    Some(Event::default().event(name).data(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_that_ends_leaves_the_hub_and_no_other_does() {
        let hub = Hub::default();
        let view = View::parse("sessions", &Fields::default()).unwrap();
        let key = (String::new(), view);
        let of = |frames: &watch::Sender<Frame>| Feed {
            frames: frames.clone(),
            first: [0; 32],
        };
        let ends = |frames| {
            let (hub, key) = (&hub, &key);
            drop(Ends { hub, key, frames });
        };
        let (frames, mut looks) = watch::channel(Frame::Nothing);
        let (later, _) = watch::channel(Frame::Nothing);
        hub.0.lock().insert(key.clone(), of(&later));
        ends(&frames);
        assert_eq!(hub.0.lock().len(), 1, "another feed of the page");
        hub.0.lock().insert(key.clone(), of(&frames));
        ends(&frames);
        assert!(hub.0.lock().is_empty());
        drop(frames);
        let ended = futures_util::FutureExt::now_or_never(looks.changed());
        assert!(ended.is_some_and(|ended| ended.is_err()), "it is told");
    }
}
