/** A tool that misbehaves, a real gateway before it, and a line before the gateway that loses answers. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server as HttpServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { OnceError } from "@oncegate/client";

const ONCEGATE = process.env.ONCEGATE ?? "target/debug/oncegate";
const START_MS = 30_000;

export interface Asked {
  path: string;
  method: string;
  headers: IncomingHttpHeaders;
  body: string;
}
/** What a server says; null: it closes the connection. */
export type Said = { status: number; type?: string; headers?: Record<string, string>; body: string | Buffer } | null;

/** An HTTP server on a free port. */
export class Server {
  readonly #http: HttpServer;
  url = "";

  constructor(says: (asked: Asked) => Said | Promise<Said>) {
    this.#http = createServer(async (request, response) => {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      const { url: path = "", method = "", headers } = request;
      const said = await says({ path, method, headers, body: Buffer.concat(parts).toString() });
      if (said === null) {
        request.socket.destroy();
        return;
      }
      const type = said.type ? { "content-type": said.type } : {};
      response.writeHead(said.status, { ...type, ...said.headers, connection: "close" }).end(said.body);
    });
  }

  async begin(): Promise<this> {
    await new Promise<void>((resolve) => this.#http.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.#http.address() as AddressInfo).port}`;
    return this;
  }

  end(): void {
    this.#http.close();
    this.#http.closeAllConnections();
  }
}

const config = (port: number, folder: string, tool: string) => `
[server]
listen = "127.0.0.1:${port}"
shutdown_grace = "1s"
[store]
url = "sqlite:${folder}/oncegate.db"
[tools.order]
url = "${tool}/order"
timeout = "3s"
deadline = "4s"
retry = { attempts = 1 }
[tools.create_order]
url = "${tool}/order"
key = { fields = ["/business_id"] }
input_schema = { type = "object", required = ["business_id"], properties = { business_id = { type = "string" } } }
[tools.short]
url = "${tool}/short"
timeout = "1s"
deadline = "1s"
retry = { attempts = 1 }
dedup_window = "1s"
[tools.sure]
url = "${tool}/sure"
timeout = "2s"
deadline = "3s"
dedup = "key"
unknown = "retry"
retry = { attempts = 1 }
recheck = { base = "1s", max = "1s" }
[tools.scarce]
url = "${tool}/scarce"
budget = { per = "session", max = 1, window = "3s" }
[tools.careful]
url = "${tool}/careful"
key = { source = "required" }
input_schema = { type = "object", required = ["order"], properties = { order = { type = "string" } } }
`;

export type Fault = "" | "drop" | "late" | "cut" | "nginx" | "unauthenticated";

export class World {
  /** What the tool did, and what it does next. At /sure it knows its keys. */
  readonly effects: unknown[] = [];
  does: ("ok" | "drop" | "slow" | "reject")[] = [];
  /** What the line does to the next requests, and the bodies that it saw. */
  faults: Fault[] = [];
  readonly bodies: string[] = [];
  readonly #keys = new Set<string>();
  readonly #folder = mkdtempSync(join(tmpdir(), "kit-"));
  readonly #tool = new Server((asked) => this.#takesEffect(asked));
  readonly line = new Server((asked) => this.#passesOn(asked));
  url = "";
  #process: ChildProcess | undefined;

  static async begin(): Promise<World> {
    const world = new World();
    await world.#tool.begin();
    await world.line.begin();
    const free = await new Server(() => null).begin();
    world.url = free.url;
    free.end();
    const port = Number(new URL(free.url).port);
    writeFileSync(join(world.#folder, "oncegate.toml"), config(port, world.#folder, world.#tool.url));
    await world.start();
    return world;
  }

  async start(): Promise<void> {
    const started = spawn(ONCEGATE, ["serve", "--config", join(this.#folder, "oncegate.toml")]);
    this.#process = started;
    const log = createWriteStream(join(this.#folder, "log"), { flags: "a" });
    started.stdout.pipe(log, { end: false });
    started.stderr.pipe(log, { end: false });
    for (const ends = Date.now() + START_MS; Date.now() < ends; await sleep(50)) {
      if (started.exitCode !== null) break;
      const ready = await fetch(`${this.url}/readyz`).catch(() => null);
      if (ready?.ok) return;
    }
    throw new Error("the gateway does not start");
  }

  async stop(how: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const process = this.#process;
    this.#process = undefined;
    if (process === undefined) return;
    const ended = new Promise((resolve) => process.once("exit", resolve));
    process.kill(how);
    await ended;
  }

  async end(): Promise<void> {
    await this.stop();
    this.line.end();
    this.#tool.end();
    rmSync(this.#folder, { recursive: true });
  }

  async resolve(callId: string, result: unknown): Promise<void> {
    const body = JSON.stringify({ as: "succeeded", result, reason: "it is there" });
    const answer = await fetch(`${this.url}/v1/calls/${callId}/resolve`, { method: "POST", body });
    assert.equal(answer.status, 200);
  }

  async #takesEffect({ path, headers, body }: Asked): Promise<Said> {
    const key = String(headers["idempotency-key"]);
    const does = this.does.shift() ?? "ok";
    if (does !== "reject" && !(path === "/sure" && this.#keys.has(key))) this.effects.push(JSON.parse(body));
    this.#keys.add(key);
    if (does === "slow") await sleep(2_000);
    if (does === "drop") return null;
    if (does === "reject") return { status: 422, type: "application/json", body: '{"reason":"no such article"}' };
    return { status: 200, type: "application/json", body: '{"made":true,"large":12345678901234567890}' };
  }

  async #passesOn({ path, method, headers, body }: Asked): Promise<Said> {
    if (body) this.bodies.push(body);
    const fault = this.faults.shift() ?? "";
    if (fault === "cut") return null;
    const { prefer = "" } = headers;
    const request = { method, headers: { prefer: String(prefer) }, ...(body ? { body } : {}) };
    const answer = await fetch(this.url + path, request).catch(() => null);
    const text = await answer?.text().catch(() => null);
    if (answer === null || typeof text !== "string" || fault === "drop") return null;
    if (fault === "late") {
      await sleep(2_500);
      return null;
    }
    if (fault === "nginx") return { status: 502, type: "text/html", body: "<h1>502 Bad Gateway</h1>" };
    if (fault === "unauthenticated") {
      const problem = {
        type: "/problems/unauthenticated",
        effect: "none",
        key_action: "stop",
        detail: "Nothing was run.",
      };
      return { status: 401, type: "application/problem+json", body: JSON.stringify(problem) };
    }
    return { status: answer.status, type: answer.headers.get("content-type") ?? "", body: text };
  }
}

/** The error of a call that has no result. */
export async function fails<E extends OnceError>(
  call: Promise<unknown>,
  kind: new (...parameters: never[]) => E,
): Promise<E> {
  const error = await call.then(
    (result) => assert.fail(`there is a result: ${JSON.stringify(result)}`),
    (error: unknown) => error,
  );
  assert.ok(error instanceof OnceError, String(error));
  assert.ok(error instanceof kind, String(error));
  return error;
}
