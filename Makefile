# What there is to do. CI runs `make test`, `check`, `docs`, `loss`, `observe`, `fuzz`, `explore`, `conformance`, `console`, `kits`
# and `packages-check`.
# Each target first lets scripts/setup install what it needs beside Rust.

.PHONY: install dist packages packages-check packages-empty run test test-these test-postgres test-fast soak incident store-fixtures upgrade-check check otel loss observe faults fuzz conformance console docs explore simulate judge clients import-check sdk commerce commerce-specs kits abuse bench bench-peers bench-ledger bench-large breaks mutants mutants-changed audit

# Builds the gateway and the demo shop, starts both, and prints what to try.
run:
	@scripts/setup run
	@scripts/demo

# Builds the programs that a target runs. With BUILT=1 the tests have built them: CI builds no second gateway.
build = $(if $(BUILT),,cargo build --quiet $(1:%=--bin %))

# Most tests wait most of the time, so there are more of them at once than processors.
TEST = cargo test --quiet --no-fail-fast --no-default-features --features full,crash-points

# All tests, over SQLite, Redis and PostgreSQL. At most six minutes on two processors, after the build.
test:
	@scripts/setup test
	scripts/in-test-folder $(TEST) --lib --bins --examples --tests -- --test-threads=16

# The tests of these whole names (TESTS), one after the other.
test-these:
	@scripts/setup test
	scripts/in-test-folder $(TEST) --lib --bins --tests -- --test-threads=1 --exact $(TESTS)

# Those over a real PostgreSQL alone: at most three minutes.
test-postgres:
	@scripts/setup test-postgres
	scripts/in-test-folder $(TEST) --test it -- --test-threads=8 postgres

# The rules, and everything over SQLite that takes no long series of accidents. At most a minute. Tests are chosen
# by their names: one that needs a Redis or a PostgreSQL has `redis` or `postgres` in its own; without that it gets no Redis here.
LONG = redis postgres chaos:: crash:: exclusive:: points:: sagas::sizes:: sagas::store::
test-fast:
	@scripts/setup test-fast
	NO_REDIS=1 scripts/in-test-folder $(TEST) -- --test-threads=8 $(LONG:%=--skip %)

# The tests that try something again and again, five times as often as `make test`, simulated seeds for MINUTES, and an hour of two
# releases over one Redis (see upgrade-check).
soak:
	@scripts/setup test upgrade-check
	PROPTEST_CASES=1280 $(TEST) --lib -- --test-threads=3
	cargo build --quiet --no-default-features --features full,crash-points --bin judge
	SOAK=5 PROPTEST_CASES=1280 scripts/in-test-folder scripts/judged $(TEST) --test it -- --test-threads=3 chaos:: crash:: exclusive:: points:: planted kills
	@scripts/simulate
	@MINUTES=30 scripts/upgrade_check

# An incident (unknown calls, stuck sagas, a killed gateway, an older Redis) is worked with the runbook's commands as printed.
incident:
	@scripts/setup test
	@scripts/incident

# The stored files of this release, made once when it is released (tests/stores/VERSION). RELEASE names the binary.
RELEASE = target/release/oncegate
store-fixtures:
	@scripts/setup store-fixtures
	scripts/store_fixtures $(RELEASE)

# A gateway of 0.2.0 and one of today over one Redis, under load for MINUTES (10) in each of two orders, restarted in turn: no call
# fails, no effect is missing or doubled, and the Redis is upgraded at the end. OLD names a binary of 0.2.0, otherwise it is built
# from the repository. Takes git, python3 and redis-server; half an hour.
upgrade-check:
	@scripts/setup upgrade-check
	cargo build --quiet --no-default-features --features full,crash-points --bin oncegate
	@scripts/upgrade_check

# Formatting, lints of the whole and of the smallest gateway, documentation.
check:
	@scripts/setup check
	cargo fmt --check
	cargo clippy --quiet --all-targets --all-features -- -D warnings
	cargo clippy --quiet --package oncegate --no-default-features --features sqlite -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --all-features

# Licences, advisories and sources of dependencies (deny.toml), and dependencies that nothing uses. Takes a network.
audit:
	@scripts/setup audit
	cargo deny check
	cargo machete

# Spans that are exported, which takes another build.
otel:
	@scripts/setup test
	cargo test --quiet --no-default-features --features full,crash-points,otel --test it -- traces config

# 300 calls while 30 % of all packets are lost, over a Redis or, with LOSS_STORE=postgres, a PostgreSQL. Takes root on Linux; says
# so and does nothing elsewhere.
loss:
	@scripts/loss

# A real Prometheus watches a real gateway: the ratios are what was counted, and alerts fire when they should and
# never else. Takes python3, prometheus, promtool and redis-server, and three and a half minutes. With
# ONCEGATE_OBSERVE_STORE=postgres the store is a PostgreSQL.
observe:
	@scripts/setup observe
	$(call build,oncegate)
	@scripts/observe

# Faults of the machine under a real gateway: disks that are full, fail, lie or lose power, clocks, no memory, no files, stopped
# processes, failover; over SQLite, Redis, Valkey and PostgreSQL. FAULTS names some of them. Takes Linux, python3, cc, postgresql,
# redis-server and valkey-server (or Debian's archive); seven minutes. See docs/evidence/reliability.md.
faults:
	@scripts/setup faults
	$(call build,oncegate judge)
	@scripts/faults $(FAULTS)

# A real gateway under what schemathesis makes of /openapi.json; and each parser under samples that change at random, for
# FUZZ_SECONDS. Takes python3 and PyPI; eight minutes.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/setup fuzz
	$(call build,oncegate shop)
	@scripts/fuzz
	FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --quiet --no-default-features --features full,crash-points --lib -- --nocapture --test-threads=2 fuzz_tests

# The official MCP conformance suite, straight at a server and through a real gateway before it: the same checks pass.
# Takes python3, PyPI and npm's registry; half a minute.
conformance:
	@scripts/setup conformance
	$(call build,oncegate)
	@scripts/conformance

# A real Chromium walks an incident at the console, with JavaScript and without, and axe-core looks at every screen. Where there
# is no browser and none can be installed, it says so and tests nothing. PICTURES=1 puts pictures of it into docs/pictures. Takes
# python3, PyPI and npm's registry; a minute.
console:
	@scripts/setup console
	-@scripts/setup browser
	$(call build,oncegate shop)
	@CONSOLE_PICTURES=$(PICTURES) scripts/console

# The examples of the crates; every link of every page; and every command and answer of README and the seven pages to read after
# it: they are run, and what is printed is compared with the page. Takes git, python3 and curl; half a minute.
docs:
	@scripts/setup docs
	$(TEST) --doc
	$(call build,oncegate shop)
	@scripts/docs

# Every order of events that a model of gateways, store, tool and operators allows within small bounds, over the real rules.
# At most three minutes on two processors, after the build. EXPLORE sets further bounds: see docs/evidence/reliability.md.
explore:
	@scripts/setup test
	@scripts/explore

# The gateway's real code with simulated time, network, store and tools: further seeds for MINUTES (10), or the story of one
# SEED. See docs/evidence/reliability.md.
simulate:
	@scripts/setup test
	@scripts/simulate

# Judges and generators that others wrote: a state machine of hypothesis drives a real gateway over SQLite, and two over Redis and
# PostgreSQL, alone and with replicas, for JUDGE_MINUTES (10), and a linearizability checker judges the histories. What breaks the promise is shrunk and printed as a script. MANY=1: many cheap steps. PLANTED=1: liars between the parts, each of which must be
# found. Takes Linux, python3, PyPI, cc, postgresql and redis-server. See docs/evidence/judge.md.
judge:
	@scripts/setup judge
	cargo build --quiet --no-default-features --features full,crash-points $(if $(BUILT),,--bin oncegate) --bin judge
	@scripts/in-test-folder scripts/judge $(if $(PLANTED),planted) $(if $(MANY),many)

# Clients and agent frameworks that others wrote, before a server that takes effect and then fails, straight and through a
# real gateway: the effects are counted. And servers that others wrote: what comes through is what they say. Prints the tables
# of docs/mcp-clients.md and, for a tool of 90 s, of docs/long-tools.md, and fails if a page has other rows. Takes python3, git,
# PyPI and npm's registry; a quarter of an hour, and some minutes for the packages.
clients:
	@scripts/setup clients
	$(call build,oncegate)
	@scripts/clients
	@scripts/fidelity

# `oncegate import openapi` over 200 real descriptions: each operation is a tool or named, and `check` takes what is printed. Ten
# of the tools run through a real gateway against Prism, which validates their requests. Takes python3, PyPI and npm's
# registry; two minutes.
import-check:
	@scripts/setup import-check
	$(call build,oncegate)
	@scripts/import_check

# Stripe's Python library as it is, before a Stripe whose answers are lost, straight and through a real gateway: what it
# makes is counted. Takes python3 and PyPI; a minute.
sdk:
	@scripts/setup sdk
	$(call build,oncegate)
	@scripts/sdk

# A merchant that verifies HTTP message signatures with a library of others, one whose answers are lost, and a shop and its buyers
# made of libraries of others for x402 and MPP; before each a real gateway with the files of config/commerce. Takes python3, PyPI
# and npm's registry; half a minute, and some more for the packages.
commerce:
	@scripts/setup commerce
	$(call build,oncegate)
	@scripts/commerce

# The schema and the examples of ACP's specification, and the idempotency tests of UCP's conformance suite, before a real gateway
# with the files of config/commerce. ACP_REPOSITORY and UCP_REPOSITORY name other places than GitHub that have them. Takes git,
# python3, PyPI and npm's registry; half a minute, and some more for the packages.
commerce-specs:
	@scripts/setup commerce-specs
	$(call build,oncegate)
	@scripts/commerce_specs

# The Python and TypeScript clients: linted, typed, built into target/kits/built, and tested as built before a real gateway and a
# tool that misbehaves; and what the webhook is told is verified by the libraries `standardwebhooks` of both registries. Takes python3 (3.11), PyPI and npm's registry; two minutes, and some more for the packages.
kits:
	@scripts/setup kits
	$(call build,oncegate)
	@scripts/in-test-folder scripts/kits

# A gateway with a small memory budget under 5,000 slow clients for ten minutes, while another tenant calls; and HTTP/2,
# spoken wrongly. Takes Linux and python3.
abuse:
	@scripts/setup abuse
	cargo build --quiet --release --bin oncegate
	@scripts/abuse

# What a call costs, beside nginx, an empty handler, a bare forwarder and a bare gateway: ratios in one run. Eight minutes.
bench:
	@scripts/setup bench
	cargo bench --quiet --profile published --bench gateway

# The same with peers from their registries beside it: a bare gateway in Python, and Restate. Takes python3, PyPI, node and
# npm's registry; ten minutes.
bench-peers:
	@scripts/setup bench-peers
	@scripts/bench_peers

# What grows with a store: claims, replays, pages, cleanup, and bytes a call, with ten thousand and a million calls, and ten
# million on SQLite; and sixty tenants on one master and on three. Ten minutes, and 20 GB of disk.
bench-ledger:
	@scripts/setup build
	ONCEGATE_BENCH_CALLS=10000,1000000,10000000 cargo bench --quiet --bench ledger

# A gateway over a SQLite file of a million calls, and of ten million: start, export, erasure, retention, compaction. 20 GB of disk.
bench-large:
	@scripts/setup build
	cargo bench --quiet --bench large

# Breaks Lua, SQL, the gate and the order of durable steps on purpose (tests/breaks.toml): each must be noticed. Takes long.
breaks:
	@scripts/setup test test-postgres
	@scripts/breaks

# Breaks crates/rules in every way that cargo-mutants knows; the unit tests must notice. Takes three hours, and cargo-mutants.
mutants:
	@scripts/setup mutants
	@scripts/mutants rules

# The same, and the stores, but only lines that have changed since the commit SINCE.
SINCE = main
mutants-changed:
	@scripts/setup mutants test
	@scripts/mutants changed $(SINCE)

# Builds for this machine and installs the binary, manual pages and completions below PREFIX.
PREFIX = /usr/local
install:
	@scripts/setup build
	@scripts/release install $(PREFIX)

# A static Linux binary with its papers, checksums and the list of what it is made of (CycloneDX), in target/dist.
dist:
	@scripts/setup dist
	@scripts/release dist

# Wheels, npm's packages, an image, a chart and their papers from the binary of `make dist`, and of one for this machine's glibc,
# in target/packages; then they are installed and run by pip, uvx, npm, npx, runc and Helm's library. ONCEGATE names another
# binary, for tests. Takes python3, PyPI and npm's registry; three minutes after the two builds.
packages:
	@scripts/setup packages $(if $(ONCEGATE),,dist)
	@scripts/packages
	@scripts/packages test

# The same for a debug binary, which CI has built already: what is packed is tested, not how the program is compiled. Without
# runc and umoci the image is not run. Takes python3, PyPI and npm's registry; two minutes.
PACKED = target/package-binary
packages-check:
	@scripts/setup packages-check
	-@scripts/setup image
	$(call build,oncegate)
	@mkdir -p $(PACKED) && strip -o $(PACKED)/oncegate $${CARGO_TARGET_DIR:-target}/debug/oncegate
	@ONCEGATE=$(PACKED)/oncegate scripts/packages
	@ONCEGATE=$(PACKED)/oncegate scripts/packages test

# What `make packages` has made, installed and run in a new Debian with Python and curl, by chroot. Takes root, debootstrap,
# Debian's archive, PyPI and npm's registry; three minutes.
packages-empty:
	@scripts/setup packages-empty
	@scripts/packages empty
