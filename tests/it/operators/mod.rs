//! Acts of operators, and what they watch.

pub mod alerts; // the metrics behind the alerts go back when the cause is gone
pub mod audit; // acts of operators while the store fails
pub mod desk; // the endpoints that an operator needs at 3 a.m.
pub mod desk_acts; // acts of operators and agents that cross each other, or come in a loop
pub mod desk_doubles; // calls that look like an earlier one, and the page of the runbook about them
pub mod erasures; // users whose data is erased
pub mod events; // what happened to calls, for other systems
pub mod expiry; // what goes earlier than a call, and calls that go earlier
pub mod exports; // everything about a user, as lines
pub mod health; // the health check of images
pub mod hung_up; // operators who hang up in the middle of an act
pub mod incident; // an incident is worked with the commands of the runbook
pub mod many; // acts of operators on many calls or sagas at once
pub mod many_between; // what comes between such an act and its end
pub mod many_probes; // tools are asked about many unknown calls
pub mod observe; // rules, board and runbook fit the metrics
pub mod ops; // health, readiness, metrics, logs
pub mod refusals; // what is refused leaves a trace
pub mod rolling; // two gateways are restarted in turn
