"""The promise, as a caller may take it from the first page: what scripts/judge holds a gateway to after each answer.

It knows nothing of states, leases or stores. An intent is whatever the caller means as one; `effects` are the tool's own books.
"""

import os

# The checker alone is to find it, or the model alone: scripts/judge planted.
BY_MODEL, BY_CHECKER = os.environ.get("JUDGE_BY") != "checker", os.environ.get("JUDGE_BY") != "model"


class Broken(AssertionError):
    """The promise was not kept."""


class Promise:
    def __init__(self, effects):
        self.effects, self.told, self.forgotten = effects, {}, {}
        # Whether the store may have older data, which no operator has accepted yet. Then a success may be called unknown.
        self.is_older = False

    def asked(self, intent):
        """What is so when a request is sent, which its answer must not contradict."""
        return len(self.made(intent)), self.told.get(intent)

    def made(self, intent):
        """Its effects since an operator last accepted that the store had lost it."""
        return self.effects(intent)[self.forgotten.get(intent, 0) :]

    def answered(self, intent, answer, at_first):
        made_before, told_before = at_first
        made = [effect["effect"] for effect in self.made(intent)]
        if len(made) > 1:
            raise Broken(f"{intent} has {len(made)} effects: {made}")
        # What the store still knows of the time before a loss may be told.
        known = {*made} if made and not self.is_older else {effect["effect"] for effect in self.effects(intent)}
        if answer.is_done and answer.result and answer.result not in known:
            raise Broken(f"{intent}: told the result {answer.result}, and there is {made}")
        if answer.is_none and made_before:
            raise Broken(f"{intent}: told that nothing was executed, and there was {made}: {answer}")
        if self.is_older:
            return
        if told_before and (answer.is_none or answer.is_unknown):
            raise Broken(f"{intent}: told {told_before}, and later {answer}")
        if answer.is_done and answer.result:
            self.told[intent] = answer.result

    def lost(self, intent):
        """The store has lost it, and an operator has accepted that: it may be executed once more."""
        self.told.pop(intent, None)
        self.forgotten[intent] = len(self.effects(intent))
