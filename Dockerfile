# The image of `make packages`, and the demo shop (--target shop). The gateway's files come from the same script.
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates make musl-tools python3 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# As `make dist` builds it: static.
RUN target=$(uname -m)-unknown-linux-musl && rustup target add "$target" \
  && CC=musl-gcc cargo build --profile published --locked --bin oncegate --bin shop --target "$target" \
  && mkdir /built && cp "target/$target/published/oncegate" "target/$target/published/shop" /built/
RUN ONCEGATE=/built/oncegate scripts/packages root /image && mv /image/state /state

FROM scratch AS base
COPY --from=build /image/etc /etc
# The store of an embedded gateway, or what a gateway remembers of a shared one: keep it in a volume.
COPY --from=build --chown=10001:10001 /state /state
ENV PATH=/usr/local/bin HOME=/state
USER 10001:10001
# The MCP registry looks for this one.
LABEL io.modelcontextprotocol.server.name=io.github.oncegate/oncegate
WORKDIR /state
VOLUME /state

FROM base AS shop
COPY --from=build /built/shop /usr/local/bin/
EXPOSE 9090
ENTRYPOINT ["shop"]

FROM base
COPY --from=build /image/usr /usr
EXPOSE 8080
ENTRYPOINT ["oncegate"]
CMD ["serve", "--config", "/etc/oncegate.toml"]
HEALTHCHECK --interval=5s --timeout=4s --start-period=5s --retries=3 CMD ["oncegate", "health", "--config", "/etc/oncegate.toml"]
