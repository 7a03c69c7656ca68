//! `#[job]`: a function that runs on one of many machines in each round.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Ident, Result};

use crate::duration::{AT_LEAST_FOR, LEASE, MAX_HOLD, durations, within};
use crate::function::Function;
use crate::locked::name_of_lock;
use crate::options::Options;

pub(crate) const OPTIONS: &[&str] = &[
    "name",
    "at_least_for",
    "at_most_for",
    "ttl",
    "client",
    "guard",
];

pub(crate) fn expand(mut options: Options, function: Function) -> Result<TokenStream> {
    let name = name_of_lock(&mut options, &function, "send-reminders")?;
    // Without it, a machine whose clock is late would run a short job once more.
    let at_least_for = options.needed_text("at_least_for", "50s")?;
    let at_least_for = within("at_least_for", &at_least_for, &AT_LEAST_FOR)?;
    let mut settings = quote!(.at_least_for(#at_least_for));
    settings.extend(durations(
        &mut options,
        &[("at_most_for", MAX_HOLD), ("ttl", LEASE)],
    )?);
    let client = function.client(&mut options)?.expression();
    let guard = options.variable("guard")?;
    let guard = guard.unwrap_or_else(|| Ident::new("held", Span::call_site()));

    let name = name.expression();
    let work = function.work(&guard, &quote!(::rowlock::Held));
    Ok(function.with(&quote! {
        ::rowlock_recipes::Job::new(&#client, #name) #settings
            .run(#work)
            .await
            .map(|ran| ran.here().unwrap_or_default())
    }))
}
