"""Leads most requests of `make fuzz` to what there is: the demo's tools, orders that fit their schemas,
and calls that were made. Names that are made up alone would be answered with 404 each time."""

import random

import schemathesis

DICE = random.Random(1)
CALLS = []
LONG_WAITS = [str(seconds) for seconds in range(2, 61)]
ARGS = {
    "create_order": lambda: {"business_id": f"B-{DICE.randrange(40)}", "sku": "widget", "quantity": 1, "amount_cents": DICE.randrange(3)},
    "cancel_order": lambda: {"order_id": "ord_none"},
    "take_payment": lambda: {"order_id": "ord_none", "amount_cents": 5, "idempotency_key": f"k-{DICE.randrange(9)}"},
    "refund_payment": lambda: {"payment_id": "pay_none"},
    "find_order": lambda: {"order_id": "ord_none"},
}


@schemathesis.hook
def before_call(context, case, kwargs):
    # A pause of a tool of the demo, whose name is in other answers, would make each later call a 503.
    if case.path.endswith(("/pause", "/resume")) and isinstance(case.path_parameters, dict):
        if case.path_parameters.get("tool") in ARGS:
            case.path_parameters["tool"] = "idle"
    # And nothing calls the tool that is paused, also where a link leads to it.
    elif isinstance(case.path_parameters, dict) and case.path_parameters.get("tool") == "idle":
        case.path_parameters["tool"] = DICE.choice(sorted(ARGS))
    # Each of these requests would wait so long for a call that nothing settles.
    if case.path.endswith("/answer") and isinstance(case.query, dict) and str(case.query.get("wait")) in LONG_WAITS:
        case.query["wait"] = 1
    # What the document refuses is sent as it is: the gateway must refuse it, too.
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return
    if not isinstance(case.path_parameters, dict) or DICE.random() < 0.2:
        return
    if case.path.endswith(("/pause", "/resume")):
        case.path_parameters["tool"] = "idle"
    elif "tool" in case.path_parameters:
        tool = DICE.choice(sorted(ARGS))
        case.path_parameters["tool"] = tool
        if isinstance(case.body, dict) and isinstance(case.body.get("args"), dict) and DICE.random() < 0.7:
            case.body["args"] = ARGS[tool]()
            # Two keys that differ are refused, and random ones always do.
            case.body.pop("idempotency_key", None)
            case.body["session_id"] = f"S-{DICE.randrange(3)}"
    elif "/calls/" in case.path and CALLS:
        case.path_parameters["id"] = DICE.choice(CALLS)


@schemathesis.hook
def after_call(context, case, response):
    call_id = response.headers.get("x-call-id")
    if call_id:
        CALLS.append(call_id[0] if isinstance(call_id, list) else call_id)
