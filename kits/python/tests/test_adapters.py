"""Frameworks as they are, before a gateway: what their models call twice is one effect."""

import asyncio
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from world import World

from oncegate_client import AsyncOnce, Once

ORDER = {"order": "1"}


def sent(world: World) -> list[tuple[str | None, str | None, str | None]]:
    bodies = [json.loads(body) for body in world.line.bodies if body]
    return [(one.get("client_call_id"), one.get("session_id"), one.get("idempotency_key")) for one in bodies]


def run(world: World, what: Callable[[AsyncOnce], Any]) -> Any:
    async def main() -> Any:
        async with AsyncOnce(world.line.url, patience=2) as once:
            return await what(once)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def lost(world: World) -> Iterator[None]:
    """The list of tools comes through; the answer to the first call is lost."""
    world.line.faults = ["", "drop"]
    yield
    assert world.tool.effects == [ORDER]


def test_langgraph(world: World) -> None:
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from oncegate_client.langchain import langchain_tools

    graph = StateGraph(MessagesState)
    with Once(world.line.url, patience=2) as once:
        tools = langchain_tools(once, once.tools())
        assert [tool.name for tool in tools] == ["careful", "create_order", "order", "scarce", "short", "sure"]
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "tools")
        compiled = graph.compile()
        for _ in range(2):
            call = {"name": "order", "args": ORDER, "id": "call_1", "type": "tool_call"}
            state: Any = {"messages": [AIMessage("", tool_calls=[call])]}
            told = compiled.invoke(state, {"configurable": {"thread_id": "t"}})["messages"][-1].content
            assert '"made": true' in told
        told = asyncio.run(compiled.ainvoke(state, {"configurable": {"thread_id": "t"}}))["messages"][-1].content
        assert told.startswith("Stored result")
    assert set(sent(world)) == {("t:call_1", "t", None)}


def test_langchain_with_the_async_client(world: World) -> None:
    from oncegate_client.langchain import langchain_tools

    async def main(once: AsyncOnce) -> str:
        tools = {tool.name: tool for tool in langchain_tools(once, await once.tools())}
        call = {"name": "order", "args": ORDER, "id": "call_1", "type": "tool_call"}
        return str((await tools["order"].ainvoke(call)).content)

    assert '"made": true' in run(world, main)
    assert set(sent(world)) == {("call_1", None, None)}


def test_openai_agents(world: World) -> None:
    from agents.tool_context import ToolContext

    from oncegate_client.openai_agents import agents_tools

    async def main(once: AsyncOnce) -> list[str]:
        tools = {tool.name: tool for tool in agents_tools(once, await once.tools(), thread="t")}
        text = json.dumps(ORDER)
        told = []
        for _ in range(2):
            context = ToolContext(None, tool_name="order", tool_call_id="call_1", tool_arguments=text)
            told.append(str(await tools["order"].on_invoke_tool(context, text)))
        told.append(str(await tools["order"].on_invoke_tool(context, "[1")))
        return told

    first, second, third = run(world, main)
    assert first.startswith('{"made"')
    assert second.startswith("Stored result")
    assert third.startswith("Nothing was executed")
    assert set(sent(world)) == {("t:call_1", None, None)}


def test_pydantic_ai(world: World) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from oncegate_client.pydantic_ai import pydantic_tools

    def model(messages: list[Any], _: Any) -> ModelResponse:
        if len(messages) < 4:
            return ModelResponse([ToolCallPart("order", ORDER, tool_call_id="call_1")])
        return ModelResponse([TextPart(str(messages[-1].parts[0].content))])

    async def main(once: AsyncOnce) -> str:
        agent = Agent(FunctionModel(model), tools=pydantic_tools(once, await once.tools(), thread="t"))
        return str((await agent.run("Order it.")).output)

    assert run(world, main).startswith("Stored result")
    assert set(sent(world)) == {("t:call_1", None, None)}


def test_google_adk(world: World) -> None:
    from oncegate_client.google_adk import adk_tools

    async def main(once: AsyncOnce) -> list[str]:
        tools = {tool.name: tool for tool in adk_tools(once, await once.tools())}
        declared = tools["careful"]._get_declaration().parameters_json_schema
        assert declared
        assert "order" in declared["properties"]
        context: Any = SimpleNamespace(session=SimpleNamespace(id="s"), function_call_id="call_1")
        return [await tools["order"].run_async(args=ORDER, tool_context=context) for _ in range(2)]

    first, second = run(world, main)
    assert first.startswith('{"made"')
    assert second.startswith("Stored result")
    assert set(sent(world)) == {("s:call_1", "s", None)}


def test_a_typed_function_is_a_tool_of_a_framework(world: World) -> None:
    from oncegate_client.langchain import langchain_tools

    world.line.faults = ["drop"]
    with Once(world.line.url, patience=2) as once:

        @once.tool
        def order(order: str, note: str | None = None) -> dict[str, object]:
            """Order something."""
            raise AssertionError(f"it was run with {order} and {note}")

        (tool,) = langchain_tools(once, [order])
        assert tool.description == "Order something."
        assert '"made": true' in str(tool.invoke({**ORDER}))


def test_a_call_id_is_short_and_prints(world: World) -> None:
    from oncegate_client._specs import call_id

    assert call_id("t", "c") == "t:c"
    assert call_id(None, "c") == "c"
    for strange in ["", None, "c" * 256, "a\nb"]:
        assert call_id("t", strange) is None
    with Once(world.gateway.url) as once:
        once.call("order", ORDER)
