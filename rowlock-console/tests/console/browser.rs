//! A browser without a script: it keeps cookies, reads pages and sends forms.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use reqwest::header::{COOKIE, HeaderMap, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder};
use scraper::{ElementRef, Html, Node, Selector};

const BLOCKS: [&str; 11] = [
    "dd", "div", "dt", "h2", "h3", "li", "p", "section", "svg", "td", "th",
];

#[derive(Debug, Clone)]
pub(crate) struct Browser {
    pub(crate) address: SocketAddr,
    client: Client,
    pub(crate) cookies: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) html: String,
}

/// A form: where it goes, and its fields.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    pub(crate) action: String,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Browser {
    pub(crate) fn at(address: SocketAddr) -> Self {
        let client = Client::builder().no_proxy().redirect(Policy::none());
        Self {
            address,
            client: client.build().unwrap(),
            cookies: BTreeMap::new(),
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let request = self.client.request(method, url);
        if cookies.is_empty() {
            return request;
        }
        request.header(COOKIE, cookies.join("; "))
    }

    /// Sends a request, and keeps the cookies of the answer.
    pub(crate) async fn send(&mut self, request: RequestBuilder) -> Page {
        let response = request.send().await.unwrap();
        for cookie in response.headers().get_all(SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            let (pair, rest) = cookie.split_once(';').unwrap();
            for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
                assert!(rest.contains(part), "{cookie}");
            }
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.insert(name.into(), value.into());
        }
        Page {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            html: response.text().await.unwrap(),
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Page {
        let request = self.request(Method::GET, path);
        self.send(request).await
    }

    /// Forgets who it is.
    pub(crate) fn log_out(&mut self) {
        let before = self.cookies.len();
        self.cookies
            .retain(|name, _| !name.starts_with("rowlock_console_login_"));
        assert!(self.cookies.len() < before, "it was logged in");
    }

    /// The page is there.
    pub(crate) async fn open(&mut self, path: &str) -> Page {
        let page = self.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.html);
        page
    }

    pub(crate) async fn submit(&mut self, form: &Form) -> Page {
        let request = self.posting(form);
        self.send(request).await
    }

    pub(crate) fn posting(&self, form: &Form) -> RequestBuilder {
        let request = self.request(Method::POST, &form.action);
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(encoded(&form.fields))
    }

    /// Follows a redirect.
    pub(crate) async fn follow(&mut self, page: &Page) -> Page {
        assert_eq!(page.status, 303, "{}", page.html);
        let to = page.headers[LOCATION].to_str().unwrap().to_owned();
        self.open(&to).await
    }
}

pub(crate) fn encoded(fields: &BTreeMap<String, String>) -> String {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(fields);
    body.finish()
}

impl Page {
    /// The text of each element that a selector finds, with single spaces.
    pub(crate) fn texts(&self, selector: &str) -> Vec<String> {
        let html = Html::parse_document(&self.html);
        html.select(&select(selector)).map(text_of).collect()
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        self.texts(selector).join(" | ")
    }

    /// The values of an attribute.
    pub(crate) fn values(&self, selector: &str, attribute: &str) -> Vec<String> {
        let (html, selector) = (Html::parse_document(&self.html), select(selector));
        let found = html.select(&selector);
        let values = found.filter_map(|element| element.value().attr(attribute));
        values.map(str::to_owned).collect()
    }

    /// The address of the link with this text.
    pub(crate) fn link(&self, text: &str) -> String {
        let (html, selector) = (Html::parse_document(&self.html), select("a"));
        let mut links = html.select(&selector);
        let link = links.find(|link| text_of(*link) == text);
        let link = link.unwrap_or_else(|| panic!("no link {text}: {}", self.html));
        link.value().attr("href").unwrap().to_owned()
    }

    /// The form that changes something.
    pub(crate) fn form(&self) -> Form {
        let html = Html::parse_document(&self.html);
        let form = html.select(&select("form[method=post]")).next();
        let form = form.unwrap_or_else(|| panic!("no form: {}", self.html));
        let mut fields = BTreeMap::new();
        for input in form.select(&select("input, textarea, button[name]")) {
            let value = input.value();
            let is_choice = matches!(value.attr("type"), Some("radio" | "checkbox"));
            if is_choice && value.attr("checked").is_none() {
                continue;
            }
            let text = || input.text().collect::<String>();
            let given = value.attr("value").map_or_else(text, str::to_owned);
            fields.insert(value.attr("name").unwrap().to_owned(), given);
        }
        let action = form.value().attr("action").unwrap().to_owned();
        Form { action, fields }
    }

    #[track_caller]
    pub(crate) fn says(&self, status: u16, what: &str) {
        assert_eq!(self.status, status, "{}", self.html);
        let text = self.text("main");
        assert!(text.contains(what), "{what}: {text}");
    }
}

impl Form {
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut form = self.clone();
        form.fields.insert(name.into(), value.into());
        form
    }
}

fn select(selector: &str) -> Selector {
    Selector::parse(selector).unwrap()
}

/// With a space between two blocks.
fn text_of(element: ElementRef<'_>) -> String {
    let mut text = String::new();
    for node in element.descendants() {
        match node.value() {
            Node::Text(part) => text.push_str(part),
            Node::Element(part) if BLOCKS.contains(&part.name()) => text.push(' '),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
