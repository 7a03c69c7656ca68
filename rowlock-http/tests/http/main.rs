//! The HTTP layer, over real sockets: each rule of the draft ("The Idempotency-Key HTTP Header Field",
//! draft-ietf-httpapi-idempotency-key-header-07) and of the layer's own documentation.
//!
//! | rule | tests |
//! | --- | --- |
//! | 2.1: the key is one String of RFC 8941 (with `strict`) | `keys::every_byte_in_a_string_is_judged_as_the_grammar_says`, `keys::what_is_no_string_is_refused`, `keys::parameters_mean_nothing`, `keys::two_lines_are_refused` |
//! | an unquoted key is the same record | `keys::a_bare_key_is_the_same_record`, `keys::what_is_half_a_string_is_refused` |
//! | 2.2: what the server asks of a key is checked before any look-up | `keys::a_key_that_is_not_accepted_is_refused_before_any_look_up` |
//! | 2.7: a missing key is 400, where one is required | `keys::a_missing_key_is_refused`, `keys::a_key_that_is_not_required_may_be_missing` |
//! | 1: POST and PATCH; other methods are left alone | `keys::other_methods_pass_untouched`, `keys::the_methods_can_be_chosen` |
//! | 2.6: a retry gets the result of the first, success or error | `replays::a_retry_gets_the_same_response`, `replays::a_refusal_of_the_handler_is_replayed`, `replays::what_is_kept_is_an_http_message` |
//! | headers of one session are not kept | `replays::a_cookie_is_never_kept`, `replays::only_listed_headers_are_kept` |
//! | 2.2: the key alone does not make a request; a body may be missing | `replays::two_keys_with_one_body_are_two_requests`, `replays::a_request_without_a_body_is_a_request` |
//! | 2.6: a retry while the first runs is 409 | `replays::a_request_in_flight_is_a_conflict`, `replays::a_duplicate_can_wait` |
//! | RFC 7240, 4.3: a duplicate prefers to wait for the first | `duplicates::*` |
//! | 2.7: the same key with another payload is 422 | `replays::another_payload_is_refused`, `replays::another_payload_is_refused_while_the_first_runs` |
//! | 2.4: the fingerprint | `replays::method_path_query_and_body_count`, `fingerprints::*` |
//! | 2.2: the server may find the key elsewhere: in the body of a webhook, for example | `keys_in_bodies::*` |
//! | 2.4: the whole path counts, also behind a router's prefix | `nested::*`, `other_axum::*` |
//! | 2.4: the host counts where that is set | `hosts::*` |
//! | 5: keys of two users are two records | `replays::a_key_is_somebodys`, `replays::who_is_nobody_is_refused` |
//! | 2.7: errors are problem documents with a link | every refusal, in `Answer::is_problem`; `replays::the_link_of_a_problem_can_be_set` |
//! | which responses are final | `failures::what_may_pass_frees_the_key`, `failures::what_is_final_can_be_set`, `failures::a_panic_frees_the_key`, `failures::failures_do_not_poison` |
//! | nothing was done: 401, 405, 407 | `not_applied::*` |
//! | server errors of which nobody knows what they have done | `failures::unknown_*` |
//! | 2.3: a key expires; and taken over, poisoned, damaged | `failures::*` |
//! | the database is out of reach | `failures::a_database_out_of_reach_is_503`, `failures::a_response_is_kept_when_the_database_is_back`, `failures::a_response_is_kept_also_when_the_lease_has_run_out_meanwhile` |
//! | the database is in quarantine | `failures::a_database_in_quarantine_is_503` |
//! | the work is done, and its response is not kept yet | `failures::*_does_not_free_a_key_whose_work_is_done`, `axum_alone::*`; on servers, `late_response` of the fault tests |
//! | hooks that panic | `hooks::*` |
//! | the principal by an extractor of axum | `extractors::*` |
//! | bodies over the limits | `bodies::*`, `axum_alone::*` |
//! | the response and the effect in one transaction; the attempt as an argument | `transactions::*`, `extract::*` |
//! | what a response means, by its body and by the handler; gRPC | `finality::*` |
//! | what is stored is redacted and sealed | `stored::*` |
//! | the client hangs up | `hang_up::*` |
//! | how long handlers run, and how many | `limits::*` |
//! | the server stops | `drain::*`, `axum_alone::*` |
//! | 2.5: the client chooses a key, and keeps it for its retries; 409 is sent again, 422 never | `clients::*` |
//!
//! The published scenarios of idempot-js (`idempotency.feature`) are all among these, but one: there, another key with
//! the same body is refused with 409, which is that library's own rule, and not the draft's.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod axum_alone;
mod bodies;
mod changes;
mod clients;
mod drain;
mod duplicates;
mod extract;
mod extractors;
mod failures;
mod finality;
mod fingerprints;
mod framework;
mod hang_up;
mod hooks;
mod hosts;
mod keys;
mod keys_in_bodies;
mod limits;
mod nested;
mod not_applied;
mod other_axum;
mod raw;
mod replays;
mod responses;
mod server;
mod shop;
mod stored;
mod transactions;
