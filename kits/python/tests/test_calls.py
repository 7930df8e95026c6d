"""Claims about calls: one effect each, whatever is lost."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from world import Both, World

import oncegate_client
from oncegate_client import BY_ARGUMENTS, OnceError, Problem, UnknownOutcome, outcome_for_model

ORDER = {"order": "1"}


def problem(error: OnceError) -> Problem:
    assert isinstance(error, Problem), repr(error)
    return error


def keys(world: World) -> list[str | None]:
    return [json.loads(body).get("idempotency_key") for body in world.line.bodies]


def test_the_package_as_built_is_tested() -> None:
    assert "site-packages" in Path(oncegate_client.__file__).parts


def test_the_same_key_is_one_effect(kit: Any, world: World) -> None:
    once = kit(world.gateway.url, session_id="s", user_id="u")
    first = once.call("order", ORDER, key="k-1")
    second = once.call("order", ORDER, key="k-1")
    assert (first.replayed, second.replayed) == (False, True)
    assert first.result == second.result == {"made": True, "large": 12345678901234567890}
    assert first.call_id == second.call_id
    assert second.age_ms is not None
    assert world.tool.effects == [ORDER]


def test_a_call_without_a_key_is_an_intent_of_its_own(kit: Any, world: World) -> None:
    once = kit(world.line.url)
    assert once.call("order", ORDER).call_id != once.call("order", ORDER).call_id
    first, second = keys(world)
    assert first
    assert second
    assert first != second
    assert len(world.tool.effects) == 2


@pytest.mark.parametrize("faults", [["drop"], ["cut", "drop"], ["nginx"], ["drop", "nginx", "cut"]])
def test_a_lost_answer_is_asked_for_with_the_same_key(kit: Any, world: World, faults: list[str]) -> None:
    once = kit(world.line.url)
    world.line.faults = list(faults)
    assert once.call("order", ORDER).result["made"] is True
    assert world.tool.effects == [ORDER]
    assert len(world.line.bodies) == len(faults) + 1
    assert len(set(world.line.bodies)) == 1, "the same bytes each time"


def test_no_answer_within_the_patience_is_an_unknown_outcome(kit: Any, world: World) -> None:
    world.gateway.stop()
    once = kit(world.gateway.url, patience=1)
    begun = time.monotonic()
    error = once.fails("order", ORDER)
    assert time.monotonic() - begun < 12
    assert isinstance(error, UnknownOutcome)
    assert (error.effect, error.key_action) == ("unknown", "reuse")
    assert error.key
    assert error.key_made
    assert error.key in str(error)
    assert "may have happened" in outcome_for_model(error)
    assert error.key not in outcome_for_model(error)
    world.gateway.start()
    once.call("order", ORDER, key=error.key)
    assert once.call("order", ORDER, key=error.key).replayed
    assert world.tool.effects == [ORDER]


def test_a_lost_answer_is_unknown_at_the_end(kit: Any, world: World) -> None:
    once = kit(world.line.url, patience=0)
    world.line.faults = ["drop"]
    error = once.fails("order", ORDER)
    assert isinstance(error, UnknownOutcome)
    assert len(world.line.bodies) == 1
    assert once.call("order", ORDER, key=error.key).replayed
    assert world.tool.effects == [ORDER]


def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_happened(kit: Any, world: World) -> None:
    once = kit(world.line.url)
    world.line.faults = ["drop", "unauthenticated"]
    error = once.fails("order", ORDER)
    assert isinstance(error, UnknownOutcome)
    assert error.effect == "unknown"
    assert world.tool.effects == [ORDER]


def test_a_gateway_that_is_killed_and_started_again(kit: Any, world: World) -> None:
    world.tool.does = ["slow"]
    once = kit(world.line.url)
    restart = threading.Thread(target=world.gateway.restart, args=(world.tool,))
    restart.start()
    result = once.call("sure", ORDER)
    restart.join()
    assert result.result["made"] is True
    assert world.tool.effects == [ORDER]
    assert len(set(world.line.bodies)) == 1


def test_a_gateway_that_was_killed_may_not_know(kit: Any, world: World) -> None:
    world.tool.does = ["slow"]
    once = kit(world.line.url, patience=6)
    restart = threading.Thread(target=world.gateway.restart, args=(world.tool,))
    restart.start()
    error = problem(once.fails("order", ORDER))
    restart.join()
    assert (error.slug, error.effect) == ("outcome-unknown", "unknown")
    assert world.tool.effects == [ORDER]


def test_a_held_call_is_unknown_until_a_person_settles_it(kit: Any, world: World) -> None:
    world.tool.does = ["drop"]
    once = kit(world.gateway.url, patience=1)
    error = problem(once.fails("order", ORDER, key="k"))
    assert (error.slug, error.effect, error.key_action, error.retry_after_ms) == (
        "outcome-unknown",
        "unknown",
        "wait",
        None,
    )
    assert (error.key, error.status) == ("k", 409)
    text = outcome_for_model(error)
    assert error.call_id
    assert error.call_id in text
    # The id is random, and may hold these digits itself.
    assert "409" not in text.replace(error.call_id, "")
    assert "never executes it twice" in text
    settled = {"as": "succeeded", "result": {"made": "by hand"}, "reason": "it is there"}
    world.gateway.ask(f"/v1/calls/{error.call_id}/resolve", settled)
    assert once.call("order", ORDER, key="k").result == {"made": "by hand"}
    assert world.tool.effects == [ORDER]


def test_an_unknown_outcome_is_waited_for(kit: Any, world: World) -> None:
    world.tool.does = ["drop", "drop"]
    assert kit(world.gateway.url).call("sure", ORDER).result["made"] is True
    assert world.tool.effects == [ORDER]


def test_a_call_in_progress_is_waited_for(kit: Any, world: World) -> None:
    world.tool.does = ["slow"]
    impatient = kit(world.gateway.url, patience=0.2)
    error = problem(impatient.fails("order", ORDER, key="k"))
    assert (error.slug, error.key_action, error.effect) == ("call-in-progress", "reuse", "unknown")
    assert kit(world.gateway.url).call("order", ORDER, key="k").replayed
    assert world.tool.effects == [ORDER]


def test_two_at_once_are_one_effect(kit: Any, world: World) -> None:
    world.tool.does = ["slow"]
    results: list[Any] = []
    clients: list[Both] = [kit(world.gateway.url) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda one=one: results.append(one.call("order", ORDER, key="k"))) for one in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.call_id for result in results}) == 1
    assert world.tool.effects == [ORDER]


def test_a_key_of_another_call_is_refused(kit: Any, world: World) -> None:
    once = kit(world.gateway.url)
    once.call("order", ORDER, key="k")
    error = problem(once.fails("order", {"order": "2"}, key="k"))
    assert (error.slug, error.key_action, error.effect) == ("key-reused", "rotate", "none")
    assert error.differs == ["/order"]
    assert world.tool.effects == [ORDER]


def test_a_budget_is_waited_for_within_the_patience(kit: Any, world: World) -> None:
    once = kit(world.gateway.url, session_id="s")
    once.call("scarce", {"order": "1"})
    begun = time.monotonic()
    error = problem(once.fails("scarce", {"order": "2"}, key="k", patience=0.5))
    assert error.retry_after_ms
    assert time.monotonic() - begun < error.retry_after_ms / 1000, (
        "a wait that is longer than the patience is not begun"
    )
    assert error.slug == "budget-exceeded"
    assert "s with exactly the same arguments" in outcome_for_model(error)
    once.call("scarce", {"order": "2"}, key="k")
    assert world.tool.effects == [{"order": "1"}, {"order": "2"}]


def test_a_rejection_has_what_the_tool_said(kit: Any, world: World) -> None:
    world.tool.does = ["reject"]
    error = problem(kit(world.gateway.url).fails("order", ORDER))
    assert (error.slug, error.tool_status, error.tool_body) == ("tool-rejected", 422, {"reason": "no such article"})
    assert outcome_for_model(error).endswith('The tool said: {"reason": "no such article"}')
    assert world.tool.effects == []


def test_arguments_that_do_not_fit_are_named(kit: Any, world: World) -> None:
    error = problem(kit(world.gateway.url).fails("careful", {"order": 1}))
    assert (error.slug, error.errors[0]["pointer"]) == ("invalid-arguments", "/order")
    assert problem(kit(world.gateway.url).fails("careful", ORDER, key=BY_ARGUMENTS)).slug == "key-missing"
    assert problem(kit(world.gateway.url).fails("nothing", {})).slug == "unknown-tool"


def test_a_model_is_asked_for_a_key_where_one_is_required(kit: Any, world: World) -> None:
    once = kit(world.gateway.url)
    text = once.for_model("careful", ORDER)
    assert "argument idempotency_key" in text
    assert "header" not in text
    for _ in range(2):
        assert '"made": true' in once.for_model("careful", {**ORDER, "idempotency_key": "order-1"})
    assert world.tool.effects == [ORDER]


def test_what_is_not_json_is_said_to_a_model(kit: Any, world: World) -> None:
    assert kit(world.line.url).for_model("order", {"order": float("inf")}).startswith("Nothing was executed")
    assert world.line.bodies == []


def test_a_client_for_another_user_is_the_same_client(kit: Any, world: World) -> None:
    both = kit(world.line.url, user_id="u", session_id="s")
    other = both.once.using(user_id="v")
    both.run(other.call("order", ORDER, key=BY_ARGUMENTS))
    both.run(other.close())
    both.call("order", ORDER, key=BY_ARGUMENTS)
    ids = [(one["user_id"], one["session_id"]) for one in map(json.loads, world.line.bodies)]
    assert ids == [("v", "s"), ("u", "s")]
    assert len(world.tool.effects) == 2


def test_what_a_model_repeats_is_one_effect(kit: Any, world: World) -> None:
    once = kit(world.line.url, patience=1)
    world.tool.does = ["drop"]
    text = once.for_model("order", ORDER, client_call_id="t:1")
    assert "may or may not have executed" in text
    assert "only the program" not in text
    assert "may or may not have executed" in once.for_model("order", ORDER, client_call_id="t:2")
    assert once.for_model("order", {"order": "2"}).startswith('{"made"')
    assert once.for_model("order", {"order": "2"}).startswith("Stored result of this same call")
    assert set(keys(world)) == {None}
    assert world.tool.effects == [ORDER, {"order": "2"}]


def test_an_answer_to_the_second_try_is_no_stored_result_to_a_model(kit: Any, world: World) -> None:
    world.line.faults = ["drop"]
    assert kit(world.line.url).for_model("order", ORDER).startswith('{"made"')
    assert world.tool.effects == [ORDER]


def test_a_try_after_the_window_of_its_arguments_has_no_second_effect(kit: Any, world: World) -> None:
    world.line.faults = ["late"]
    text = kit(world.line.url).for_model("short", ORDER)
    assert "the same call was made with this key before" in text
    assert world.tool.effects == [ORDER]


def test_the_model_is_not_told_to_repeat_a_call_whose_key_it_has_not(kit: Any, world: World) -> None:
    world.tool.does = ["drop"]
    error = kit(world.gateway.url, patience=0).fails("order", ORDER)
    assert "only the program that has its key" in outcome_for_model(error)


def test_arguments_are_read_once(kit: Any, world: World) -> None:
    once = kit(world.line.url)
    args = {"order": "1"}
    world.line.faults = ["cut", "cut"]
    changes = threading.Timer(0.05, lambda: args.update(order="2"))
    changes.start()
    once.call("order", args)
    changes.join()
    assert world.tool.effects == [ORDER]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (ORDER, {"key": ""}),
        (ORDER, {"key": "a b"}),
        (ORDER, {"key": "k" * 256}),
        (ORDER, {"key": "é"}),
        (ORDER, {"patience": -1}),
        (ORDER, {"patience": float("nan")}),
        (ORDER, {"idempotency": "k"}),
        ({"order": float("nan")}, {}),
        ({"order": object()}, {}),
    ],
)
def test_what_cannot_be_sent_is_not_sent(kit: Any, world: World, args: Any, options: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        kit(world.line.url).call("order", args, **options)
    assert world.line.bodies == []


def test_a_token_is_not_shown() -> None:
    once = oncegate_client.Once("http://127.0.0.1:1", token="secret")
    assert "secret" not in repr(once)
    for token in ["", "a b", "é", "a\nb"]:
        with pytest.raises(ValueError, match="a token is"):
            oncegate_client.Once("http://127.0.0.1:1", token=token)
    for url in ["127.0.0.1:8080", "ftp://example.org", "http://"]:
        with pytest.raises(ValueError, match="the URL of a gateway"):
            oncegate_client.Once(url)
