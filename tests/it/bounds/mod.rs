//! What attackers and crowds may take.

pub mod abuse; // clients and tools that attack
pub mod abuse_memory; // clients that take memory and give nothing
pub mod abuse_ops; // what the ops endpoints cost, and what they tell
pub mod abuse_store; // what others' calls cost, and a store that does not answer
pub mod admitted; // reads, forms and unauthenticated clients are admitted before they are read
pub mod attacked; // a gateway with a small budget, and clients that speak HTTP/2 wrongly
pub mod breaker; // tools that keep failing are left alone for a while
pub mod budgets; // how many calls may begin, and those that look alike
pub mod connections; // how many there may be, and how long they may be silent
pub mod crowds; // thousands of clients that want nothing, or all the same
pub mod giving_way; // how fast silent connections give way
pub mod limits; // how fast a token may be
pub mod open_tasks; // a client that lets each of its calls become a task
pub mod shares; // what tenants and tokens leave to each other
pub mod tls; // HTTPS by its own certificate
