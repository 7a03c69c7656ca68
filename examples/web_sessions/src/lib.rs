//! wip
pub mod rotate;
pub mod session_lock;
pub mod store;
