//! Pages for the operator who is woken up.

pub mod acts; // acts on many, on anomalies, and asking a tool, as forms
pub mod approvals; // a call that waits for approval is decided on its page
pub mod forged; // nobody makes a session from what the store holds
pub mod large; // a large ledger: pages are bounded, and go on
pub mod live; // pages that stay current
pub mod pages; // pages for the operator who is woken up
pub mod shown; // what callers wrote is text on every page
