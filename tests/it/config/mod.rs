//! The configuration, and what is made from it.

pub mod checked; // a check for programs, and secrets in files
pub mod demo; // `make run`
pub mod exposed; // a file that others may read
pub mod import; // a description of an API as tools
pub mod import_servers; // descriptions of APIs as tools
pub mod included; // files that a configuration includes
pub mod mistakes; // mistakes in a configuration
pub mod observed; // timeouts beside the calls that a gateway has seen
pub mod openapi; // the document of the endpoints, and whether their answers are as it says
pub mod papers; // version, manual pages, completions
pub mod read; // what a good configuration reads as
pub mod reload; // the configuration is read again
pub mod setup; // what `make` installs before it builds
pub mod shop; // the demo's tool checks fencing tokens
pub mod tools; // what callers and models are told of the tools, and the document of the endpoints
pub mod traces; // which trace a call belongs to
pub mod verify_tool; // what a tool does with a key is asked of the tool
