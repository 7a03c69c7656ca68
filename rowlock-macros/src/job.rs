//! `#[job]`: a function that runs on one of many machines in each round.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Ident, Result};

use crate::duration::{AT_LEAST_FOR, LEASE, MAX_HOLD, durations, in_order, within};
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
    let least = options.needed_text("at_least_for", "50s")?;
    let at_least_for = within("at_least_for", &least, &AT_LEAST_FOR)?;
    let mut settings = quote!(.at_least_for(#at_least_for));
    if let Some(most) = options.text("at_most_for")? {
        in_order(("at_least_for", &least), ("at_most_for", &most))?;
        let at_most_for = within("at_most_for", &most, &MAX_HOLD)?;
        settings.extend(quote!(.at_most_for(#at_most_for)));
    }
    settings.extend(durations(&mut options, &[("ttl", LEASE)])?);
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
