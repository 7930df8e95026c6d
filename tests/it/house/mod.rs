//! How the code is laid out and written.

pub mod files; // no circles, no long files
pub mod rooms; // which room may know which
pub mod words; // words that texts and comments must not use
