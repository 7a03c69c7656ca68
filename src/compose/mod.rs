//! Recipes: what is built on locks and records. They use the public API of this crate only, as a program outside of it could.
//!
//! The cookbook (`docs/COOKBOOK.md`) says when to use which, and what each one does when its process is paused, killed or cut off.

pub mod stripes;
