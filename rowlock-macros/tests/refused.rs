//! What the attributes refuse, with the compiler's message for each mistake. (What they accept is in rowlock's
//! contract tests, which run it.)
#![allow(missing_docs, reason = "tests are named, not documented")]

#[test]
fn each_mistake_is_told_where_it_stands() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/*.rs");
}
