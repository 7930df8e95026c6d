//! The way of a call. `engine` is its story, from top to bottom.

mod answer; // what a caller is told
mod approved; // an approved call begins
mod asked; // answers for callers that name a call by its id
mod attempt; // one dispatch and its evidence
mod claim; // claim the key, or find the call that holds it
mod duplicates; // counted, and written down a moment later
mod elicitations; // requests that answer what a server asked
mod engine; // the story of a call
mod internal; // calls that the gateway makes itself
mod large; // large requests are read off the workers
mod outgoing; // the request that an attempt sends
mod prepare; // request, tool and caller → a call with a key
mod prepared; // a request as it came, and as a call with a key
mod preview; // what a request would meet
mod queue; // wait for an exclusive session
mod reads; // each read is executed, and is a call of its own
mod refusal; // why a request begins nothing
mod result_memory; // memory for results, kept before their calls are claimed
mod run; // attempts until the rules say enough; settle
mod unconfirmed; // begins that the store never confirmed

pub use self::answer::{Answer, Stored};
pub use self::approved::BuiltRequest;
pub(crate) use self::approved::{ApprovedCalls, built, ended_waiting, is_as_approved};
pub use self::asked::{AskFor, Asked};
pub use self::attempt::Sender;
pub(super) use self::claim::Claimer;
pub(super) use self::duplicates::Duplicates;
pub(super) use self::duplicates::shared_run::SharedRuns;
pub use self::engine::Engine;
pub use self::internal::InternalCall;
pub(super) use self::large::LargeRequests;
pub use self::outgoing::{ToolRequest, probe_url};
pub use self::prepare::identify;
pub(super) use self::prepared::PreparedCall;
pub use self::prepared::{Answers, Patience, Proxied, Request};
pub use self::preview::{Preview, Would};
pub(super) use self::result_memory::ResultMemory;
pub(super) use self::run::Begun;
