//! The documentation shows what an attribute becomes: it has to be that.

use quote::ToTokens as _;
use syn::{ItemFn, parse_str};

use super::{Expand, expanded, idempotent, job, locked};

/// The functions of the page that have this name: with the attribute, and what it becomes.
fn functions(page: &str, name: &str) -> Vec<ItemFn> {
    let mut found = Vec::new();
    for block in page.split("```").skip(1).step_by(2) {
        let start = block.find(&format!("async fn {name}(")).unwrap();
        let start = block[..start]
            .rfind("#[")
            .filter(|_| found.is_empty())
            .unwrap_or(start);
        let end = block[start..].find("\n}\n").unwrap() + "\n}\n".len();
        found.push(parse_str(&block[start..start + end]).unwrap());
    }
    found
}

fn assert_shown(page: &str, name: &str, known: &[&str], expand: Expand) {
    let Ok([mut with, becomes]) = <[ItemFn; 2]>::try_from(functions(page, name)) else {
        panic!("{name}: its page has a block with the attribute, and one without");
    };
    let attribute = with.attrs.remove(0);
    let options = attribute.meta.require_list().unwrap().tokens.clone();
    let expanded = expanded("it", known, expand, options, with.into_token_stream());
    let becomes = becomes.into_token_stream();
    assert_eq!(expanded.unwrap().to_string(), becomes.to_string());
}

#[test]
fn the_pages_show_what_the_attributes_become() {
    let page = include_str!("../docs/locked.md");
    assert_shown(page, "sell", locked::OPTIONS, locked::expand);
    let page = include_str!("../docs/idempotent.md");
    assert_shown(page, "pay", idempotent::OPTIONS, idempotent::expand);
    let page = include_str!("../docs/job.md");
    assert_shown(page, "remind", job::OPTIONS, job::expand);
}
