/** What goes over the wire, as /openapi.json of the gateway has it (a test compares both). */

/** The body of a request for a call. */
export interface CallRequest {
  args: Record<string, unknown>;
  client_call_id?: string | null;
  confirm_duplicate_of?: string | null;
  fencing_token?: number | null;
  idempotency_key?: string | null;
  saga_id?: string | null;
  session_id?: string | null;
  trace_id?: string | null;
  user_id?: string | null;
}

/** The body of a success. */
export interface CallResult {
  call_id: string;
  status: "ok";
  result: unknown;
  latency_ms: number | null;
  fencing: number | null;
  idempotency_key: string;
  replayed: boolean;
  age_ms?: number;
  compensated?: boolean;
  compensating?: boolean;
  replayed_as_similar?: boolean;
  replayed_by_arguments?: boolean;
  saga_id?: string;
  similar_to?: string;
}

/** One mistake in the arguments. */
export interface Mistake {
  pointer: string;
  detail: string;
}

/** When approval of a call was asked for, and until when it may be given. */
export interface ApprovalTimes {
  asked_at: string;
  expires_at: string;
}

export type Effect = "none" | "done" | "unknown";
export type KeyAction = "reuse" | "rotate" | "wait" | "stop";

/** The body of a failure (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  call_id: string | null;
  idempotency_key: string | null;
  effect: Effect;
  key_action: KeyAction;
  retry_after_ms: number | null;
  approval?: ApprovalTimes;
  differs?: string[];
  errors?: Mistake[];
  similar_to?: string;
  tool_body?: unknown;
  tool_status?: number;
}

/** A tool in the answer of GET /v1/tools. */
export interface Tool {
  name: string;
  description: string;
  effect: "read" | "write";
  input_schema: Record<string, unknown>;
  session: "exclusive" | "fenced" | "shared";
  key_sources: string[];
  key_required: boolean;
  key_fields: string[];
  key_ignore: string[];
  dedup_window_ms: Record<string, number>;
  retention_ms: number;
}
