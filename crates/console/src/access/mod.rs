//! Who asks: an operator with a session, and forms that come from a page of this session.

pub(crate) mod context; // a request for a page: who asks, and the parts that pages share
pub(crate) mod form; // forms, and that they come from a page of this session
pub(crate) mod links; // links that sign in once
pub(crate) mod operator; // who is signed in
pub(crate) mod pass; // the rules: what a cookie is, and what a session holds
pub(crate) mod sign_in; // a token becomes a session
pub(crate) mod sign_ins; // the sessions of operators
