//! Claims about oncegate, tested through HTTP against the real router, the real store and a fake
//! tool that counts its effects. In suggested reading order:

#![expect(unreachable_pub, reason = "a test binary has no outside")]
#![expect(clippy::expect_used, reason = "a helper that fails fails the test")]

mod support; // the words that the tests are written in

mod abuse; // clients and tools that attack
mod abuse_memory; // clients that take memory and give nothing
mod abuse_ops; // what the ops endpoints cost, and what they tell
mod abuse_store; // what others' calls cost, and a store that does not answer
mod acceptance; // an operator accepts that the store has lost data
mod access; // who may do what
mod admission; // what every store promises about the conditions of a claim
mod admission_groups; // what every store promises about budgets and calls that look alike
mod admitted; // reads, forms and unauthenticated clients are admitted before they are read
mod adopted; // who adopts, and what the runbook says after a loss
mod adopted_again; // adopted calls that are lost, several effects of a key, and tools that deduplicate
mod adopting; // forgotten effects are calls again
mod agent; // an agent that does what it is told
mod agent_keyless; // a loop of an agent whose runtime brings no keys of its own
mod alerts; // the metrics behind the alerts go back when the cause is gone
mod anomalies; // acts of operators on what a reconciliation has found
mod apis; // the guides of docs/apis: what they configure and what they promise
mod attacked; // a gateway with a small budget, and clients that speak HTTP/2 wrongly
mod audit; // acts of operators while the store fails
mod breaker; // tools that keep failing are left alone for a while
mod budgets; // how many calls may begin, and those that look alike
mod calls; // the same call, sent again
mod canary; // no secret of one caller gets into logs, metrics or the answers of others
mod chaos; // whatever goes wrong: at most one effect, and nothing is lost
mod chaos_sagas; // whatever goes wrong: sagas come to their end, each thing done and undone once
#[cfg(target_os = "linux")]
mod cleanup; // what is kept no longer is deleted, and nothing else
mod config; // mistakes in a configuration
mod config_exposed; // a file that others may read
mod config_read; // what a good configuration reads as
mod connections; // how many there may be, and how long they may be silent
mod console; // pages for the operator who is woken up
mod console_acts; // acts on many, on anomalies, and asking a tool, as forms
mod console_forged; // nobody makes a session from what the store holds
mod console_large; // a large ledger: pages are bounded, and go on
mod console_live; // pages that stay current
mod console_shown; // what callers wrote is text on every page
mod contract; // the promises of every store
mod crash; // kill -9
mod crowds; // thousands of clients that want nothing, or all the same
mod demo; // `make run`
mod desk; // the endpoints that an operator needs at 3 a.m.
mod desk_acts; // acts of operators and agents that cross each other, or come in a loop
mod desk_doubles; // calls that look like an earlier one, and the page of the runbook about them
mod documents; // what every store promises about what is kept beside the calls
mod documents_redis; // documents that a Redis has lost, cannot read or has no room for
mod downstream; // nothing is sent twice or too late
mod exclusive; // one call of a session at a time, under load
mod faults; // a store that fails
mod file_accepted; // a loss of a SQLite file is accepted by an operator
mod file_alone; // a SQLite file without the files beside it
mod file_losses; // a SQLite file that has lost data
mod files; // only their user may read them, and nothing else is touched
mod finished; // succeeded calls that a gateway remembers
mod giving_way; // how fast silent connections give way
mod health; // the health check of images
mod house; // which room may know which
mod house_files; // no circles, no long files
mod house_words; // words that texts and comments must not use
mod hung_up; // operators who hang up in the middle of an act
mod import;
mod import_servers; // descriptions of APIs as tools
mod incident; // an incident is worked with the commands of the runbook
mod kept_stores; // files that earlier releases have left
mod keys; // what counts as the same call
mod ledger; // what ran, how often it was asked for, and with what result
mod limits; // how fast a token may be
mod listing; // what every store promises about the ledger
mod many; // acts of operators on many calls or sagas at once
mod many_between; // what comes between such an act and its end
mod many_probes; // tools are asked about many unknown calls
mod mcp; // calls by MCP
mod mcp_doors; // the paths of MCP, headers that repeat arguments, and results that not every client can read
mod mcp_listen; // what clients are told of the tools
mod mcp_progress; // what a server says of the progress of a call
mod mcp_rounds; // servers that ask before they execute
mod mcp_server; // one MCP server as its clients see it
mod mcp_sessions; // what a server that has forgotten a session proves, and statuses that an operator declares
mod mcp_told; // what a model is told where there is no result
mod mcp_upstream; // tools of MCP servers
mod mcp_wire; // messages of MCP, good and bad
mod nulls; // null for an argument that need not be there
mod observe; // rules, board and runbook fit the metrics
mod openapi; // the document of the endpoints, and whether their answers are as it says
mod ops; // health, readiness, metrics, logs
mod outcomes; // what the tool's answers mean to a caller
mod papers; // version, manual pages, completions
mod pause; // an operator stops a tool for a while
mod pause_redis; // pauses that gateways of one Redis share
mod peers; // mistakes of other systems that no other test looks for
#[cfg(feature = "crash-points")]
mod points; // the process ends where it hurts
#[cfg(feature = "crash-points")]
mod points_world; // one life of a gateway that ends at a point, and what must hold after it
mod problems; // the table of failures
mod proxies;
mod proxies_access;
mod proxies_attacked;
mod proxies_credentials; // whose call it is, and what is shown of it
mod proxies_guard; // other spellings of paths, methods and names
mod proxies_origin; // answers of others are never active on the gateway's origin
mod proxies_rules;
mod proxies_wire;
mod reads; // a read is executed each time
mod recheck; // unknown calls come to rest, when something goes wrong
mod recheck_shared; // rechecks by several gateways, and stored calls that cannot be read
mod recipes; // a stored call is recognised whatever the configuration has become
mod recipes_kept; // key schemes are written down before they are used, and forgotten after their last call
mod reconcile; // the ledger, held against the systems behind the tools
mod reconcile_guesses; // what a spelling or a wrong source explains is not undone
#[cfg(feature = "crash-points")]
mod reconcile_points; // the process ends where it hurts a reconciliation
mod reconcile_rules; // what a reconciliation leaves alone, and how an anomaly ends
mod redis; // many gateways over one Redis
mod redis_accepted; // a loss of Redis data is accepted by an operator
mod redis_accepting; // a loss whose acceptance takes longer than a request
mod redis_commands; // how many commands a gateway asks of a Redis
mod redis_damaged; // calls in a Redis that cannot be read
mod redis_far; // a Redis that is far away
mod redis_faults; // a Redis that is killed, stopped, cut off, full or unfit
mod redis_finished; // succeeded calls that gateways over one Redis remember
mod redis_forgotten; // gateways that are gone leave no trace, and hide no loss
mod redis_kinds; // TLS, clusters, replicas, Sentinels
mod redis_late; // what comes late from a gateway that has noticed a loss
mod redis_losses; // a Redis that has lost data
mod redis_put_back; // what a gateway remembers goes back to a Redis that has lost it
mod redis_refused; // what is refused where a Redis is unfit or lacks what a gateway knows
mod redis_tenants; // a tenant is a partition: every kind of tool on every kind of Redis, slots on the move
mod rejections; // what a tool's refusal proves
mod reload; // the configuration is read again
mod replay; // an operator asks whether a result is stable
mod requests;
mod rest; // unknown calls come to rest
mod reused; // the same key with other arguments
mod rolling; // two gateways are restarted in turn
mod saga_losses; // an older copy of the store undoes nothing
mod saga_persons; // what operators do about sagas
#[cfg(feature = "crash-points")]
mod saga_points; // the process ends where it hurts a saga
mod saga_restores; // a store is restored while sagas are open
mod saga_scopes; // who may complete, abort and look at a saga
mod saga_sizes; // thousands of calls, and many sagas that cannot be read
mod saga_store; // each operation of the store fails once in the life of a saga
mod saga_stuck; // sagas that are stuck: who is told, and how they go on
mod sagas; // what an abandoned plan has done is undone
mod same_intent; // one intent under several keys of a model: one effect
mod secret; // what was redacted cannot be guessed, and its secret is not lost
mod secret_guessed; // nor asked for by keys
mod secret_learned; // a further secret is learned while requests wait
mod secrets; // what is secret stays so
mod session_tokens; // fencing tokens, and the sessions of different tenants
mod sessions; // what bounds the branches of one conversation
mod setup; // what `make` installs before it builds
mod shared_runs; // what those are told who share a run
mod shares; // what tenants and tokens leave to each other
mod shop; // the demo's tool checks fencing tokens
mod shutdown; // stopping in good order
mod similar; // what looks like a call gets its result
mod stdio; // MCP servers that are programs
mod store; // a file, and a disk that fails
mod tls; // HTTPS by its own certificate
mod tokens; // they rise, whatever becomes of store and clock
mod tools; // what callers and models are told of the tools, and the document of the endpoints
mod traces; // which trace a call belongs to
mod turns; // one's turn in a session, when something goes wrong
mod unknown; // ambiguous outcomes
mod verify_tool; // what a tool does with a key is asked of the tool
mod wrap; // one MCP server for one client, made safe to repeat
mod wrap_kept; // where a wrapped server keeps its calls
