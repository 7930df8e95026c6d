"""What goes over the wire, as /openapi.json of the gateway has it (a test compares both)."""

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

Effect: TypeAlias = Literal["none", "done", "unknown"]
KeyAction: TypeAlias = Literal["reuse", "rotate", "wait", "stop"]


class CallRequest(TypedDict):
    """The body of a request for a call."""

    args: dict[str, Any]
    client_call_id: NotRequired[str | None]
    confirm_duplicate_of: NotRequired[str | None]
    fencing_token: NotRequired[int | None]
    idempotency_key: NotRequired[str | None]
    saga_id: NotRequired[str | None]
    session_id: NotRequired[str | None]
    trace_id: NotRequired[str | None]
    user_id: NotRequired[str | None]


class CallResult(TypedDict):
    """The body of a success."""

    call_id: str
    status: Literal["ok"]
    result: Any
    latency_ms: int | None
    fencing: int | None
    idempotency_key: str
    replayed: bool
    age_ms: NotRequired[int]
    compensated: NotRequired[bool]
    compensating: NotRequired[bool]
    replayed_as_similar: NotRequired[bool]
    replayed_by_arguments: NotRequired[bool]
    saga_id: NotRequired[str]
    similar_to: NotRequired[str]


class Mistake(TypedDict):
    """One mistake in the arguments."""

    pointer: str
    detail: str


class ApprovalTimes(TypedDict):
    """When approval of a call was asked for, and until when it may be given."""

    asked_at: str
    expires_at: str


class Problem(TypedDict):
    """The body of a failure (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    call_id: str | None
    idempotency_key: str | None
    effect: Effect
    key_action: KeyAction
    retry_after_ms: int | None
    approval: NotRequired[ApprovalTimes]
    differs: NotRequired[list[str]]
    errors: NotRequired[list[Mistake]]
    similar_to: NotRequired[str]
    tool_body: NotRequired[Any]
    tool_status: NotRequired[int]


class Tool(TypedDict):
    """A tool in the answer of GET /v1/tools."""

    name: str
    description: str
    effect: Literal["read", "write"]
    input_schema: dict[str, Any]
    session: Literal["exclusive", "fenced", "shared"]
    key_sources: list[str]
    key_required: bool
    key_fields: list[str]
    key_ignore: list[str]
    dedup_window_ms: dict[str, int]
    retention_ms: int
