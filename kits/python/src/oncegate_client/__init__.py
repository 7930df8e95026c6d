"""Calls of tools through an oncegate gateway: one intent, at most one side effect."""

from ._call import BY_ARGUMENTS, Result
from ._client import AsyncOnce, AsyncTool, Once, Options, Tool
from ._errors import NotAGateway, OnceError, Problem, UnknownOutcome
from ._text import outcome_for_model, result_for_model

__all__ = [
    "BY_ARGUMENTS",
    "AsyncOnce",
    "AsyncTool",
    "NotAGateway",
    "Once",
    "OnceError",
    "Options",
    "Problem",
    "Result",
    "Tool",
    "UnknownOutcome",
    "outcome_for_model",
    "result_for_model",
]
