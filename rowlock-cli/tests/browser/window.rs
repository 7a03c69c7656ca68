//! A window of a browser.

use rowlock_test::{Own, eventually};
use serde_json::{Value, json};
use thirtyfour::error::WebDriverResult;
use thirtyfour::prelude::*;

/// A window on a page of the console.
pub(crate) struct Window {
    pub(crate) driver: WebDriver,
    base: String,
    // The last field: the driver ends after the browser.
    _server: Own,
}

impl Window {
    pub(crate) async fn at(base: &str) -> Self {
        let server = Own::start("chromium", &[]);
        let browser = std::fs::read_to_string(server.dir.path().join("browser")).unwrap();
        let mut settings = DesiredCapabilities::chrome();
        settings.set_binary(browser.trim()).unwrap();
        // The driver runs as a user without rights, in a container where the browser has no sandbox of its own.
        for argument in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-proxy-server",
            "--force-device-scale-factor=1",
            "--window-size=1200,800",
        ] {
            settings.add_arg(argument).unwrap();
        }
        settings
            .set_browser_log_level(thirtyfour::LoggingPrefsLogLevel::All)
            .unwrap();
        let driver = WebDriver::new(&server.url, settings).await.unwrap();
        Self {
            driver,
            base: base.to_owned(),
            _server: server,
        }
    }

    pub(crate) async fn open(&self, path: &str) {
        let url = format!("{}{path}", self.base);
        self.driver.goto(&url).await.unwrap();
    }

    /// What a script returns.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.driver
            .execute(script, Vec::new())
            .await
            .unwrap()
            .json()
            .clone()
    }

    async fn text(&self) -> WebDriverResult<String> {
        // As it is shown, without what is hidden.
        let text = self
            .driver
            .execute("return document.body.innerText", Vec::new())
            .await?;
        text.convert()
    }

    /// Waits until the page shows a text.
    pub(crate) async fn shows(&self, text: &str) {
        let shown = async || self.text().await.is_ok_and(|all| all.contains(text));
        eventually(&format!("the page shows {text}"), shown).await;
    }

    pub(crate) async fn hides(&self, text: &str) {
        let hidden = async || self.text().await.is_ok_and(|all| !all.contains(text));
        eventually(&format!("the page shows no {text}"), hidden).await;
    }

    /// Clicks a link or a button, by its text. (It may be replaced at that moment: then another try finds it.)
    pub(crate) async fn click(&self, text: &str) {
        let xpath = format!("//*[self::a or self::button][normalize-space() = \"{text}\"]");
        let click = async || {
            let found = self.driver.find(By::XPath(&xpath)).await;
            match found {
                Ok(found) => found.click().await.is_ok(),
                Err(_) => false,
            }
        };
        eventually(&format!("{text} can be clicked"), click).await;
    }

    pub(crate) async fn write(&self, field: &str, text: &str) {
        let field = self.driver.find(By::Name(field)).await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// What the page has asked of the browser in vain, and errors of scripts.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.driver.browser_log().await.unwrap();
        log.into_iter().map(|entry| format!("{entry:?}")).collect()
    }

    /// As if the person prefers these colours, on a screen of this size.
    pub(crate) async fn prefers(&self, colours: &str, width: u32, height: u32) {
        let cdp = self.driver.cdp();
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        cdp.send_raw("Emulation.setEmulatedMedia", features)
            .await
            .unwrap();
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        cdp.send_raw("Emulation.setDeviceMetricsOverride", size)
            .await
            .unwrap();
    }

    pub(crate) async fn close(self) {
        self.driver.quit().await.unwrap();
    }
}
