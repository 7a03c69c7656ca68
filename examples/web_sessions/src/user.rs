//! A user: one browser with several tabs, which share one cookie.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder, Response, StatusCode, header};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Failure;
use crate::arguments::Arguments;
use crate::meeting::MEETING;

/// How long a user loads a page again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of the items that a user added.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Items whose addition was acknowledged.
    pub(crate) added: u32,
    /// Items that were acknowledged, and are not in the cart at the end.
    pub(crate) lost: u32,
    /// Requests that were not acknowledged: refused, or cut off.
    pub(crate) failed: u32,
    /// How long each acknowledged request took.
    pub(crate) waited_ms: Vec<f64>,
}

/// Adds the items, round by round, and counts those in the cart at the end.
pub(crate) async fn shop(
    address: SocketAddr,
    user: u32,
    arguments: Arguments,
) -> Result<Tally, Failure> {
    // A connection for each request, so that the next request may go to the other server.
    let browser = Client::builder()
        .pool_max_idle_per_host(0)
        .timeout(arguments.wait() + Duration::from_secs(30))
        .build()?;
    let first = load(browser.get(format!("http://{address}/"))).await?;
    let cookie = first
        .headers()
        .get(header::SET_COOKIE)
        .ok_or("no session")?;
    let cookie = cookie.to_str()?.split(';').next().unwrap_or_default();

    let mut tally = Tally::default();
    let mut acknowledged = HashSet::new();
    for round in 0..arguments.items {
        let mut tabs = JoinSet::new();
        for tab in 0..arguments.tabs {
            let item = format!("{round}-{tab}");
            let mut request = browser
                .post(format!("http://{address}/cart/{item}"))
                .header(header::COOKIE, cookie);
            if arguments.meet {
                request = request.header(MEETING, format!("{user}-{round}"));
            }
            tabs.spawn(async move {
                let begun = Instant::now();
                let answer = request.send().await;
                let done = answer.is_ok_and(|answer| answer.status() == StatusCode::NO_CONTENT);
                (item, done.then(|| begun.elapsed()))
            });
        }
        while let Some(tab) = tabs.join_next().await {
            let (item, waited) = tab?;
            match waited {
                Some(waited) => {
                    tally.waited_ms.push(waited.as_secs_f64() * 1e3);
                    acknowledged.insert(item);
                }
                None => tally.failed += 1,
            }
        }
    }
    let cart = browser.get(format!("http://{address}/cart"));
    let cart = load(cart.header(header::COOKIE, cookie)).await?;
    let cart: HashSet<String> = cart.json().await?;
    tally.added = u32::try_from(acknowledged.len())?;
    tally.lost = u32::try_from(acknowledged.difference(&cart).count())?;
    Ok(tally)
}

/// Loads a page, again and again while its server does not answer: `--kill` kills one of them.
async fn load(page: RequestBuilder) -> Result<Response, Failure> {
    let begun = Instant::now();
    loop {
        let page = page.try_clone().ok_or("a page has no body")?;
        let answer = page.send().await;
        match answer.and_then(Response::error_for_status) {
            Err(_) if begun.elapsed() < PATIENCE => sleep(Duration::from_millis(100)).await,
            answer => return Ok(answer?),
        }
    }
}
