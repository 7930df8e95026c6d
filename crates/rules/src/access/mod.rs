//! Who acts, and what they may do.

pub mod actor; // who acts, as entries say it
pub mod caller; // who is calling and what they may do
pub mod tenant; // tenants with a meaning of their own
