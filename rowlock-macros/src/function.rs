//! The function that an attribute is on: its arguments, its client, its result.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::spanned::Spanned as _;
use syn::visit_mut::{VisitMut, visit_type_mut};
use syn::{
    Error, Expr, FnArg, Ident, ItemFn, Pat, PatIdent, PatType, Result, ReturnType, Stmt, Type,
    parse_quote, parse2,
};

use crate::options::{Options, quoted};

/// The name of the argument, and of the field of `self`, that is the client if no option says otherwise.
const CLIENT: &str = "rowlock";

pub(crate) struct Function {
    pub(crate) item: ItemFn,
    attribute: &'static str,
    /// The variables that the arguments bind, without `self`.
    variables: Vec<Ident>,
    receiver: Option<Ident>,
}

impl Function {
    /// Refuses all but async functions that return a `Result`.
    pub(crate) fn parse(attribute: &'static str, item: TokenStream) -> Result<Self> {
        let item: ItemFn = parse2(item).map_err(|error| {
            let message =
                format!("`#[{attribute}]` is for async functions and methods that have a body");
            Error::new(error.span(), message)
        })?;
        let sig = &item.sig;
        let name = &sig.ident;
        if sig.asyncness.is_none() {
            let message =
                format!("`#[{attribute}]` needs an async function: write `async fn {name}`");
            return Err(Error::new(sig.fn_token.span(), message));
        }
        let needs_result = |span| {
            let message = format!(
                "`#[{attribute}]` needs a function that returns a `Result`: it can fail before `{name}` begins. (The name of an alias must end with `Result`.)"
            );
            Err(Error::new(span, message))
        };
        match &sig.output {
            ReturnType::Default => return needs_result(name.span()),
            ReturnType::Type(_, ty) if !is_result(ty) => return needs_result(ty.span()),
            ReturnType::Type(..) => {}
        }
        let mut bound = Bound(Vec::new());
        let mut receiver = None;
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(this) => {
                    receiver = Some(Ident::new("self", this.self_token.span));
                }
                FnArg::Typed(argument) => bound.visit_pat_mut(&mut argument.pat.clone()),
            }
        }
        Ok(Self {
            attribute,
            variables: bound.0,
            receiver,
            item,
        })
    }

    /// The variable of this name: an argument or `self`.
    pub(crate) fn argument(&self, name: &str) -> Option<&Ident> {
        let mut all = self.variables.iter().chain(&self.receiver);
        all.find(|variable| **variable == name)
    }

    /// The arguments, for a message.
    pub(crate) fn known(&self) -> String {
        let name = &self.item.sig.ident;
        let all: Vec<&Ident> = self.receiver.iter().chain(&self.variables).collect();
        if all.is_empty() {
            return format!("`{name}` has no arguments");
        }
        format!("the arguments of `{name}` are {}", quoted(&all))
    }

    /// The client: the option `client`, or the argument `rowlock`, or the field `rowlock` of `self`.
    pub(crate) fn client(&self, options: &mut Options) -> Result<Client> {
        if let Some(client) = options.expression("client")? {
            return Ok(Client::Given(client));
        }
        if let Some(argument) = self.variables.iter().find(|argument| **argument == CLIENT) {
            return Ok(Client::Argument(argument.clone()));
        }
        if let Some(this) = &self.receiver {
            return Ok(Client::Given(parse_quote!(#this.rowlock)));
        }
        let (attribute, name) = (self.attribute, &self.item.sig.ident);
        let message = format!(
            "`#[{attribute}]` finds no client: give `{name}` an argument `rowlock: &Rowlock`, or say where the client is: `#[{attribute}(client = …)]`"
        );
        Err(Error::new(Span::call_site(), message))
    }

    /// The arguments whose values make a call, as variables: all but the client and those of `skip`.
    pub(crate) fn arguments(&self, client: &Client, skip: &[Ident]) -> Result<Vec<&PatIdent>> {
        if let Some(unknown) = skip.iter().find(|skip| !self.variables.contains(skip)) {
            let message = format!("`{unknown}` is no argument to skip: {}", self.known());
            return Err(Error::new(unknown.span(), message));
        }
        let mut arguments = Vec::new();
        for input in &self.item.sig.inputs {
            let FnArg::Typed(PatType { pat, .. }) = input else {
                continue;
            };
            match &**pat {
                Pat::Ident(argument) if argument.subpat.is_none() => {
                    if !client.is(&argument.ident) && !skip.contains(&argument.ident) {
                        arguments.push(argument);
                    }
                }
                other => {
                    let message = format!(
                        "`#[{}]` compares all arguments of a call, and this one has no name: give it one, and take it apart in the body",
                        self.attribute
                    );
                    return Err(Error::new_spanned(other, message));
                }
            }
        }
        Ok(arguments)
    }

    /// The body as a closure that gets the guard of type `ty` as `guard`, and returns what the function returns.
    pub(crate) fn work(&self, guard: &Ident, ty: &TokenStream) -> TokenStream {
        let body = &self.item.block.stmts;
        let mut output = match &self.item.sig.output {
            ReturnType::Type(_, output) => output.clone(),
            ReturnType::Default => parse_quote!(()),
        };
        // A closure cannot return `impl Trait`, but its type can be inferred.
        Opaque.visit_type_mut(&mut output);
        quote!(async move |#guard: &#ty| -> #output { #(#body)* })
    }

    /// Whether it is plain that the function belongs to a type: it has a `self`, or speaks of `Self`.
    pub(crate) fn is_of_self(&self) -> bool {
        let mut speaks = SpeaksOfSelf(false);
        speaks.visit_signature_mut(&mut self.item.sig.clone());
        self.receiver.is_some() || speaks.0
    }

    /// The function with another body.
    pub(crate) fn with(mut self, body: &TokenStream) -> TokenStream {
        let body = Stmt::Expr(Expr::Verbatim(body.clone()), None);
        self.item.block.stmts = vec![body];
        self.item.into_token_stream()
    }
}

/// Where the client comes from.
pub(crate) enum Client {
    Given(Expr),
    Argument(Ident),
}

impl Client {
    fn is(&self, argument: &Ident) -> bool {
        match self {
            Self::Argument(client) => client == argument,
            Self::Given(Expr::Path(client)) => client.path.is_ident(argument),
            Self::Given(_) => false,
        }
    }

    /// An expression that a method can be called on.
    pub(crate) fn expression(&self) -> TokenStream {
        match self {
            Self::Argument(client) => quote!(#client),
            Self::Given(
                client @ (Expr::Path(_)
                | Expr::Field(_)
                | Expr::Call(_)
                | Expr::MethodCall(_)
                | Expr::Paren(_)),
            ) => quote!(#client),
            Self::Given(client) => quote!((#client)),
        }
    }
}

fn is_result(ty: &Type) -> bool {
    let Type::Path(ty) = ty else {
        return false;
    };
    let last = ty.path.segments.last();
    last.is_some_and(|last| last.ident.to_string().ends_with("Result"))
}

/// The variables of a pattern.
struct Bound(Vec<Ident>);

impl VisitMut for Bound {
    fn visit_pat_ident_mut(&mut self, variable: &mut PatIdent) {
        self.0.push(variable.ident.clone());
    }
}

struct SpeaksOfSelf(bool);

impl VisitMut for SpeaksOfSelf {
    fn visit_ident_mut(&mut self, ident: &mut Ident) {
        self.0 |= *ident == "Self";
    }
}

/// Replaces `impl Trait` with `_`.
struct Opaque;

impl VisitMut for Opaque {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_)) {
            *ty = parse_quote!(_);
        } else {
            visit_type_mut(self, ty);
        }
    }
}
