# The gateway and the demo shop, in an image without a compiler and without root.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin oncegate --bin shop

FROM debian:bookworm-slim
# Whom to trust, for tools and stores over TLS.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --create-home --home-dir /state oncegate
COPY --from=build /src/target/release/oncegate /src/target/release/shop /usr/local/bin/
USER oncegate
# The store of an embedded gateway, or what a gateway remembers of a shared one: keep it in a volume.
WORKDIR /state
VOLUME /state
EXPOSE 8080
ENTRYPOINT ["oncegate"]
CMD ["serve", "--config", "/etc/oncegate.toml"]
