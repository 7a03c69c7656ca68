//! Requests that make no sense: the console answers each, and never with 500.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::Method;
use rowlock_test::patience;

use crate::browser::Form;
use crate::server::console;

/// The requests of each test.
fn rounds() -> u32 {
    let requests = std::env::var("ROWLOCK_FUZZ_REQUESTS");
    requests.map_or(2_000, |text| text.parse().expect("a number"))
}

/// What is sent as a value: parts that mean something somewhere, and bytes that do not.
const PARTS: [&str; 24] = [
    "a",
    "0",
    "-1",
    "yes",
    "on",
    "all",
    "held",
    "age",
    "done",
    "unknown",
    "1h",
    "{\"a\":1}",
    "61",
    "ff",
    "%",
    "%00",
    "%ff",
    "%c3%28",
    "&",
    "=",
    "/",
    "..",
    "00000000-0000-0000-0000-000000000000",
    "99999999999999999999",
];

const NAMES: [&str; 18] = [
    "name", "scope", "key", "id", "prefix", "state", "sort", "from", "hex", "done", "reason",
    "sure", "seen", "form", "capacity", "time", "happened", "result",
];

const PAGES: [&str; 17] = [
    "",
    "overview",
    "locks",
    "lock",
    "sessions",
    "jobs",
    "records",
    "record",
    "live/overview",
    "live/lock",
    "live/records",
    "live/none",
    "login",
    "logout",
    "assets/console.css",
    "assets/..",
    "none",
];

const ACTIONS: [&str; 11] = [
    "free",
    "capacity",
    "forget",
    "pause",
    "resume",
    "end-session",
    "resolve",
    "reset",
    "quarantine",
    "end-quarantine",
    "none",
];

fn value(random: &mut StdRng) -> String {
    let length = random.random_range(0..4);
    let mut text = String::new();
    for _ in 0..length {
        if random.random_ratio(1, 4) {
            let c: char = random.random();
            text.extend(form_urlencoded::byte_serialize(c.to_string().as_bytes()));
        } else {
            text.push_str(PARTS[random.random_range(0..PARTS.len())]);
        }
    }
    if random.random_ratio(1, 50) {
        text = text.repeat(200);
    }
    text
}

fn query(random: &mut StdRng) -> String {
    let number = random.random_range(0..5);
    let pair = |random: &mut StdRng| {
        let name = NAMES[random.random_range(0..NAMES.len())];
        format!("{name}={}", value(random))
    };
    let pairs: Vec<String> = (0..number).map(|_| pair(random)).collect();
    // (What a client may send in the first line of a request.)
    pairs.join("&").replace(['"', '{', '}'], "%22")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_address_makes_it_fail() {
    let test = async {
        let (server, rowlock, _db) = console(|console| console).await;
        let _held = rowlock.lock("a").acquire().await.unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let browser = server.browser();
        let mut answers: BTreeMap<u16, u32> = BTreeMap::new();
        for round in 0..rounds() {
            let page = match random.random_range(0..3) {
                0 => format!("act/{}", ACTIONS[random.random_range(0..ACTIONS.len())]),
                1 => PAGES[random.random_range(0..PAGES.len())].to_owned(),
                _ => value(&mut random).replace(['"', '{', '}'], "%7b"),
            };
            let path = format!("/{page}?{}", query(&mut random));
            let request = browser.request(Method::GET, &path);
            let response = request
                .send()
                .await
                .unwrap_or_else(|error| panic!("{round}: {path}: {error}"));
            let status = response.status().as_u16();
            assert!(status < 500, "{round}: {path}: {status}");
            // (A stream does not end.)
            if !path.starts_with("/live") {
                response.bytes().await.unwrap();
            }
            *answers.entry(status).or_default() += 1;
        }
        assert!(answers[&200] > 100 && answers[&404] > 100, "{answers:?}");
    };
    tokio::time::timeout(5 * patience(), test)
        .await
        .expect("done within the patience of a test");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_form_makes_it_fail() {
    let test = async {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("kept").acquire().await.unwrap();
        let mut random = StdRng::seed_from_u64(11);
        let mut browser = server.browser();
        let forms = [
            browser.open("/act/free?name=kept").await.form(),
            browser.open("/act/quarantine").await.form(),
        ];
        let mut answers: BTreeMap<u16, u32> = BTreeMap::new();
        for round in 0..rounds() {
            let form = &forms[random.random_range(0..forms.len())];
            let mut fields = crate::browser::encoded(&form.fields);
            // One of the form's own fields is another one, or missing; or the form is not this console's.
            let action = if random.random_ratio(1, 2) {
                form.action.clone()
            } else {
                format!("/act/{}", ACTIONS[random.random_range(0..ACTIONS.len())])
            };
            let more = format!("{}&{fields}", query(&mut random));
            match random.random_range(0..3) {
                0 => fields = more,
                1 => fields = query(&mut random),
                _ => fields.truncate(random.random_range(0..fields.len())),
            }
            let request = browser.posting(&Form {
                action,
                fields: BTreeMap::new(),
            });
            let response = request.body(fields.clone()).send().await.unwrap();
            let status = response.status().as_u16();
            assert!(status < 500, "{round}: {fields}: {status}");
            response.bytes().await.unwrap();
            *answers.entry(status).or_default() += 1;
        }
        assert!(
            answers[&403] > 100 && answers[&422] > 100 && answers[&404] > 20,
            "{answers:?}"
        );
        assert!(held.is_held());
    };
    tokio::time::timeout(5 * patience(), test)
        .await
        .expect("done within the patience of a test");
}
