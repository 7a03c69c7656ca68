//! The options of an attribute: `name = "…"`, `skip(…)`, each at most once.

use proc_macro2::{Span, TokenStream};
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::punctuated::Punctuated;
use syn::token::Paren;
use syn::{Error, Expr, ExprLit, ExprPath, Ident, Lit, LitStr, Result, Token, parenthesized};

pub(crate) struct Options {
    attribute: &'static str,
    given: Vec<Given>,
}

struct Given {
    option: Ident,
    value: Value,
}

enum Value {
    /// `option = value`.
    Is(Expr),
    /// `option(one, another)`.
    List(Punctuated<Ident, Token![,]>),
}

impl Parse for Given {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let option: Ident = input.parse().map_err(|error| {
            let message = "an option has a name and a value: `option = …`";
            Error::new(error.span(), message)
        })?;
        let value = if input.peek(Paren) {
            let list;
            parenthesized!(list in input);
            Value::List(Punctuated::parse_terminated(&list)?)
        } else if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            Value::Is(input.parse()?)
        } else {
            let message = format!("the option `{option}` needs a value: `{option} = …`");
            return Err(Error::new(option.span(), message));
        };
        Ok(Self { option, value })
    }
}

impl Options {
    /// Refuses options that are not `known` to the attribute, and options that are given twice.
    pub(crate) fn parse(
        attribute: &'static str,
        known: &[&str],
        options: TokenStream,
    ) -> Result<Self> {
        let given = Punctuated::<Given, Token![,]>::parse_terminated.parse2(options)?;
        let given: Vec<Given> = given.into_iter().collect();
        for (index, Given { option, .. }) in given.iter().enumerate() {
            if !known.contains(&&*option.to_string()) {
                let known = quoted(known);
                let message =
                    format!("`{attribute}` has no option `{option}`; its options are {known}");
                return Err(Error::new(option.span(), message));
            }
            if given[..index].iter().any(|before| before.option == *option) {
                let message = format!("the option `{option}` is given twice: remove one of them");
                return Err(Error::new(option.span(), message));
            }
        }
        Ok(Self { attribute, given })
    }

    fn take(&mut self, option: &str) -> Option<Given> {
        let found = self.given.iter().position(|given| given.option == option)?;
        Some(self.given.swap_remove(found))
    }

    /// The value of `option = value`.
    pub(crate) fn expression(&mut self, option: &str) -> Result<Option<Expr>> {
        match self.take(option) {
            None => Ok(None),
            Some(Given {
                value: Value::Is(value),
                ..
            }) => Ok(Some(value)),
            Some(given) => {
                let message = format!("the option `{option}` has one value: `{option} = …`");
                Err(Error::new(given.option.span(), message))
            }
        }
    }

    /// The value of `option = "text"`.
    pub(crate) fn text(&mut self, option: &str) -> Result<Option<LitStr>> {
        match self.expression(option)? {
            None => Ok(None),
            Some(Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            })) => Ok(Some(text)),
            Some(other) => {
                let message = format!("the option `{option}` is a string: `{option} = \"…\"`");
                Err(Error::new_spanned(other, message))
            }
        }
    }

    /// The value of `option = "text"`, which must be there.
    pub(crate) fn needed_text(&mut self, option: &str, example: &str) -> Result<LitStr> {
        let attribute = self.attribute;
        self.text(option)?.ok_or_else(|| {
            let message = format!(
                "`{attribute}` needs the option `{option}`: `#[{attribute}({option} = \"{example}\", …)]`"
            );
            Error::new(Span::call_site(), message)
        })
    }

    /// The value of `option = variable`.
    pub(crate) fn variable(&mut self, option: &str) -> Result<Option<Ident>> {
        let Some(value) = self.expression(option)? else {
            return Ok(None);
        };
        if let Expr::Path(ExprPath { path, .. }) = &value
            && let Some(variable) = path.get_ident()
        {
            return Ok(Some(variable.clone()));
        }
        let message = format!("the option `{option}` is the name of a variable");
        Err(Error::new_spanned(value, message))
    }

    /// The values of `option(one, another)`, each at most once.
    pub(crate) fn list(&mut self, option: &str) -> Result<Vec<Ident>> {
        let Some(given) = self.take(option) else {
            return Ok(Vec::new());
        };
        let Value::List(list) = given.value else {
            let message = format!("the option `{option}` is a list: `{option}(one, another)`");
            return Err(Error::new(given.option.span(), message));
        };
        let list: Vec<Ident> = list.into_iter().collect();
        for (index, one) in list.iter().enumerate() {
            if list[..index].contains(one) {
                let message = format!("`{one}` is in the list twice: remove one of them");
                return Err(Error::new(one.span(), message));
            }
        }
        Ok(list)
    }
}

/// Names for a message: "`a`, `b`, `c`".
pub(crate) fn quoted(names: &[impl std::fmt::Display]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
