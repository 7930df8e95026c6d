//! Calls by MCP, servers behind the gateway, and `oncegate wrap`.

pub mod calls; // calls by MCP
pub mod elicitation; // servers that ask before they execute
pub mod listen; // what clients are told of the tools
pub mod paths; // the paths of MCP, headers that repeat arguments, and results that not every client can read
pub mod patience; // clients that give up before a long call ends, and a gateway that is killed
pub mod payments; // calls that pay
pub mod progress; // what a server says of the progress of a call
pub mod reads; // reads that take longer than their clients wait
pub mod remote_tasks; // servers that answer a call with a task
pub mod server; // one MCP server as its clients see it
pub mod sessions; // what a server that has forgotten a session proves, and statuses that an operator declares
pub mod stdio; // MCP servers that are programs
pub mod tasks; // calls that a client asks for by their ids
pub mod texts; // what a model is told where there is no result
pub mod upstream; // tools of MCP servers
pub mod wire; // messages of MCP, good and bad
pub mod wrap; // one MCP server for one client, made safe to repeat
pub mod wrap_approve; // calls of a wrapped server that its user has to approve
pub mod wrap_kept; // where a wrapped server keeps its calls
