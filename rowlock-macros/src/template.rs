//! Names as format strings: `"stock:{id}"`. A placeholder is an argument, or a path of fields from it.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Error, Ident, LitStr, Member, Result, parse_str};

use crate::function::Function;

/// The longest name, scope and key, in bytes.
const MAX_BYTES: usize = 255;

/// A name with its placeholders filled in by the arguments of a function.
pub(crate) struct Template {
    /// The fixed text before each value, and after the last one.
    texts: Vec<String>,
    values: Vec<TokenStream>,
    span: Span,
}

impl Template {
    /// Parses the value of `option`. The compiler reports a mistake at the string.
    pub(crate) fn parse(option: &str, text: &LitStr, function: &Function) -> Result<Self> {
        let mistake = |message: String| Error::new(text.span(), message);
        let (mut texts, mut values) = (Vec::new(), Vec::new());
        let whole = text.value();
        let (mut fixed, mut rest) = (String::new(), whole.as_str());
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            fixed.push_str(before);
            if let Some(after) = brace.strip_prefix("{{") {
                fixed.push('{');
                rest = after;
            } else if let Some(after) = brace.strip_prefix("}}") {
                fixed.push('}');
                rest = after;
            } else if let Some(after) = brace.strip_prefix('{') {
                let Some((placeholder, after)) = after.split_once('}') else {
                    let message = format!(
                        "a `{{` in `{option}` has no `}}`; a brace in the name is written twice"
                    );
                    return Err(mistake(message));
                };
                values.push(value(placeholder, function, text.span()).map_err(mistake)?);
                texts.push(std::mem::take(&mut fixed));
                rest = after;
            } else {
                let message = format!(
                    "a `}}` in `{option}` has no `{{`; a brace in the name is written twice"
                );
                return Err(mistake(message));
            }
        }
        fixed.push_str(rest);
        texts.push(fixed);
        let bytes: usize = texts.iter().map(String::len).sum();
        if bytes == 0 && values.is_empty() {
            return Err(mistake(format!(
                "`{option}` is empty: 1 to 255 bytes are allowed"
            )));
        }
        if bytes > MAX_BYTES {
            let message = format!(
                "`{option}` has {bytes} bytes without its arguments: 1 to 255 bytes are allowed"
            );
            return Err(mistake(message));
        }
        Ok(Self {
            texts,
            values,
            span: text.span(),
        })
    }

    /// Whether a fixed text has this in it.
    pub(crate) fn contains(&self, what: char) -> bool {
        self.texts.iter().any(|text| text.contains(what))
    }

    /// Whether every name of this template begins so.
    pub(crate) fn starts_with(&self, start: &str) -> bool {
        self.texts[0].starts_with(start)
    }

    /// Where the string stands.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// The expression for the name.
    pub(crate) fn expression(&self) -> TokenStream {
        let values = &self.values;
        if values.is_empty() {
            let text = LitStr::new(&self.texts[0], self.span);
            return quote!(#text);
        }
        let texts = self.texts.iter();
        let texts: Vec<String> = texts
            .map(|text| text.replace('{', "{{").replace('}', "}}"))
            .collect();
        let format = LitStr::new(&texts.join("{}"), self.span);
        quote!(::std::format!(#format, #(#values),*))
    }
}

/// The expression for a placeholder.
fn value(
    placeholder: &str,
    function: &Function,
    span: Span,
) -> std::result::Result<TokenStream, String> {
    let mut parts = placeholder.split('.');
    let first = parts.next().unwrap_or_default();
    let Some(argument) = function.argument(first) else {
        let known = function.known();
        if parse_str::<Ident>(first).is_ok() || first == "self" {
            return Err(format!("`{{{placeholder}}}` names no argument: {known}"));
        }
        return Err(format!(
            "`{{{placeholder}}}` is no placeholder: write an argument, or a path of fields from it, such as `{{order.number}}`; {known}"
        ));
    };
    let mut fields = Vec::new();
    for field in parts {
        let Ok(field) = parse_str::<Member>(field) else {
            return Err(format!(
                "`{{{placeholder}}}` is no placeholder: after an argument come its fields only, without calls and formats, such as `{{order.number}}`"
            ));
        };
        fields.push(field);
    }
    // What cannot be a text is reported at the string.
    let mut argument = argument.clone();
    argument.set_span(argument.span().located_at(span));
    Ok(quote_spanned!(span=> #argument #(.#fields)*))
}
