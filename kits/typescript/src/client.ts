/** The client. */

import { BY_ARGUMENTS, type Key, NotJson, prepare, type Step, Tries } from "./call.js";
import { OnceError } from "./errors.js";
import { outcomeForModel, resultForModel } from "./text.js";
import type { CallRequest, Tool } from "./wire.js";

/** How long a call may take with all its tries. */
const PATIENCE_MS = 30_000;

export interface Settings {
  token?: string | undefined;
  sessionId?: string | undefined;
  userId?: string | undefined;
  patienceMs?: number | undefined;
  /** Another `fetch`, such as one behind a proxy. It must not repeat requests by itself. */
  fetch?: typeof fetch | undefined;
}

/** What a call may bring beside its key. */
export interface Options {
  clientCallId?: string | undefined;
  sessionId?: string | undefined;
  userId?: string | undefined;
  sagaId?: string | undefined;
  traceId?: string | undefined;
  fencingToken?: number | undefined;
  confirmDuplicateOf?: string | undefined;
  patienceMs?: number | undefined;
  /** Ends the caller's wait, and not the call. */
  signal?: AbortSignal | undefined;
}

/** A call that was executed, now or before. */
export interface Result<R = unknown> {
  /** The tool's JSON. */
  result: R;
  callId: string;
  /** Whether this is the stored result of an earlier request. */
  replayed: boolean;
  /** The call's key at the gateway. Made of business fields, it is not the one that was sent. */
  key: string | null;
  /** Time since the call was first requested; of a replay only. */
  ageMs: number | null;
  fencing: number | null;
  /** How many requests the kit sent. */
  tries: number;
  /** All members of the answer. */
  members: Readonly<Record<string, unknown>>;
  /** The answer as it came: integers beyond 2^53 are exact only here. */
  text: string;
}

/** What a framework must know of a tool. */
export interface ToolSpec {
  name: string;
  description: string;
  input_schema: Record<string, unknown>;
}

/** A typed tool: a function whose calls go to the gateway. */
export interface TypedTool<A extends object, R> extends ToolSpec {
  /** The tool's result. The arguments make the key: equal calls are one call. */
  (args: A, options?: Options): Promise<R>;
}

/** Calls tools through a gateway: one intent, at most one side effect. */
export class Once {
  readonly url: string;
  readonly #settings: Settings;

  constructor(url: string, settings: Settings = {}) {
    const parsed = URL.canParse(url) ? new URL(url) : null;
    if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) {
      throw new TypeError(`the URL of a gateway begins with http:// or https://, and this one is "${url}"`);
    }
    if (settings.token !== undefined && !/^[!-~]+$/.test(settings.token)) {
      throw new TypeError("a token is visible ASCII characters without spaces");
    }
    this.url = url.replace(/\/+$/, "");
    this.#settings = settings;
  }

  /**
   * Runs a call, or gets what is known of it. Throws OnceError.
   *
   * The same key is sent with every try. Without one, a key is made before the first try: then this is an intent of its
   * own, whatever the arguments. BY_ARGUMENTS leaves the key to the gateway.
   */
  async call<R = unknown>(tool: string, args: object, options: Options & { key?: Key } = {}): Promise<Result<R>> {
    if (tool === "") throw new TypeError("a tool has a name");
    const set = this.#settings;
    const request: CallRequest = { args: args as Record<string, unknown> };
    // A key made of arguments is forgotten after a while; this finds the call as long as it is stored.
    const made = options.key === BY_ARGUMENTS ? crypto.randomUUID() : undefined;
    const clientCallId = options.clientCallId || made;
    const ids = {
      client_call_id: clientCallId,
      session_id: options.sessionId ?? set.sessionId,
      user_id: options.userId ?? set.userId,
      saga_id: options.sagaId,
      trace_id: options.traceId,
      fencing_token: options.fencingToken,
      confirm_duplicate_of: options.confirmDuplicateOf,
    };
    const { body, key, keyMade } = prepare({ ...request, ...given(ids) }, options.key);
    const tries = new Tries(this.url, this.#patience(options.patienceMs), key, keyMade, clientCallId ?? null);
    const url = `${this.url}/v1/tools/${encodeURIComponent(tool)}/calls`;
    const { members, text } = await this.#ask(url, body, tries, options.signal);
    if (!("result" in members) || typeof members.call_id !== "string") {
      throw tries.isNoGateway("200 without `call_id` and `result`");
    }
    return {
      result: members.result as R,
      callId: members.call_id,
      replayed: members.replayed === true,
      key: typeof members.idempotency_key === "string" ? members.idempotency_key : null,
      ageMs: typeof members.age_ms === "number" ? members.age_ms : null,
      fencing: typeof members.fencing === "number" ? members.fencing : null,
      tries: tries.count,
      members,
      text,
    };
  }

  /**
   * A call that a model makes: its result, or what happened and what to do now, as a text.
   *
   * No key is made, because a model that tries again would get another one. The arguments make it.
   */
  async forModel(tool: string, args: object, options: Options = {}): Promise<string> {
    try {
      return resultForModel(await this.call(tool, args, { ...options, key: BY_ARGUMENTS }));
    } catch (error) {
      if (error instanceof OnceError) return outcomeForModel(error);
      if (error instanceof NotJson) return `Nothing was executed: ${error.message}. Correct them, and call again.`;
      throw error;
    }
  }

  /** The tools that this token may call, with the schemas that a model should see. */
  async tools(patienceMs?: number): Promise<Tool[]> {
    const tries = new Tries(this.url, this.#patience(patienceMs));
    const { members } = await this.#ask(`${this.url}/v1/tools`, null, tries, undefined);
    const tools = members.tools;
    if (!Array.isArray(tools) || !tools.every((one) => typeof one?.name === "string")) {
      throw tries.isNoGateway("200 without a list of tools");
    }
    return tools as Tool[];
  }

  /** A typed function for a tool. It runs nothing here: the gateway sends the call, or nobody does. */
  tool<A extends object, R = unknown>(spec: ToolSpec): TypedTool<A, R> {
    const send = async (args: A, options: Options = {}) =>
      (await this.call<R>(spec.name, args, { ...options, key: BY_ARGUMENTS })).result;
    // A function has a name of its own, which cannot be assigned.
    const members = Object.fromEntries(
      Object.entries(spec).map(([name, value]) => [name, { value, enumerable: true }]),
    );
    return Object.defineProperties(send, members) as unknown as TypedTool<A, R>;
  }

  #patience(patienceMs: number | undefined): number {
    return patienceMs ?? this.#settings.patienceMs ?? PATIENCE_MS;
  }

  async #ask(url: string, body: string | null, tries: Tries, signal: AbortSignal | undefined) {
    for (;;) {
      signal?.throwIfAborted();
      const { prefer, timeoutMs } = tries.begin();
      let step: Step;
      let text = "";
      try {
        const answer = await this.#fetch(url, body, prefer, timeoutMs, signal);
        text = answer.text;
        step = tries.answered(answer.status, answer.headers, text);
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof OnceError) throw error;
        step = tries.lost(why(error), error);
      }
      if ("members" in step) return { members: step.members, text };
      await pause(step.waitMs, signal);
    }
  }

  async #fetch(url: string, body: string | null, prefer: string, timeoutMs: number, signal: AbortSignal | undefined) {
    const { token } = this.#settings;
    const timeout = AbortSignal.timeout(timeoutMs);
    const answer = await (this.#settings.fetch ?? fetch)(url, {
      method: body === null ? "GET" : "POST",
      body,
      headers: {
        "content-type": "application/json",
        accept: "application/json",
        prefer,
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      },
      redirect: "manual",
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    return { status: answer.status, headers: answer.headers, text: await answer.text() };
  }
}

function given(members: Record<string, unknown>): Partial<CallRequest> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}

/** Node.js hides the reason in `cause`. */
function why(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    signal?.addEventListener("abort", end, { once: true });
  });
}
