//! `#[idempotent]`: a function that runs once for a key.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Error, Ident, Result};

use crate::duration::{LEASE, REMEMBER_EXPIRED, RETENTION, WAIT, within};
use crate::function::Function;
use crate::options::Options;
use crate::template::Template;

pub(crate) const OPTIONS: &[&str] = &[
    "scope",
    "key",
    "lease",
    "retention",
    "remember_expired",
    "wait",
    "skip",
    "client",
    "guard",
];

/// The prefix of the scopes of HTTP clients, which rowlock refuses here.
const HTTP: &str = "http:";

pub(crate) fn expand(mut options: Options, function: Function) -> Result<TokenStream> {
    let scope = options.needed_text("scope", "{user}")?;
    let scope = Template::parse("scope", &scope, &function)?;
    if scope.starts_with(HTTP) {
        let message = "`scope` begins with `http:`, which is for scopes of the HTTP layer: put a prefix before it";
        return Err(Error::new(scope.span(), message));
    }
    let key = options.needed_text("key", "pay:{order.number}")?;
    let key = Template::parse("key", &key, &function)?;
    let mut settings = TokenStream::new();
    for (setting, bounds) in [
        ("lease", LEASE),
        ("retention", RETENTION),
        ("remember_expired", REMEMBER_EXPIRED),
        ("wait", WAIT),
    ] {
        if let Some(text) = options.text(setting)? {
            let duration = within(setting, &text, &bounds)?;
            let setting = Ident::new(setting, Span::call_site());
            settings.extend(quote!(.#setting(#duration)));
        }
    }
    let client = function.client(&mut options)?;
    let skip = options.list("skip")?;
    let mut arguments = TokenStream::new();
    for argument in function.arguments(&client, &skip)? {
        let argument = &argument.ident;
        let name = argument.to_string();
        // What cannot be JSON is reported at the argument.
        arguments.extend(quote_spanned!(argument.span()=> .argument(#name, &#argument)?));
    }
    let guard = options.variable("guard")?;
    let guard = guard.unwrap_or_else(|| Ident::new("attempt", Span::call_site()));

    let (client, scope, key) = (client.expression(), scope.expression(), key.expression());
    let path = format!("::{}", function.item.sig.ident);
    let path = quote!(::std::concat!(::std::module_path!(), #path));
    let mut call = quote!(::rowlock::attributes::Call::here(#path, { fn here() {} here }));
    if function.is_of_self() {
        call.extend(quote!(.method_of::<Self>()));
    }
    let work = function.work(&guard, &quote!(::rowlock::IdempotencyGuard));
    Ok(function.with(&quote! {
        ::rowlock::attributes::once(
            &#client.idempotency() #settings,
            ::rowlock::Scope(#scope).key(#key),
            #call #arguments.finish(),
            #work,
        )
        .await
    }))
}
