# What there is to do. CI runs `make test`, `check`, `loss`, `observe` and `fuzz`.

.PHONY: run test check otel loss observe fuzz bench bench-ledger breaks mutants

# Builds the gateway and the demo shop, starts both, and prints what to try.
run:
	cargo build --quiet --bin oncegate --example shop
	@scripts/demo

# Most tests wait most of the time, so there are more of them at once than processors.
test:
	cargo test --quiet --features crash-points -- --test-threads=6

# Formatting, lints, documentation.
check:
	cargo fmt --check
	cargo clippy --quiet --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps

# Spans that are exported, which takes another build.
otel:
	cargo test --quiet --features crash-points,otel --test it -- traces config

# 300 calls while 30 % of all packets are lost. Takes root on Linux; says so and does nothing elsewhere.
loss:
	@scripts/loss

# A real Prometheus watches a real gateway: the ratios are what was counted, and alerts fire when they should and
# never else. Takes python3, prometheus, promtool and redis-server, and three and a half minutes.
observe:
	cargo build --quiet --bin oncegate
	@scripts/observe

# A real gateway under what schemathesis makes of /openapi.json. Takes python3 and PyPI.
fuzz:
	cargo build --quiet --bin oncegate --example shop
	@scripts/fuzz

# Throughput and added latency, as ratios in one run.
bench:
	cargo bench --quiet --bench gateway

# How long a question to a large ledger takes, and how much room a call. A quarter of an hour.
bench-ledger:
	ONCEGATE_BENCH_CALLS=1000000 cargo bench --quiet --bench ledger

# Breaks Lua, SQL, the gate and the order of durable steps on purpose (tests/breaks.toml): each must be noticed. Takes long.
breaks:
	@scripts/breaks

# Breaks src/core in every way that cargo-mutants knows; the unit tests must notice. Takes an hour, and cargo-mutants.
mutants:
	cargo mutants
