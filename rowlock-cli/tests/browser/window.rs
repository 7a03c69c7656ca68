//! A window of a browser.

use std::time::Duration;

use axum::http::Method;
use fantoccini::error::CmdError;
use fantoccini::wd::{TimeoutConfiguration, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use rowlock_test::{Own, eventually};
use serde_json::{Value, json};
use url::{ParseError, Url};

/// A window on a page of the console.
pub(crate) struct Window {
    pub(crate) driver: Client,
    base: String,
    // The last field: the driver ends after the browser.
    _server: Own,
}

/// A command of Chromium's own driver: its path in the session, and its parameters.
#[derive(Debug)]
struct DriverCommand(&'static str, Value);

impl WebDriverCompatibleCommand for DriverCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!(
            "session/{}/{}",
            session.unwrap_or_default(),
            self.0
        ))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}

impl Window {
    pub(crate) async fn at(base: &str) -> Self {
        let server = Own::start("chromium", &[]);
        let browser = std::fs::read_to_string(server.dir.path().join("browser")).unwrap();
        // The driver runs as a user without rights, in a container where the browser has no sandbox of its own.
        let settings = json!({
            "goog:chromeOptions": {
                "binary": browser.trim(),
                "args": [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--no-proxy-server",
                    "--force-device-scale-factor=1",
                    "--window-size=1200,800",
                ],
            },
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let driver = ClientBuilder::new(HttpConnector::new())
            .capabilities(serde_json::from_value(settings).unwrap())
            .connect(&server.url)
            .await
            .unwrap();
        Self {
            driver,
            base: base.to_owned(),
            _server: server,
        }
    }

    pub(crate) async fn scripts_may_take(&self, time: Duration) {
        let times = TimeoutConfiguration::new(Some(time), None, None);
        self.driver.update_timeouts(times).await.unwrap();
    }

    pub(crate) async fn open(&self, path: &str) {
        let url = format!("{}{path}", self.base);
        self.driver.goto(&url).await.unwrap();
    }

    /// What a script returns.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.driver.execute(script, Vec::new()).await.unwrap()
    }

    async fn text(&self) -> Result<String, CmdError> {
        // As it is shown, without what is hidden.
        let text = self
            .driver
            .execute("return document.body.innerText", Vec::new())
            .await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
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
            let found = self.driver.find(Locator::XPath(&xpath)).await;
            match found {
                Ok(found) => found.click().await.is_ok(),
                Err(_) => false,
            }
        };
        eventually(&format!("{text} can be clicked"), click).await;
    }

    pub(crate) async fn write(&self, field: &str, text: &str) {
        let field = self
            .driver
            .find(Locator::Css(&format!("[name={field}]")))
            .await
            .unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// What the page has asked of the browser in vain, and errors of scripts.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = DriverCommand("se/log", json!({"type": "browser"}));
        let log = self.driver.issue_cmd(log).await.unwrap();
        log.as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// As if the person prefers these colours, on a screen of this size.
    pub(crate) async fn prefers(&self, colours: &str, width: u32, height: u32) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        for (command, parameters) in [
            ("Emulation.setEmulatedMedia", features),
            ("Emulation.setDeviceMetricsOverride", size),
        ] {
            let parameters = json!({"cmd": command, "params": parameters});
            let command = DriverCommand("goog/cdp/execute", parameters);
            self.driver.issue_cmd(command).await.unwrap();
        }
    }

    pub(crate) async fn close(self) {
        self.driver.close().await.unwrap();
    }
}
