//! A web console for [rowlock](https://docs.rs/rowlock): pages that show an operator who holds and who waits for which
//! lock, sessions, jobs and idempotency records, and that let the operator act.
//!
//! [`router`] is an axum router. Nest it into your own server, and say who may see it and who may act:
//!
//! ```
//! use axum::http::request::Parts;
//! use rowlock_console::Access;
//!
//! /// Who it is: your authentication, in front of the console, puts it into the extensions of each request.
//! #[derive(Clone)]
//! struct User { name: String, is_operator: bool }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}/locks.db", dir.path().display());
//! let rowlock = rowlock::Rowlock::connect(&url).await?;
//! let access = |parts: &Parts| match parts.extensions.get::<User>() {
//!     Some(user) if user.is_operator => Access::Act { who: user.name.clone() },
//!     Some(_) => Access::Read,
//!     None => Access::None,
//! };
//! let console = rowlock_console::Console::new(&rowlock, access).allow_host("shop.example").router();
//! let app = axum::Router::new().nest("/locks", console);
//! # let app: axum::Router = app.layer(axum::Extension(User { name: "ann".into(), is_operator: true }));
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let page = format!("http://{}/locks", listener.local_addr()?);
//! # tokio::spawn(async move { axum::serve(listener, app).await });
//! # let page = reqwest::get(page).await?.text().await?;
//! # assert!(page.contains("Nothing needs a person"), "{page}");
//! # Ok(())
//! # }
//! ```
//!
//! The command `rowlock console` serves the same pages.
//!
//! # What it promises
//!
//! - It uses the public API of rowlock only, and reads and acts as [`Admin`](rowlock::Admin) does.
//! - A page that somebody looks at is read once a second, however many people look at it. When nobody looks, the
//!   console sends no statement.
//! - A request whose `Host` is neither `localhost`, nor an IP address, nor [allowed](Console::allow_host), is refused:
//!   a page of a stranger cannot reach the console under the stranger's own name (DNS rebinding).
//! - A page of another site can link to the console, and ask nothing else of it (Fetch Metadata).
//! - What changes something is a POST request with a token that belongs to the session and the person. The server
//!   refuses a person who may read only.
//! - Every action needs a reason, and is shown and asked about before it is done. It is done once, and only to what
//!   was shown. It writes a log line before and one after it (`tracing`, target `rowlock::console`) with the person,
//!   the reason, what was decided, and the result.
//! - What others have written (names, holders, keys, messages) is shown as text, with escapes for characters that
//!   cannot be seen. The pages have no inline code, and the Content-Security-Policy forbids it.
//!
//! The tokens of forms, and logins, are kept in the process. Where several processes serve the console under one
//! address, a person's requests must reach the same process.

mod access;
mod act;
mod assets;
mod content;
mod fields;
mod form_guard;
mod gate;
mod layout;
mod live;
mod login;
mod origin;
mod pages;
mod session;
mod text;
mod view;
mod viewer;

use std::collections::HashSet;
use std::sync::Arc;

pub use access::{Access, Visitor};
use axum::Router;
use axum::routing::{any, get};
use http::request::Parts;
use rowlock::Rowlock;

use access::Policy;
use act::SureForms;
use live::Hub;
use pages::jobs::LastRuns;
use pages::rates::Rates;
use pages::sessions::Longest;
use session::{CookieNames, Logins, Seal, Secret};

/// A console with its settings.
#[derive(Debug)]
#[must_use = "it does nothing before `router` makes a router of it"]
pub struct Console(Shared);

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    rowlock: Rowlock,
    policy: Policy,
    hosts: HashSet<String>,
    token: Option<Secret>,
    shows_outcomes: bool,
    cookies: Arc<CookieNames>,
    logins: Logins,
    seal: Seal,
    sure_forms: SureForms,
    hub: Hub,
    last_runs: LastRuns,
    longest: Longest,
    rates: Rates,
}

/// A console with the default settings, for an axum server of your own: see [`Console::new`].
pub fn router(
    rowlock: &Rowlock,
    access: impl Fn(&Parts) -> Access + Send + Sync + 'static,
) -> Router {
    Console::new(rowlock, access).router()
}

impl Console {
    /// A console for the database of this client.
    ///
    /// `access` decides for each request what its sender may do, and again whenever the content of an open page
    /// changes (by the parts of the request for that content, which is a minute old at most). Decide by what the
    /// authentication in front of the console has put into the extensions of the request, not by what any client can
    /// send.
    pub fn new(
        rowlock: &Rowlock,
        access: impl Fn(&Parts) -> Access + Send + Sync + 'static,
    ) -> Self {
        Self(Shared {
            rowlock: rowlock.clone(),
            policy: Policy::new(access),
            hosts: HashSet::new(),
            token: None,
            shows_outcomes: false,
            cookies: CookieNames::new().into(),
            logins: Logins::default(),
            seal: Seal::new(),
            sure_forms: SureForms::default(),
            hub: Hub::default(),
            last_runs: LastRuns::default(),
            longest: Longest::default(),
            rates: Rates::default(),
        })
    }

    /// Accepts requests to this host, too: the name in the address of the browser, without a port. May be called for
    /// several names. (`localhost` and IP addresses are always accepted.)
    pub fn allow_host(mut self, host: impl AsRef<str>) -> Self {
        self.0.hosts.insert(host.as_ref().to_ascii_lowercase());
        self
    }

    /// Asks for this secret, and for a name, before it shows anything: it has a page to log in and to log out. The
    /// closure for the access is asked then, and finds the name as a [`Visitor`]. A login lasts for 12 hours.
    ///
    /// Nothing limits how often a stranger may guess, so the secret must be long and random: 20 characters at least.
    pub fn token(mut self, secret: impl Into<String>) -> Self {
        self.0.token = Some(Secret::new(secret.into()));
        self
    }

    /// Shows the outcomes of records and of their steps (default: `false`). They may have personal data in them. Who
    /// may read, sees them.
    pub fn show_outcomes(mut self, show: bool) -> Self {
        self.0.shows_outcomes = show;
        self
    }

    /// The router. Give it to [`Router::nest`], or serve it alone.
    ///
    /// Its handlers need a tokio runtime with timers.
    pub fn router(self) -> Router {
        let shared = Arc::new(self.0);
        let gate = axum::middleware::from_fn_with_state(Arc::clone(&shared), gate::gate);
        let admit = axum::middleware::from_fn_with_state(Arc::clone(&shared), gate::admit);
        let pages = view::PATHS.into_iter().fold(Router::new(), |router, path| {
            router.route(path, get(view::page))
        });
        pages
            .route("/live/{page}", get(live::stream))
            .route("/act/{action}", get(act::ask).post(act::act))
            // (A fallback could not be nested below a parameter of a path.)
            .route("/{*rest}", any(gate::not_found))
            .route_layer(admit)
            .route("/login", get(login::ask).post(login::begin))
            .route("/logout", get(login::ask_to_end).post(login::end))
            .route("/assets/{file}", get(assets::file))
            .layer(gate)
            .with_state(shared)
    }
}
