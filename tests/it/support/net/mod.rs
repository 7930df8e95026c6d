//! Lines and ports between gateways and servers.

pub mod far; // a server that is far away
pub mod line; // a line to a server that can be cut
pub mod ports; // ports for servers that are killed
