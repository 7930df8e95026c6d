//! Values that several features share.

pub mod json; // strict JSON and its canonical form (RFC 8785)
pub mod redact; // what is never kept, or never shown
pub mod trace; // the trace of a call, and its span in it
pub mod words; // enumerations with one word for each value
