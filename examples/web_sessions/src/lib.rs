//! Web sessions in a cluster: two servers behind one address, and a user with two browser tabs.
//!
//! The cart is in the session, and the session is a row in the database (tower-sessions, [`store`]). Each request loads the session, changes the
//! cart, and saves the session. Two tabs that add an item at the same time load the same cart, and the later save overwrites the earlier
//! one. An item is lost, although its request was acknowledged. No server can prevent that alone, because the tabs may reach different servers.
//!
//! So a small layer ([`session_lock`]) takes a lock with the session's name, and keeps it over load, handler and save. The program runs three
//! modes, and counts the lost items:
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
//! - `pinned`: no acknowledged change is lost, whatever the servers do.
//! - A server that crashes keeps a session for the TTL at most. A change that was acknowledged is in the database.
//! - A request that cannot have the lock in time is answered with 503 and `Retry-After`, and has changed nothing.
//!
//! # The catch
//!
//! - *The lock costs* two statements more for each request, which acquire and release; with the pin also a transaction around the save. A request with
//!   nothing to wait for takes about twice as long in this example. rowlock sends the release in the background, after the answer.
//! - *Only requests of one session wait for each other*, but they do: a page that sends ten requests at once gets the answers one by one. Leave out the
//!   layer for routes that only read the session, as `/cart` here. Such a route must not change the session, and
//!   tower-sessions' `with_always_save` makes every request a change. The store refuses such a save when it pins.
//! - *A paused server* (a stopped process, a moved virtual machine) may wake up in the middle of its save, when another server has had the session
//!   for a while. It saves what it loaded long ago. In the mode `lease` that overwrites acknowledged changes. A lease alone cannot close this hole, because no check
//!   before the save stays true until the save. The [pin](rowlock::Held::pin) is in the transaction of the save, and both commit together, or
//!   neither does. That needs sessions and locks in one database.
//! - *An answer can be lost*: a server may crash after the save. A client that repeats the request adds the item twice, lock or not.
//!   An idempotency key makes a repeated request safe (`rowlock-http`).
//! - *The lock is for the session*. Two sessions of one user do not wait for each other. What belongs to the user and not to the browser has its own name.
//!
//! [`session_lock`] has the cases one by one: no cookie, a client that hangs up, a lost lease. [`rotate`] has the login.
//!
//! # The store
//!
//! `tower-sessions-sqlx-store` 0.15 is the well-kept store for tower-sessions. This example has its own one, for two reasons. That store is made for sqlx 0.8,
//! and a pin needs a transaction of sqlx 0.9, rowlock's own. And both versions of sqlx would have to share one SQLite, an older one than rowlock needs.
//! (It also belongs to tower-sessions 0.14, and this is 0.15.) The trait has four methods.

pub mod rotate;
pub mod session_lock;
pub mod store;
