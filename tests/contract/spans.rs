//! The trace of a caller shows what it waits for and what it holds: the spans as OpenTelemetry gets them.

use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry::SpanId;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use rowlock_test::{Db, begin_new, eventually, on_every_engine, outcome, take, waiters};
use tracing::dispatcher::with_default;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Instrument as _, info_span};
use tracing_subscriber::layer::SubscriberExt as _;

const TTL: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(30);

/// While a process has one subscriber only, tracing asks the thread that first begins a span whether it is wanted: a
/// thread without a subscriber would turn it off for all.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));

/// An exporter, which keeps the spans that have ended.
struct Traces {
    exporter: InMemorySpanExporter,
    subscriber: Dispatch,
}

impl Traces {
    fn new() -> Self {
        LazyLock::force(&OTHERS);
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = Dispatch::new(tracing_subscriber::registry().with(layer));
        Self {
            exporter,
            subscriber,
        }
    }

    /// Runs `work` as a handler, in a span of its own.
    async fn handler<T>(&self, work: impl Future<Output = T>) -> T {
        let span = with_default(&self.subscriber, || info_span!("handler"));
        let work = work.instrument(span);
        work.with_subscriber(self.subscriber.clone()).await
    }

    fn ended(&self, name: &str) -> Vec<SpanData> {
        let mut spans = self.exporter.get_finished_spans().unwrap();
        spans.retain(|span| span.name == name);
        spans
    }

    fn one(&self, name: &str) -> SpanData {
        let mut ended = self.ended(name);
        assert_eq!(ended.len(), 1, "{name}: {ended:?}");
        ended.remove(0)
    }

    /// The only span of this name, whose parent is the only handler.
    fn of_handler(&self, name: &str) -> SpanData {
        let (handler, span) = (self.one("handler"), self.one(name));
        assert_eq!(handler.parent_span_id, SpanId::INVALID);
        assert_eq!(span.parent_span_id, handler.span_context.span_id());
        assert_eq!(
            span.span_context.trace_id(),
            handler.span_context.trace_id()
        );
        span
    }
}

/// A field of the span, as text.
fn field(span: &SpanData, name: &str) -> Option<String> {
    let field = span
        .attributes
        .iter()
        .find(|field| field.key.as_str() == name);
    field.map(|field| field.value.to_string())
}

fn fields<const N: usize>(span: &SpanData, names: [&str; N]) -> [Option<String>; N] {
    names.map(|name| field(span, name))
}

fn some<const N: usize>(values: [&str; N]) -> [Option<String>; N] {
    values.map(|value| Some(value.to_owned()))
}

on_every_engine! {
    async fn an_acquire_and_a_hold_are_in_the_trace_of_the_caller(db: &Db) {
        let (rowlock, traces) = (db.rowlock().await, Traces::new());
        let fence = traces.handler(async {
            let held = rowlock.lock("a").acquire().await.unwrap();
            assert_eq!(traces.ended("rowlock.hold").len(), 0);
            held.release().await.unwrap();
            held.fence()
        });
        let fence = fence.await.to_string();
        let acquire = traces.of_handler("rowlock.acquire");
        let told = fields(&acquire, ["rowlock.name", "rowlock.kind", "rowlock.outcome"]);
        assert_eq!(told, some(["a", "lock", "held"]));
        assert_eq!(field(&acquire, "rowlock.position"), None, "it was free");
        let hold = traces.of_handler("rowlock.hold");
        assert_eq!(fields(&hold, ["rowlock.name", "rowlock.fence"]), some(["a", &fence]));
        assert_eq!(field(&hold, "rowlock.loss"), None);
        assert!(acquire.end_time <= hold.start_time && hold.start_time <= hold.end_time);
    }

    async fn a_wait_has_its_place_and_its_outcome(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let waits = Traces::new();
        let holder = take(&one, "a", LONG).await;
        let acquire = waits.handler(async { two.lock("a").wait(LONG).acquire().await.unwrap() });
        let release = async {
            eventually("it waits", async || waiters(&one, "a").await.len() == 1).await;
            holder.release().await.unwrap();
        };
        let (held, ()) = tokio::join!(acquire, release);
        let gives_up = Traces::new();
        let busy = gives_up.handler(async { one.lock("a").try_acquire().await.unwrap() });
        assert!(busy.await.is_none());
        let wait = one.lock("a").wait(Duration::from_millis(50));
        gives_up.handler(async { wait.acquire().await.unwrap_err() }).await;
        // A registry ends the parent of a span in the subscriber of the thread.
        with_default(&waits.subscriber, || drop(held));
        let waited = waits.of_handler("rowlock.acquire");
        assert_eq!(field(&waited, "rowlock.outcome").as_deref(), Some("held"));
        let position = field(&waited, "rowlock.position").expect("it has stood in the queue");
        assert!(position.parse::<i64>().unwrap() >= 1, "{position}");
        let outcomes = gives_up.ended("rowlock.acquire");
        let outcomes: Vec<_> = outcomes.iter().map(|span| field(span, "rowlock.outcome")).collect();
        assert_eq!(outcomes, some(["busy", "timeout"]));
        assert_eq!(gives_up.ended("rowlock.hold").len(), 0);
    }

    async fn a_hold_ends_when_the_lock_is_lost(db: &Db) {
        let (rowlock, traces) = (db.rowlock().await, Traces::new());
        let (held, other) = traces.handler(async {
            let take = async |name| rowlock.lock(name).ttl(TTL).acquire().await.unwrap();
            (take("a").await, take("b").await)
        }).await;
        rowlock.admin().force_release("a").await.unwrap();
        held.lost().await;
        let lost = traces.one("rowlock.hold");
        assert_eq!(fields(&lost, ["rowlock.name", "rowlock.loss"]), some(["a", "taken_over"]));
        drop((held, other));
        assert_eq!(traces.ended("rowlock.hold").len(), 2);
    }

    async fn the_holds_of_a_session_end_with_it_or_by_themselves(db: &Db) {
        let (rowlock, traces) = (db.rowlock().await, Traces::new());
        let (first, second, third) = traces.handler(async {
            let take = async |name| rowlock.lock(name).in_session().acquire().await.unwrap();
            (take("a").await, take("b").await, take("c").await)
        }).await;
        first.release().await.unwrap();
        assert_eq!(field(&traces.one("rowlock.hold"), "rowlock.name").as_deref(), Some("a"));
        rowlock.end_session().await.unwrap();
        let mut ended = traces.ended("rowlock.hold");
        ended.sort_by_key(|span| field(span, "rowlock.name"));
        let losses: Vec<_> = ended.iter().map(|span| field(span, "rowlock.loss")).collect();
        let ended = || Some("session_ended".to_owned());
        assert_eq!(losses, [None, ended(), ended()]);
        drop((second, third));
        assert_eq!(traces.ended("rowlock.hold").len(), 3);
    }

    async fn an_attempt_is_in_the_trace_of_the_caller_without_its_scope_and_key(db: &Db) {
        let (rowlock, traces) = (db.rowlock().await, Traces::new());
        let number = traces.handler(async {
            let guard = begin_new(&rowlock.idempotency(), "secret").await;
            assert_eq!(traces.ended("rowlock.attempt").len(), 0);
            guard.complete(&outcome("done")).await.unwrap();
            guard.attempt()
        });
        let number = number.await.to_string();
        let attempt = traces.of_handler("rowlock.attempt");
        let told = fields(&attempt, ["rowlock.attempt", "rowlock.end"]);
        assert_eq!(told, some([&number, "completed"]));
        let ours = attempt.attributes.iter().filter(|field| field.key.as_str().starts_with("rowlock."));
        let ours: Vec<String> = ours.map(|field| format!("{field:?}")).collect();
        assert_eq!(ours.len(), 2, "{ours:?}");
        assert!(ours.iter().all(|field| !field.contains("secret") && !field.contains("scope")), "{ours:?}");
    }
}
