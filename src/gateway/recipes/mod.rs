//! The recipes by which keys are made. Those of this gateway are written down before it serves by them, and those
//! of every other gateway are read after that: of two gateways that share a store at least one knows both, so
//! that their claims of one call meet. The rules are in `core::recipe`.

mod forget; // those by which no kept call was made
mod known; // what a gateway knows of them
mod learn; // written down, and read

pub(super) use self::known::{Recipes, recipes_of};
pub use self::learn::Error;
