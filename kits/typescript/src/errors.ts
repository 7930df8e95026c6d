/** Why a call has no result. */

import type { Effect, KeyAction, Mistake } from "./wire.js";

type Members = Record<string, unknown>;

/** A call without a result. `effect` says whether the world may have changed. */
export class OnceError extends Error {
  effect: Effect = "unknown";
  keyAction: KeyAction = "stop";
  callId: string | null = null;
  retryAfterMs: number | null = null;
  /** The key that every try was sent with; null if the arguments make the key. */
  key: string | null = null;
  /** Whether the kit made that key. Only who has the key can send this call again. */
  keyMade = false;
  clientCallId: string | null = null;
  readonly detail: string;

  constructor(detail: string, options?: ErrorOptions) {
    super(detail, options);
    this.detail = detail;
    this.name = new.target.name;
  }
}

/** The gateway's own answer (RFC 9457). Members that it does not have are null. */
export class ProblemError extends OnceError {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly errors: Mistake[];
  readonly differs: string[];
  readonly toolStatus: number | null;
  /** The tool's answer; undefined if there is none. */
  readonly toolBody: unknown;
  readonly similarTo: string | null;
  readonly members: Readonly<Members>;

  constructor(status: number, members: Members, retryAfterMs: number | null) {
    super(text(members.detail) ?? text(members.title) ?? `the gateway answered ${status}`);
    this.type = text(members.type) ?? "about:blank";
    this.message = `${this.slug} (${status}): ${this.detail}`;
    this.title = text(members.title) ?? "";
    this.status = status;
    // What an older or a newer gateway does not say in our words proves nothing.
    const { effect, key_action: action } = members;
    this.effect = effect === "none" || effect === "done" ? effect : "unknown";
    this.keyAction = action === "reuse" || action === "rotate" || action === "wait" ? action : "stop";
    this.callId = text(members.call_id);
    this.retryAfterMs = retryAfterMs;
    this.errors = list<Mistake>(members.errors);
    this.differs = list<string>(members.differs);
    this.toolStatus = typeof members.tool_status === "number" ? members.tool_status : null;
    this.toolBody = members.tool_body;
    this.similarTo = text(members.similar_to);
    this.members = members;
  }

  /** The last part of `type`, such as `outcome-unknown`. */
  get slug(): string {
    return this.type.slice(this.type.lastIndexOf("/") + 1);
  }
}

/**
 * No answer came within the patience. The call may have been executed.
 *
 * To come again, send the same call with `key` (or, if that is null, the same arguments) and `clientCallId`.
 */
export class UnknownOutcome extends OnceError {
  override keyAction: KeyAction = "reuse";
}

/** What answered at the URL is not oncegate. */
export class NotAGateway extends OnceError {}

function text(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

function list<T>(value: unknown): T[] {
  return Array.isArray(value) ? value : [];
}
