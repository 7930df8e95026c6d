"""What a model should see of a call."""

from __future__ import annotations

import json
import math

from ._call import Result
from ._errors import NotAGateway, OnceError, Problem, UnknownOutcome

#: The gateway takes this argument out of the arguments again.
ASKS_FOR_A_KEY = (
    "Nothing was executed: this tool takes no call without an idempotency key. Call it again with the same arguments "
    "and the argument idempotency_key: a new unique text, such as a UUID. Give the same one whenever "
    "you repeat that call."
)


def outcome_for_model(problem: OnceError) -> str:
    """What happened and what to do now, in words for a model: never a status, never "409 Conflict"."""
    parts = [problem.detail, _advice(problem)]
    if isinstance(problem, UnknownOutcome):
        # Its detail is for programs: it names addresses and keys.
        parts[0] = "It may have happened: no answer came, and nothing proves whether the call was executed."
    if isinstance(problem, NotAGateway):
        parts[0] = "The tool cannot be reached as this program is set up. Nothing proves whether the call was executed."
    if isinstance(problem, Problem) and problem.slug == "key-missing":
        # Its detail names a header, which a model cannot set.
        parts = [ASKS_FOR_A_KEY]
    if problem.call_id and problem.call_id not in problem.detail:
        parts.append(f"The id of the call is {problem.call_id}.")
    text = " ".join(part for part in parts if part)
    if isinstance(problem, Problem) and problem.tool_body is not None:
        text += f"\n\nThe tool said: {json.dumps(problem.tool_body, ensure_ascii=False)}"
    return text


def _advice(problem: OnceError) -> str:
    if problem.key_action == "stop":
        return "Do not make this call again, and do not look for another way to the same effect. Tell the user."
    if problem.key_action == "rotate":
        if problem.effect == "unknown":
            return "Do not make this call again before it is known what became of the earlier one. Tell the user."
        return "If you correct the arguments, that is a new call."
    if problem.key_made and problem.effect == "unknown":
        # Another call would have another key, and be another intent.
        return "Do not make this call again yourself: only the program that has its key can ask safely. Tell the user."
    after = problem.retry_after_ms
    when = f" after {math.ceil(after / 1000)} s" if after else ""
    if problem.effect == "unknown":
        return (
            f"Making this call again{when} with exactly the same arguments never executes it twice. "
            "Never use other arguments or another tool for it."
        )
    if after is None:
        return "Correct what the text above names, if you can; otherwise tell the user."
    return f"You may make this call again{when} with exactly the same arguments."


def result_for_model(result: Result) -> str:
    """The tool's JSON, and before it what a model must know: that nothing was executed again, or is undone."""
    told = []
    if result.replayed and result.tries == 1:
        age = "" if result.age_ms is None else f", {math.ceil(result.age_ms / 1000)} s ago"
        told.append(f"Stored result of this same call{age}; nothing was executed again.")
    if result.members.get("replayed_as_similar") is True:
        told.append("It is the result of a similar call that was made before.")
    if result.members.get("compensated") is True or result.members.get("compensating") is True:
        told.append("What this call did is undone or being undone: do not build on it.")
    if isinstance(similar := result.members.get("similar_to"), str):
        told.append(f"A similar call was made shortly before: {similar}.")
    body = json.dumps(result.result, ensure_ascii=False)
    return f"{' '.join(told)}\n\n{body}" if told else body
