//! `#[locked]`: a function that holds a lock while it runs.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, Ident, Result};

use crate::duration::{LEASE, MAX_HOLD, WAIT, durations};
use crate::function::Function;
use crate::options::Options;
use crate::template::Template;

pub(crate) const OPTIONS: &[&str] = &["name", "ttl", "wait", "max_hold", "client", "guard"];

/// The option `name`.
pub(crate) fn name_of_lock(
    options: &mut Options,
    function: &Function,
    example: &str,
) -> Result<Template> {
    let name = options.needed_text("name", example)?;
    let name = Template::parse("name", &name, function)?;
    if name.contains('\0') {
        let message = "`name` contains a NUL character, which no lock may have in its name";
        return Err(Error::new(name.span(), message));
    }
    Ok(name)
}

pub(crate) fn expand(mut options: Options, function: Function) -> Result<TokenStream> {
    let name = name_of_lock(&mut options, &function, "stock:{id}")?;
    let all = [("ttl", LEASE), ("wait", WAIT), ("max_hold", MAX_HOLD)];
    let settings = durations(&mut options, &all)?;
    let client = function.client(&mut options)?.expression();
    let guard = options.variable("guard")?;
    let guard = guard.unwrap_or_else(|| Ident::new("held", Span::call_site()));

    let name = name.expression();
    let work = function.work(&guard, &quote!(::rowlock::Held));
    Ok(function.with(&quote! {
        ::rowlock::attributes::while_locked(&#client.lock(#name) #settings, #work,).await?
    }))
}
