//! Web sessions in a cluster: two servers behind one address, and a user with two browser tabs.
//!
//! The cart is in the session, and the session is a row in the database (tower-sessions, [`store`]). Each request
//! loads the session, changes the cart, and saves the session. Two tabs that add an item at the same time load the
//! same cart, and the later save overwrites the earlier one. An item is lost, although its request was acknowledged.
//! No server can prevent that alone, because the tabs may reach different servers.
//!
//! So a small layer ([`session_lock`]) takes a lock with the session's name, and keeps it over load, handler and save.
//! The program runs three modes, and counts the lost items:
//!
//! | mode | |
//! | --- | --- |
//! | `none` | no lock: loses items |
//! | `lease` | a lease around load, handler and save |
//! | `pinned` | a lease too, and the save commits only if it is still held |
//!
//! # Promise
//!
//! - The requests that change one session pass one after the other, in the order in which they asked, on all servers.
//! - `lease`: no acknowledged change is lost while no server is paused for longer than the TTL.
//! - `pinned`: no acknowledged change is lost, whether a server is paused, cut off or killed. (But see the limit of
//!   [`rotate`].)
//! - A server that crashes keeps a session for the TTL at most. A change that was acknowledged is in the database.
//! - A request that cannot have the lock in time is answered with 503 and `Retry-After`, and has changed nothing.
//!
//! # The catch
//!
//! - *The lock costs* a statement before the load, which acquires, and one after the answer, which releases. The pin
//!   costs a transaction around the save. `--tabs 1 --think-ms 0` shows the price alone, for a session that has
//!   nothing to wait for.
//! - *Only requests of one session wait for each other*, but they do: a page that sends ten requests at once gets the
//!   answers one by one. Leave out the layer for routes that only read the session, as `/cart` here. Such a route must
//!   not change the session, and tower-sessions' `with_always_save` makes every request a change. The store refuses
//!   such a save when it pins.
//! - *A paused server* (a stopped process, a moved virtual machine) may wake up in the middle of its save, when
//!   another server has had the session for a while. It saves what it loaded long ago. In the mode `lease` that
//!   overwrites acknowledged changes. A lease alone cannot close this hole, because no check before the save stays
//!   true until the save. The [pin](rowlock::Held::pin) is in the transaction of the save, and both commit together,
//!   or neither does. That needs sessions and locks in one database.
//! - *An answer can be lost*: a server may crash after the save. A client that repeats the request adds the item
//!   twice, lock or not. An idempotency key makes a repeated request safe (`rowlock-http`).
//! - *The lock is for the session*. Two sessions of one user do not wait for each other. What belongs to the user and
//!   not to the browser has its own name.
//!
//! [`session_lock`] has the cases one by one: no cookie, a client that hangs up, a lost lease. [`rotate`] has the
//! login.
//!
//! # The store
//!
//! The well-kept store for tower-sessions is `tower-sessions-sqlx-store`. This example has its own one, because
//! version 0.15 of that store
//!
//! - is made for sqlx 0.8, and a pin needs a transaction of rowlock's sqlx, 0.9;
//! - brings SQLite 3.46 into the program, even with its feature `postgres` alone. A program links one SQLite, and
//!   rowlock refuses one before 3.51.3;
//! - saves by inserting or updating, so a late save brings back a session that a logout has ended;
//! - belongs to tower-sessions 0.14 (`tower-sessions-core` 0.14). This example has 0.15, which is made for axum 0.8 as
//!   well.
//!
//! The trait has four methods.

pub mod rotate;
pub mod session_lock;
pub mod store;
