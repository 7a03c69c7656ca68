//! The console in a browser (Chromium, by WebDriver): what a person sees and clicks.
//!
//! `docker/servers.sh` fetches the browser with its driver, and axe-core, which checks whether pages are accessible.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod accessible;
mod commands;
mod flows;
mod hostile;
mod images;
mod layout;
mod window;
