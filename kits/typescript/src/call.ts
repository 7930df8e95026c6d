/** A call without its network: what is sent, what an answer means, and when to send the same bytes again. */

import { NotAGateway, type OnceError, ProblemError, UnknownOutcome } from "./errors.js";
import type { CallRequest } from "./wire.js";

type Members = Record<string, unknown>;

/** How long a request may take beyond the time that the gateway is asked to wait. */
const GRACE_MS = 5_000;
/** The longest wait that the gateway takes. */
const LONGEST_WAIT_S = 60;
/** Waits after lost answers: the first one, and the longest. */
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
/** So that a gateway which names no time is not asked in a loop. */
const SHORTEST_PAUSE_MS = 50;
/** How soon to ask again for a running call. */
const RUNNING_MS = 1_000;
/** Statuses of something between kit and gateway that may pass, and say nothing of the call. */
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);
/** Problems of requests that the gateway did not look at: they say nothing of an earlier try. */
const UNREAD = new Set([400, 401, 403, 404, 405, 408, 413]);
const LONGEST_PATIENCE_MS = 2 ** 31 - 1;

/** No key is sent: the gateway makes it from the arguments. For calls that a model makes. */
export const BY_ARGUMENTS: unique symbol = Symbol("by arguments");
export type Key = string | typeof BY_ARGUMENTS | undefined;

/** What came of one try: the members of a success, or how long to wait before the next one. */
export type Step = { members: Members } | { waitMs: number };

/** The tries of one request, until an answer is final or the patience is over. */
export class Tries {
  count = 0;
  #lost = 0;
  readonly #ends: number;

  constructor(
    readonly where: string,
    patienceMs: number,
    readonly key: string | null = null,
    readonly keyMade = false,
    readonly clientCallId: string | null = null,
  ) {
    if (!(patienceMs >= 0 && patienceMs <= LONGEST_PATIENCE_MS)) {
      throw new RangeError("patience is a number of milliseconds, 0 or more");
    }
    this.#ends = performance.now() + patienceMs;
  }

  /** The `Prefer` header and the timeout of the next try. */
  begin(): { prefer: string; timeoutMs: number } {
    this.count += 1;
    // At least one, or the answer to a call that has just begun is that it runs.
    const wait = Math.min(Math.max(1, Math.ceil(this.#left() / 1000)), LONGEST_WAIT_S);
    return { prefer: `wait=${wait}`, timeoutMs: wait * 1000 + GRACE_MS };
  }

  /** No answer, or none of a gateway's. */
  lost(why: string, cause?: unknown, afterMs = 0): Step {
    this.#lost += 1;
    const longest = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(this.#lost, 10), LONGEST_PAUSE_MS);
    const waitMs = Math.max(longest * between(0.5, 1), afterMs);
    if (waitMs <= this.#left()) return { waitMs };
    const how = this.key === null ? "with the same arguments" : `with key "${this.key}"`;
    const told =
      `The call may or may not have been executed: no answer from ${this.where} after ${this.count} tries (${why}). ` +
      `Sending the same call again ${how} never executes it twice.`;
    throw this.#about(new UnknownOutcome(told, { cause }));
  }

  /** What an answer means. Throws what is final. */
  answered(status: number, headers: Headers, body: string): Step {
    const members = object(body);
    if (members && status >= 400 && typeof members.type === "string" && members.type.startsWith("/problems/")) {
      return this.#refused(new ProblemError(status, members, waitMs(members, headers)));
    }
    if (members && status === 202 && members.status === "running") {
      if (this.#left() > RUNNING_MS) return { waitMs: RUNNING_MS };
      const known = { ...members, type: "/problems/call-in-progress", title: "The call is still running" };
      throw this.#about(new ProblemError(409, { ...known, effect: "unknown", key_action: "reuse" }, RUNNING_MS));
    }
    if (members && status === 200) return { members };
    if (PASSING.has(status)) {
      return this.lost(`the last answer was ${status}, and not oncegate's`, undefined, retryAfterMs(headers) ?? 0);
    }
    throw this.isNoGateway(`${status} ${headers.get("content-type") ?? "without a content type"}`);
  }

  /** The one error for whatever else answers. */
  isNoGateway(what: string): NotAGateway {
    return this.#about(
      new NotAGateway(`${this.where} is not an oncegate gateway: it answered ${what}. Check the URL.`),
    );
  }

  #refused(problem: ProblemError): Step {
    const after = problem.retryAfterMs;
    if ((problem.keyAction === "reuse" || problem.keyAction === "wait") && after !== null) {
      const waitMs = Math.max(after, SHORTEST_PAUSE_MS) * between(1, 1.1);
      if (waitMs <= this.#left()) return { waitMs };
    }
    if (this.#lost > 0 && problem.effect === "none" && UNREAD.has(problem.status)) {
      const told =
        "The call may or may not have been executed: the answer to an earlier try was lost, and the gateway did not " +
        `look at the last one. ${problem.detail}`;
      throw this.#about(new UnknownOutcome(told, { cause: problem }));
    }
    throw this.#about(problem);
  }

  #about<E extends OnceError>(error: E): E {
    error.key = this.key;
    error.keyMade = this.keyMade;
    error.clientCallId = this.clientCallId;
    return error;
  }

  #left(): number {
    return Math.max(0, this.#ends - performance.now());
  }
}

/** The bytes of a call, made once before the first try. Throws for what cannot be sent. */
export function prepare(request: CallRequest, key: Key): { body: string; key: string | null; keyMade: boolean } {
  const sent = key === undefined ? crypto.randomUUID() : key === BY_ARGUMENTS ? null : key;
  if (sent !== null && !/^[!-~]{1,255}$/.test(sent)) {
    throw new TypeError("a key is 1 to 255 visible ASCII characters without spaces");
  }
  const body = written({ ...request, ...(sent === null ? {} : { idempotency_key: sent }) });
  return { body, key: sent, keyMade: key === undefined };
}

/** Arguments that cannot be sent. */
export class NotJson extends TypeError {}

function written(request: CallRequest): string {
  try {
    return JSON.stringify(request, exactly);
  } catch (error) {
    throw new NotJson(`the arguments are not JSON: ${error instanceof Error ? error.message : error}`);
  }
}

/** What JSON would silently write as another value is refused: two intents could become one. */
function exactly(this: unknown, name: string, value: unknown): unknown {
  if (value === undefined && Array.isArray(this)) throw new TypeError(`item ${name} of a list is undefined`);
  if (typeof value === "number" && !Number.isFinite(value))
    throw new TypeError(`${name} is ${value}, which is not JSON`);
  if (typeof value === "function" || typeof value === "symbol") throw new TypeError(`${name} is a ${typeof value}`);
  if (value instanceof Map || value instanceof Set) throw new TypeError(`${name} is a Map or a Set`);
  return value;
}

function object(body: string): Members | null {
  try {
    const value: unknown = JSON.parse(body);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Members) : null;
  } catch {
    return null;
  }
}

/** The member, and the header only where an older gateway has no such member. */
function waitMs(members: Members, headers: Headers): number | null {
  if (!("retry_after_ms" in members)) return retryAfterMs(headers);
  const value = members.retry_after_ms;
  return typeof value === "number" && value >= 0 ? value : null;
}

function retryAfterMs(headers: Headers): number | null {
  const value = headers.get("retry-after")?.trim() ?? "";
  if (/^\d{1,9}$/.test(value)) return Number(value) * 1000;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now());
}

function between(least: number, most: number): number {
  return least + Math.random() * (most - least);
}
