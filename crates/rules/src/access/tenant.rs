//! Tenants with a meaning of their own.

/// The tenant of the compensations that a reconciliation makes.
///
/// No token has this tenant, so only administrators read its calls.
pub const RESERVED_TENANT: &str = "oncegate";
