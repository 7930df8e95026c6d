"""The client, and its asynchronous twin."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutinefunction
from typing import Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

import httpx

from . import _wire
from ._call import BY_ARGUMENTS, Call, Key, NotJson, Result, Tries
from ._errors import OnceError
from ._text import outcome_for_model, result_for_model
from ._tool import Signature

P = ParamSpec("P")
R = TypeVar("R")

#: How long a call may take with all its tries, in seconds.
PATIENCE_S = 30.0


class Options(TypedDict, total=False):
    """What a call may bring beside its key."""

    client_call_id: str | None
    session_id: str | None
    user_id: str | None
    saga_id: str | None
    trace_id: str | None
    fencing_token: int | None
    confirm_duplicate_of: str | None
    patience: float | None


class _Settings:
    """What both clients share."""

    _own: bool

    def __init__(
        self, url: str, token: str | None, session_id: str | None, user_id: str | None, patience: float
    ) -> None:
        if httpx.URL(url).scheme not in ("http", "https") or not httpx.URL(url).host:
            raise ValueError(f"the URL of a gateway begins with http:// or https://, and this one is {url!r}")
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError("a token is visible ASCII characters without spaces")
        self.url = url.rstrip("/")
        self.session_id, self.user_id, self.patience = session_id, user_id, patience
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def using(self, *, session_id: str | None = None, user_id: str | None = None) -> Self:
        """The same client for another session or user, over the same connections."""
        other = copy.copy(self)
        other._own = False
        other.session_id = self.session_id if session_id is None else session_id
        other.user_id = self.user_id if user_id is None else user_id
        return other

    def _prepare(self, tool: str, args: Mapping[str, Any], key: Key, options: Options) -> Call:
        if unknown := set(options) - set(Options.__annotations__):
            raise TypeError(f"a call has no option {', '.join(sorted(unknown))}")
        ids: dict[str, Any] = {"session_id": self.session_id, "user_id": self.user_id}
        ids |= {name: value for name, value in options.items() if name != "patience" and value is not None}
        patience = options.get("patience")
        return Call.new(self.url, tool, args, key, self.patience if patience is None else patience, ids)

    def _begin(self, method: str, url: str, body: bytes | None, tries: Tries) -> tuple[dict[str, Any], float]:
        """The arguments of httpx for the next try, and when it is given up."""
        headers, timeout = tries.begin()
        request = {"method": method, "url": url, "content": body, "headers": self._headers | headers}
        limits = {"timeout": httpx.Timeout(timeout, connect=min(timeout, 5.0)), "follow_redirects": False}
        return request | limits, time.monotonic() + timeout


def _read(answer: httpx.Response, parts: list[bytes], tries: Tries) -> tuple[dict[str, Any] | float, str]:
    text = b"".join(parts).decode("utf-8", "replace")
    return tries.answered(answer.status_code, answer.headers, text), text


def _in_time(part: bytes, gives_up: float) -> bytes:
    if time.monotonic() > gives_up:
        raise httpx.ReadTimeout("the answer is too slow")
    return part


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _listed(members: dict[str, Any], tries: Tries) -> list[_wire.Tool]:
    tools = members.get("tools")
    if not isinstance(tools, list) or not all(isinstance(one, dict) and "name" in one for one in tools):
        raise tries.is_no_gateway("200 without a list of tools")
    return cast(list[_wire.Tool], tools)


class Tool(Generic[P, R]):
    """A typed function as a tool. A call goes to the gateway; the body of the function is never run."""

    def __init__(self, once: Once, function: Callable[P, R], name: str | None) -> None:
        if iscoroutinefunction(function):
            raise TypeError("Once takes plain functions, and AsyncOnce those with async")
        self._once, self._signature = once, Signature(function, name)
        self.name, self.description = self._signature.name, self._signature.description
        self.input_schema = self._signature.input_schema

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The tool's result. The arguments make the key: equal calls are one call."""
        sent = self._signature.arguments(args, kwargs)
        return cast(R, self._once.call(self.name, sent, key=BY_ARGUMENTS).result)

    def call(self, args: Mapping[str, Any], key: Key = None, **options: Unpack[Options]) -> Result:
        """The same with a key of its own, and with all that the gateway answers."""
        return self._once.call(self.name, args, key=key, **options)


class AsyncTool(Generic[P, R]):
    """As Tool, for functions with async."""

    def __init__(self, once: AsyncOnce, function: Callable[P, Coroutine[Any, Any, R]], name: str | None) -> None:
        if not iscoroutinefunction(function):
            raise TypeError("AsyncOnce takes functions with async, and Once plain ones")
        self._once, self._signature = once, Signature(function, name)
        self.name, self.description = self._signature.name, self._signature.description
        self.input_schema = self._signature.input_schema

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The tool's result. The arguments make the key: equal calls are one call."""
        sent = self._signature.arguments(args, kwargs)
        return cast(R, (await self._once.call(self.name, sent, key=BY_ARGUMENTS)).result)

    async def call(self, args: Mapping[str, Any], key: Key = None, **options: Unpack[Options]) -> Result:
        """The same with a key of its own, and with all that the gateway answers."""
        return await self._once.call(self.name, args, key=key, **options)


class Once(_Settings):
    """Calls tools through a gateway: one intent, at most one side effect.

    A `client` of your own (proxies, certificates) is used and not closed.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        *,
        patience: float = PATIENCE_S,
        client: httpx.Client | None = None,
    ) -> None:
        super().__init__(url, token, session_id, user_id, patience)
        self._own, self._http = client is None, client or httpx.Client()

    def __enter__(self) -> Once:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._own:
            self._http.close()

    def call(self, tool: str, args: Mapping[str, Any], *, key: Key = None, **options: Unpack[Options]) -> Result:
        """Runs a call, or gets what is known of it. Raises OnceError.

        The same key is sent with every try. Without one, a key is made before the first try: then this is an
        intent of its own, whatever the arguments. BY_ARGUMENTS leaves the key to the gateway.
        """
        call = self._prepare(tool, args, key, options)
        members, text = self._ask("POST", call.path, call.body, call.tries)
        return call.result(members, text)

    def for_model(self, tool: str, args: Mapping[str, Any], **options: Unpack[Options]) -> str:
        """A call that a model makes: its result, or what happened and what to do now, as a text.

        No key is made, because a model that tries again would get another one. The arguments make it.
        """
        try:
            return result_for_model(self.call(tool, args, key=BY_ARGUMENTS, **options))
        except OnceError as problem:
            return outcome_for_model(problem)
        except NotJson as error:
            return f"Nothing was executed: {error}. Correct them, and call again."

    def tools(self, patience: float | None = None) -> list[_wire.Tool]:
        """The tools that this token may call, with the schemas that a model should see."""
        tries = Tries(self.url, self.patience if patience is None else patience, None, False, None)
        return _listed(self._ask("GET", f"{self.url}/v1/tools", None, tries)[0], tries)

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    @overload
    def tool(self, function: None = None, /, *, name: str | None = None) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
    def tool(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Makes a tool of a typed function. Its body is never run: the gateway sends the call, or nobody does."""
        return Tool(self, function, name) if function else lambda one: Tool(self, one, name)

    def _ask(self, method: str, url: str, body: bytes | None, tries: Tries) -> tuple[dict[str, Any], str]:
        while True:
            request, gives_up = self._begin(method, url, body, tries)
            try:
                with self._http.stream(**request) as answer:
                    parts = [_in_time(part, gives_up) for part in answer.iter_bytes()]
            except httpx.RequestError as error:
                time.sleep(tries.lost(_why(error), error))
                continue
            step, text = _read(answer, parts, tries)
            if isinstance(step, dict):
                return step, text
            time.sleep(step)


class AsyncOnce(_Settings):
    """As Once, for asyncio. A caller that is cancelled ends its own wait, and not the call."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        *,
        patience: float = PATIENCE_S,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(url, token, session_id, user_id, patience)
        self._own, self._http = client is None, client or httpx.AsyncClient()

    async def __aenter__(self) -> AsyncOnce:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._own:
            await self._http.aclose()

    async def call(self, tool: str, args: Mapping[str, Any], *, key: Key = None, **options: Unpack[Options]) -> Result:
        """See Once.call."""
        call = self._prepare(tool, args, key, options)
        members, text = await self._ask("POST", call.path, call.body, call.tries)
        return call.result(members, text)

    async def for_model(self, tool: str, args: Mapping[str, Any], **options: Unpack[Options]) -> str:
        """See Once.for_model."""
        try:
            return result_for_model(await self.call(tool, args, key=BY_ARGUMENTS, **options))
        except OnceError as problem:
            return outcome_for_model(problem)
        except NotJson as error:
            return f"Nothing was executed: {error}. Correct them, and call again."

    async def tools(self, patience: float | None = None) -> list[_wire.Tool]:
        """See Once.tools."""
        tries = Tries(self.url, self.patience if patience is None else patience, None, False, None)
        return _listed((await self._ask("GET", f"{self.url}/v1/tools", None, tries))[0], tries)

    @overload
    def tool(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...
    @overload
    def tool(
        self, function: None = None, /, *, name: str | None = None
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], AsyncTool[P, R]]: ...
    def tool(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """See Once.tool."""
        return AsyncTool(self, function, name) if function else lambda one: AsyncTool(self, one, name)

    async def _ask(self, method: str, url: str, body: bytes | None, tries: Tries) -> tuple[dict[str, Any], str]:
        while True:
            request, gives_up = self._begin(method, url, body, tries)
            try:
                async with self._http.stream(**request) as answer:
                    parts = [_in_time(part, gives_up) async for part in answer.aiter_bytes()]
            except httpx.RequestError as error:
                await asyncio.sleep(tries.lost(_why(error), error))
                continue
            step, text = _read(answer, parts, tries)
            if isinstance(step, dict):
                return step, text
            await asyncio.sleep(step)
