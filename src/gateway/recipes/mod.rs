//! The recipes by which keys are made.
//!
//! A gateway writes its own down before it uses them, and reads all others after that. So of two
//! gateways that share a store at least one knows both recipes, and their claims of one call meet.
//! The rules are in `core::recipe`.

mod forget; // those by which no kept call was made
mod known; // what a gateway knows of them
mod learn; // written down, and read

pub(super) use self::known::{Recipes, recipes_of};
pub use self::learn::Error;
