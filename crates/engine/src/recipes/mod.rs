//! The recipes by which keys are made.
//!
//! A gateway writes its own recipes before it uses them, and reads all others after that. So of two gateways that share a
//! store at least one knows both recipes, and two claims of one call find each other. The rules are in `core::recipe`.

mod forget; // forgets recipes of which no call is kept
mod known; // the recipes that this gateway knows
mod learn; // writes this gateway's recipes, and reads those of others

pub(super) use self::known::{Recipes, recipes_of};
pub use self::learn::Error;
