//! The images of the documents. With `ROWLOCK_IMAGES=FOLDER` they are kept there (`docs/images/make.sh`).

use std::path::PathBuf;
use std::time::Duration;

use rowlock::{Begun, Fingerprint, Outcome, Rowlock, Scope, StepFailed};
use rowlock_test::eventually;

use crate::commands::Place;
use crate::window::Window;

/// The most bytes of an image.
const MOST: usize = 200_000;

const TOKEN: &str = "a secret of more than 20 characters";

const LONG: Duration = Duration::from_mins(10);

/// A shop on a day on which something needs a person.
pub(crate) async fn fill(place: &Place) -> Rowlock {
    let shop = place.client("worker-7@shop-1").await;
    let other = place.client("worker-3@shop-2").await;
    for (number, client) in [&shop, &other].into_iter().cycle().take(9).enumerate() {
        let held = client.lock("report").ttl(LONG).acquire().await.unwrap();
        held.begin_run().await.unwrap();
        tokio::task::yield_now().await;
        let is_good = number % 4 != 0;
        let message = if is_good {
            ""
        } else {
            "the printer has no paper"
        };
        held.end_run(is_good, message).await.unwrap();
        held.release().await.unwrap();
    }
    for name in ["invoice:2026-11", "stock:41", "stock:42"] {
        std::mem::forget(shop.lock(name).ttl(LONG).acquire().await.unwrap());
    }
    std::mem::forget(other.lock("ledger").in_session().acquire().await.unwrap());
    std::mem::forget(
        other
            .semaphore("exports", 3)
            .ttl(LONG)
            .weight(2)
            .acquire()
            .await
            .unwrap(),
    );
    for client in [&shop, &other] {
        std::mem::forget(client.rw_lock("catalogue").ttl(LONG).read().await.unwrap());
    }
    let why = "the supplier sends twice";
    shop.admin().pause("imports", None, why).await.unwrap();
    for holder in ["worker-1@shop-1", "worker-2@shop-2", "worker-5@shop-2"] {
        let client = place.client(holder).await;
        let lock = client.lock("stock:42").ttl(LONG);
        let before = shop.admin().queue("stock:42").await.unwrap().len();
        tokio::spawn(async move { lock.acquire().await });
        let waits = async || shop.admin().queue("stock:42").await.unwrap().len() > before;
        eventually("it waits", waits).await;
        std::mem::forget(client);
    }
    for number in 14..20 {
        let key = Scope("shop").key(format!("order-{number}"));
        let begun = shop
            .idempotency()
            .begin(key, Fingerprint::of(number.to_string()))
            .await;
        let Ok(Begun::New(attempt)) = begun else {
            panic!("it is new")
        };
        attempt
            .step("reserve", async { Ok::<_, rowlock::Error>(number) })
            .await
            .unwrap();
        if number == 17 {
            let error = rowlock::Error::Invalid(rowlock::Name::new("").unwrap_err());
            let charge = async { Err::<u8, _>(StepFailed::Unknown(error)) };
            attempt.step_once("charge", charge).await.unwrap_err();
        } else {
            attempt
                .complete(&Outcome::json(&"paid").unwrap())
                .await
                .unwrap();
        }
    }
    shop
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_images_of_the_documents_can_be_made() {
    let place = Place::new();
    let _shop = fill(&place).await;
    let (_console, address) = place.console_with_token(TOKEN);
    let window = Window::at(&address).await;
    window.open("/").await;
    window.write("name", "Ann").await;
    window.write("token", TOKEN).await;
    window.click("Log in").await;
    window.shows("you act as Ann").await;
    for (name, page, colours, width, height) in [
        ("locks", "/locks", "light", 1200, 780),
        ("lock", "/lock?name=stock:42", "dark", 1200, 720),
        ("free", "/act/free?name=stock:42", "light", 1200, 600),
    ] {
        window.prefers(colours, width, height).await;
        window.open(page).await;
        let image = window.driver.screenshot().await.unwrap();
        assert!(image.len() <= MOST, "{name}: {} bytes", image.len());
        if let Some(folder) = std::env::var_os("ROWLOCK_IMAGES") {
            std::fs::write(
                PathBuf::from(folder).join(name).with_extension("png"),
                image,
            )
            .unwrap();
        }
    }
    window.close().await;
}
