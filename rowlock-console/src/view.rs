//! The pages, by their addresses.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use rowlock::{Error, Name, RecordKey};

use crate::Shared;
use crate::act::{done, is_action};
use crate::content::{Fragment, lock_path, name_of, record_of, record_path};
use crate::fields::Fields;
use crate::layout::{Title, answer, page as whole, refusal};
use crate::pages::jobs::JobsView;
use crate::pages::locks::LocksView;
use crate::pages::records::RecordsView;
use crate::pages::{lock, overview, record, sessions};
use crate::text::{bytes, plain, plain_bytes, sentence, text};
use crate::viewer::Viewer;

/// The paths of all pages.
pub(crate) const PATHS: [&str; 8] = [
    "/",
    "/overview",
    "/locks",
    "/lock",
    "/sessions",
    "/jobs",
    "/records",
    "/record",
];

/// The address of a page of this console, or of the first page of an action. `None` for anything else: a page that
/// is asked for after the login is nowhere else. (The parameters are written anew.)
pub(crate) fn way(address: &str) -> Option<String> {
    let (path, parameters) = address.split_once('?').unwrap_or((address, ""));
    let fields = Fields::parse(parameters.as_bytes());
    let page = path.strip_prefix('/')?;
    let is_page = match page.strip_prefix("act/") {
        Some(action) => is_action(action, &fields),
        None => View::parse(page, &fields).is_some(),
    };
    let path = format!("{path}?{}", fields.query());
    is_page.then(|| path.trim_end_matches('?').to_owned())
}

/// A page, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum View {
    Overview,
    Locks(LocksView),
    Lock(Name),
    Sessions,
    Jobs(JobsView),
    Records(RecordsView),
    Record(RecordKey),
}

impl View {
    /// `None`: there is no such page.
    pub(crate) fn parse(page: &str, fields: &Fields) -> Option<Self> {
        Some(match page {
            "" | "overview" => Self::Overview,
            "locks" => Self::Locks(LocksView::parse(fields)?),
            "lock" => Self::Lock(name_of(fields)?),
            "sessions" => Self::Sessions,
            "jobs" => Self::Jobs(JobsView::parse(fields)),
            "records" => Self::Records(RecordsView::parse(fields)?),
            "record" => Self::Record(record_of(fields)?),
            _ => return None,
        })
    }

    /// The address: the page, and its parameters.
    fn path(&self) -> String {
        match self {
            Self::Overview => "/overview".into(),
            Self::Locks(view) => view.path(),
            Self::Lock(name) => lock_path(name),
            Self::Sessions => "/sessions".into(),
            Self::Jobs(view) => view.path(),
            Self::Records(view) => view.path(),
            Self::Record(key) => record_path(key),
        }
    }

    /// A page of one thing is called by its name.
    fn title(&self) -> Title {
        match self {
            Self::Overview => Title::new("Overview", "/"),
            Self::Locks(_) => Title::new("Locks", "/locks"),
            Self::Lock(name) => Title {
                words: plain(name.as_str()),
                heading: text(name.as_str()),
                entry: "/locks",
            },
            Self::Sessions => Title::new("Sessions", "/sessions"),
            Self::Jobs(_) => Title::new("Jobs", "/jobs"),
            Self::Records(_) => Title::new("Records", "/records"),
            Self::Record(record) => {
                let (scope, key) = (record.scope(), record.key());
                Title {
                    words: format!("{} / {}", plain_bytes(scope), plain_bytes(key)),
                    heading: html! { (bytes(scope)) " / " (bytes(key)) },
                    entry: "/records",
                }
            }
        }
    }

    /// What does not change while one looks: the filter.
    fn filter(&self, viewer: &Viewer) -> Markup {
        match self {
            Self::Locks(view) => view.filter(&viewer.href("/locks")),
            Self::Jobs(view) => view.filter(&viewer.href("/jobs")),
            Self::Records(view) => view.filter(&viewer.href("/records")),
            _ => Markup::default(),
        }
    }

    /// Reads the page from the database.
    pub(crate) async fn read(&self, shared: &Shared, base: &str) -> Result<Fragment, Error> {
        Ok(match self {
            Self::Overview => Fragment::new(&overview::read(shared).await?, base),
            Self::Locks(view) => Fragment::new(&view.read(shared).await?, base),
            Self::Lock(name) => Fragment::new(&lock::read(shared, name).await?, base),
            Self::Sessions => Fragment::new(&sessions::read(shared).await?, base),
            Self::Jobs(view) => Fragment::new(&view.read(shared).await?, base),
            Self::Records(view) => Fragment::new(&view.read(shared).await?, base),
            Self::Record(key) => Fragment::new(&record::read(shared, key).await?, base),
        })
    }
}

/// Why a page cannot be read, for people.
pub(crate) fn why(error: &Error) -> String {
    let error = sentence(&error.to_string());
    format!("The database was not read: {error} This page tries again every second.")
}

/// One page.
pub(crate) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(viewer): Extension<Viewer>,
    request: Request,
) -> Response {
    let uri = request.uri();
    let fields = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let Some(view) = View::parse(uri.path().trim_start_matches('/'), &fields) else {
        let why = "There is no such page. The address may have been cut.";
        return refusal(&viewer, StatusCode::NOT_FOUND, why);
    };
    let (status, shown, away) = match view.read(&shared, &viewer.base).await {
        Ok(fragment) => (StatusCode::OK, Some(fragment), None),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, None, Some(why(&error))),
    };
    let live = viewer.href(&format!("/live{}", view.path()));
    let content = html! {
        @if let Some(done) = done(fields.get("done")) {
            p.notice.good role="status" { (done) }
        }
        (view.filter(&viewer))
        p #away .notice.bad role="alert" hidden[away.is_none()] { (away.unwrap_or_default()) }
        div #live data-live=(live) {
            @if let Some(fragment) = &shown { (maud::PreEscaped(fragment.of(&viewer))) }
        }
        noscript { p.hint { "Without JavaScript this page shows one moment. Load it again to see the next one." } }
    };
    answer(status, whole(&viewer, &view.title(), &content))
}
