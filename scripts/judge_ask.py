"""How agents ask: over HTTP, MCP and a proxy, and what an answer says about the call."""

import gzip
import json
import random
from dataclasses import dataclass, field

from judge_gateways import KEYLESS, bearer
from judge_history import OF_THE_CALL

ROUTES = {
    "hold": ("body", "header", "mcp"), "probe": ("body", "mcp"), "retry": ("header", "mcp"), "strict": ("header", "mcp"), "lock": ("body",), "book": ("body",),
    "order": ("other key", "no key", "mcp"), "plain": ("no key", "mcp without key", "mcp"), "veiled": ("no key", "mcp without key", "mcp"), "api": ("proxy",), "zip": ("proxy without key",),
    "remote": ("body", "header", "mcp"), "distant": ("header", "mcp"),
}
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
MCP_META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


@dataclass
class Intent:
    name: str
    tool: str
    args: dict
    session: str | None = None
    saga: str | None = None
    # Whose it is, and by which name agents ask for it. Two tenants have the same key at times.
    tenant: str = "one"
    key: str = ""
    user: str = ""
    # Whether no other tenant has a call of this key.
    is_alone: bool = True
    call_id: str | None = None
    asked_at: float = 0
    # Whether the last answer left open what is so.
    is_open: bool = False
    # Which gateways' answers it has had.
    answers: list = field(default_factory=list)

    def with_args(self, variant):
        return {**self.args, "variant": variant} if variant else self.args


@dataclass
class Answer:
    status: int
    slug: str = ""
    effect: str | None = None
    result: str | None = None
    whole: dict | None = None
    replayed: bool = False
    fencing: int | None = None
    call_id: str | None = None
    is_done: bool = False

    @property
    def is_none(self):
        return self.effect == "none" and self.slug in OF_THE_CALL

    @property
    def is_unknown(self):
        return self.slug == "outcome-unknown"

    @property
    def kind(self):
        return "done" if self.is_done else "none" if self.is_none else "unknown" if self.is_unknown else self.slug or "no answer"


def ask(gateway, intent, route, variant=0, fencing=None, timeout=5):
    args, tool = intent.with_args(variant), intent.tool
    if tool == "plain" and is_heads():
        # As frameworks send what a model left out: the same intent.
        args = {**args, "note": None}
    whose = bearer(intent.tenant)
    if route == "proxy":
        return of_proxy(*gateway.ask("POST", "/proxy/api/things", args, {**whose, "idempotency-key": intent.key}, timeout))
    if route == "proxy without key":
        # The same content, and other bytes each time.
        packed = gzip.compress(json.dumps(args).encode(), random.SystemRandom().randrange(10))
        return of_proxy(*gateway.ask("POST", "/proxy/zip/things", packed, {**whose, "content-encoding": "gzip"}, timeout))
    if route.startswith("mcp"):
        key = {} if "without" in route else {"idempotency_key": intent.key if tool not in (*KEYLESS, "order") else some_key()}
        message = {"name": tool, "arguments": {**args, **key}, "_meta": MCP_META}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": message}
        return of_mcp(*gateway.ask("POST", "/mcp", message, {**MCP, **whose, "mcp-name": tool}, timeout))
    body, headers = {"args": args, "user_id": intent.user}, whose
    if route == "body":
        body["idempotency_key"] = intent.key
    elif route == "header":
        headers["idempotency-key"] = intent.key
    elif route == "other key":
        body["idempotency_key"] = some_key()
    for member in ("session", "saga"):
        if of := getattr(intent, member):
            body[f"{member}_id"] = of
    if fencing is not None:
        body["fencing_token"] = fencing
    return of_http(*gateway.ask("POST", f"/v1/tools/{tool}/calls", body, headers, timeout))


def is_heads():
    return bool(random.SystemRandom().randrange(2))


def some_key():
    return f"made-up-{random.SystemRandom().randrange(10**12)}"


def of_http(status, headers, body):
    if not isinstance(body, dict):
        return Answer(status)
    if status == 200:
        return done(status, body["result"], body["replayed"], body["fencing"], body["call_id"])
    return of_problem(status, body)


def of_problem(status, body):
    slug = str(body.get("type", "")).rpartition("/")[2]
    answer = Answer(status, slug, body.get("effect"), call_id=body.get("call_id"))
    # Executed, and its result is not to be had.
    answer.is_done = answer.effect == "done"
    return answer


def of_mcp(status, headers, body):
    result = body.get("result") if isinstance(body, dict) else None
    if not isinstance(result, dict):
        return of_problem(status, body) if isinstance(body, dict) else Answer(status)
    meta = result.get("_meta", {})
    if problem := meta.get("dev.oncegate/problem"):
        return of_problem(status, problem)
    if result.get("isError"):
        return Answer(status, "an error")
    replayed = bool(meta.get("dev.oncegate/replayed"))
    return done(status, result["structuredContent"], replayed, meta.get("dev.oncegate/fencing-token"), meta.get("dev.oncegate/call-id"))


def of_proxy(status, headers, body):
    if status == 0:
        return Answer(0)
    if "problem+json" in (headers.get("content-type") or ""):
        return of_problem(status, body)
    if status == 200 and isinstance(body, dict):
        return done(status, body, headers.get("idempotent-replayed") == "true", None, headers.get("x-call-id"))
    is_none = headers.get("gateway-outcome") == "not-executed"
    return Answer(status, "tool-rejected", "none" if is_none else "unknown", call_id=headers.get("x-call-id"))


def done(status, result, replayed, fencing, call_id):
    if isinstance(result, dict) and "structuredContent" in result:
        result = result["structuredContent"]
    if not isinstance(result, dict) or "effect" not in result:
        result = {"effect": f"no result of the tool: {result}"}
    return Answer(status, "", "done", result["effect"], result, replayed, fencing, call_id, True)
