//! The attributes of [`rowlock`](https://docs.rs/rowlock): a function that holds a lock while it runs, a function that
//! runs once for a key, and a job that runs on one of many machines.
//!
//! Use the first two through rowlock, which re-exports them (feature `macros`, on by default), and `job` through
//! `rowlock-recipes`. The code that they generate calls `::rowlock` and `::rowlock_recipes`, so the crates must have
//! these names.

#[cfg(test)]
mod docs_tests;
mod duration;
mod function;
mod idempotent;
mod job;
mod locked;
mod options;
mod template;

use proc_macro::TokenStream;
use syn::Result;

use function::Function;
use options::Options;

#[doc = include_str!("../docs/locked.md")]
#[proc_macro_attribute]
pub fn locked(options: TokenStream, item: TokenStream) -> TokenStream {
    expand("locked", locked::OPTIONS, locked::expand, options, item)
}

#[doc = include_str!("../docs/idempotent.md")]
#[proc_macro_attribute]
pub fn idempotent(options: TokenStream, item: TokenStream) -> TokenStream {
    let known = idempotent::OPTIONS;
    expand("idempotent", known, idempotent::expand, options, item)
}

#[doc = include_str!("../docs/job.md")]
#[proc_macro_attribute]
pub fn job(options: TokenStream, item: TokenStream) -> TokenStream {
    expand("job", job::OPTIONS, job::expand, options, item)
}

type Expand = fn(Options, Function) -> Result<proc_macro2::TokenStream>;

/// Expands one attribute. After a mistake, the function stays as it is, so that the compiler reports nothing but the
/// mistake.
fn expand(
    attribute: &'static str,
    known: &[&str],
    expand: Expand,
    options: TokenStream,
    item: TokenStream,
) -> TokenStream {
    match expanded(
        attribute,
        known,
        expand,
        options.into(),
        item.clone().into(),
    ) {
        Ok(expanded) => expanded.into(),
        Err(mistake) => {
            let mut told = TokenStream::from(mistake.into_compile_error());
            told.extend(item);
            told
        }
    }
}

fn expanded(
    attribute: &'static str,
    known: &[&str],
    expand: Expand,
    options: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> Result<proc_macro2::TokenStream> {
    let options = Options::parse(attribute, known, options)?;
    expand(options, Function::parse(attribute, item)?)
}
