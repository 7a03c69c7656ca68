//! Time, tasks and retries: everything between a caller's future and a connection.
//!
//! # Overview
//!
//! A client ([`Core`]) owns two threads, each with a runtime of its own:
//!
//! - `rowlock-lanes` runs the [lanes](batch::lanes). Each lane has a connection, gathers the operations that arrive
//!   while its statement is in flight, and sends them as the next statement. A caller's future only awaits the answer.
//!   It never owns a statement, so dropping it cannot damage a connection. The delegates of [cohorts](wait::cohort)
//!   run there too, and what ends their offers and lingering leases. Each [slow operation](batch::slow), which may
//!   take long, gets a [spare connection](batch::spare) and a thread of its own.
//! - `rowlock-renew` [renews](held::renew) all leases that this client holds, and announces warnings and losses. It
//!   renews on a connection that it shares with looks (with `max_connections` 2, with the lane, too; on a file nobody
//!   [shares](batch::spare)). The lane of the looks at single rows runs there too, the [cleaner](upkeep::cleaner), and
//!   the tasks that find out whose turn in a [queue](wait::queue) it is.
//!
//! Neither thread runs code of the caller's: a runtime whose workers are all blocked loses no lease. Both threads end
//! when the last handle, guard and pending operation are gone.
//!
//! # Rooms
//!
//! A room uses only rooms that are listed before it:
//!
//! - [`base`]: threads, tasks, time, the metrics and the spans.
//! - [`batch`]: jobs, and the lanes that send them in batches. [`Lanes`](batch::handle::Lanes) is their handle.
//! - [`held`]: what this client holds: grants, their renewal, and the guards that end them.
//! - [`wait`]: who waits, in the database's queue or in this client.
//! - [`requests`]: what a caller asks for, request by request, with its undo.
//! - [`upkeep`]: the schema, the cleaner, and what a client remembers of rows, keys and pools.
//! - [`core`], [`start`], [`shutdown`]: a client as a whole.

pub(crate) mod base;
pub(crate) mod batch;
pub(crate) mod core;
pub(crate) mod held;
pub(crate) mod requests;
mod shutdown;
mod start;
pub(crate) mod upkeep;
pub(crate) mod wait;

pub(crate) use core::Core;
