"""The MCP server that `make conformance` tests, straight and through the gateway: it has the tools, resources and
prompts that the official suite asks for by name. Serves at /mcp, or with `--stdio`
on standard input; with `--tools` it prints its list of tools instead."""

import argparse
import asyncio
import base64
import json
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

server = MCPServer(
    name="conformance-fixture",
    version="1.0.0",
    request_state_security=RequestStateSecurity(keys=[b"the key of a fixture, which guards nothing"]),
)


def text(words):
    return TextContent(type="text", text=words)


def image():
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri, mime_type, words):
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    )


# Tools that answer.


@server.tool()
def test_simple_text() -> str:
    """A text"""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[ImageContent]:
    """An image"""
    return [image()]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    """A sound"""
    return [AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    """A resource"""
    return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """A text, an image and a resource"""
    data = json.dumps({"test": "data", "value": 123})
    return [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", data),
    ]


@server.tool()
def test_error_handling() -> str:
    """Fails"""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Sends log messages"""
    for step in ["started", "processing data", "completed"]:
        await ctx.info(f"Tool execution {step}")
        await asyncio.sleep(0.05)
    return "Logged."


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Sends a log message, which only a client that asked for it may get"""
    await ctx.info("Tool execution started")
    return "Logged."


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports its progress"""
    for progress in [0, 50, 100]:
        await ctx.report_progress(progress=progress, total=100, message=f"Completed step {progress} of 100")
        await asyncio.sleep(0.05)
    return "Done."


@server.tool()
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "none",
) -> str:
    """Has an argument that clients repeat in the header Mcp-Param-Region"""
    return f"region={region}"


@server.tool()
def json_schema_2020_12_tool() -> str:
    """Has a schema with the keywords of 2020-12"""
    return "json_schema_2020_12_tool"


server._tool_manager._tools["json_schema_2020_12_tool"].parameters = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Changes the list of tools, and says so"""
    server.add_tool(lambda: "", name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "Changed."


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Changes the list of prompts, and says so"""
    server.add_prompt(Prompt.from_function(lambda: "", name="test_dynamic_prompt"))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "Changed."


# Tools that ask their caller, as 2025-11-25 does it: by a request of the server's own.


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model"""
    messages = [SamplingMessage(role="user", content=text(prompt))]
    # Without `related_request_id` the request would go to a stream that may not be open.
    answer = await ctx.session.create_message(messages=messages, max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content.text}"


class Person(BaseModel):
    username: str
    email: str


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def titled(*names):
    return [{"const": name, "title": name.title()} for name in names]


class Choices(BaseModel):
    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": titled("value1", "value2")})
    legacyEnum: str = Field(json_schema_extra={"enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]})
    untitledMulti: list[str] = Field(json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2"]}})
    titledMulti: list[str] = Field(json_schema_extra={"items": {"anyOf": titled("value1", "value2")}})


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user"""
    return f"User response: {(await ctx.elicit(message=message, schema=Person)).action}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the user, and proposes the answers"""
    return f"Elicitation completed: {(await ctx.elicit(message='Who are you?', schema=Defaults)).action}"


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks the user to choose"""
    return f"Elicitation completed: {(await ctx.elicit(message='Choose.', schema=Choices)).action}"


# Tools that ask their caller, as 2026-07-28 does it: by a result.


def ask_user(message="What is your name?", member="name", kind="string"):
    schema = {"type": "object", "properties": {member: {"type": kind}}, "required": [member]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def ask_model(question):
    messages = [SamplingMessage(role="user", content=text(question))]
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=100))


def given(ctx, *names):
    """What the caller answered to the questions of these names; None unless it answered each."""
    answers = ctx.input_responses or {}
    return [answers[name] for name in names] if all(name in answers for name in names) else None


def asks(state=None, **requests):
    return InputRequiredResult(input_requests=requests, request_state=state)


@server.tool()
def test_missing_capability(ctx: Context) -> str:
    """Refuses clients without sampling"""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="This tool needs sampling", data=needed)
    return "The client has sampling."


@server.tool()
def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks the user for a name"""
    return "Answered." if given(ctx, "user_name") else asks(user_name=ask_user())


@server.tool()
def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks the user for a name"""
    answers = given(ctx, "user_name")
    return f"Hello, {answers[0].content['name']}!" if answers else asks(user_name=ask_user())


@server.tool()
def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """Asks the client's model"""
    answers = given(ctx, "capital_question")
    if answers:
        return f"The model said: {answers[0].content.text}"
    return asks(capital_question=ask_model("What is the capital of France?"))


@server.tool()
def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """Asks the client for its roots"""
    answers = given(ctx, "client_roots")
    return f"{len(answers[0].roots)} root(s)." if answers else asks(client_roots=ListRootsRequest())


@server.tool()
def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """Asks the user to confirm, and has a state"""
    if given(ctx, "confirm") and ctx.request_state == "nonce":
        return "state-ok: confirmation received"
    return asks("nonce", confirm=ask_user("Please confirm", "ok", "boolean"))


@server.tool()
def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """Asks the user to confirm; the SDK guards the state"""
    if ctx.request_state is None:
        return asks("round-1", confirm=ask_user("Please confirm", "ok", "boolean"))
    return f"state-ok: {ctx.request_state}"


@server.tool()
def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Asks the user, the model and the client at once"""
    if given(ctx, "user_name", "greeting", "client_roots"):
        return "All inputs received."
    greeting = ask_model("Generate a greeting")
    return asks("several", user_name=ask_user(), greeting=greeting, client_roots=ListRootsRequest())


@server.tool()
def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Asks the user twice, with a state that changes"""
    state = json.loads(ctx.request_state or "{}")
    if state.get("round") == 1 and (answers := given(ctx, "step1")):
        name = answers[0].content["name"]
        second = ask_user("Step 2: What is your favorite color?", "color")
        return asks(json.dumps({"round": 2, "name": name}), step2=second)
    if state.get("round") == 2 and (answers := given(ctx, "step2")):
        return f"{state['name']} likes {answers[0].content['color']}."
    return asks(json.dumps({"round": 1}), step1=ask_user("Step 1: What is your name?"))


@server.tool()
def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only what the client says it can answer"""
    requests = {}
    if ctx.client_capabilities.sampling is not None:
        requests["sample"] = ask_model("Say hello")
    if ctx.client_capabilities.elicitation is not None:
        requests["ask"] = ask_user()
    return asks("capability-gated", **requests)


# Tools of the scenarios about tasks. The server itself has no tasks: the gateway has.


@server.tool()
def greet(name: str) -> str:
    """Answers at once"""
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float, label: str = "") -> str:
    """Takes so many seconds"""
    await asyncio.sleep(seconds)
    return f"{label}: {seconds} s"


@server.tool()
async def failing_job() -> str:
    """Fails after a moment"""
    await asyncio.sleep(1)
    raise RuntimeError("This job always fails")


@server.tool()
async def protocol_error_job() -> str:
    """Answers with an error of JSON-RPC"""
    raise MCPError(code=-32603, message="This job breaks")


@server.tool()
def confirm_delete(filename: str, ctx: Context) -> str | InputRequiredResult:
    """Asks before it deletes"""
    answers = given(ctx, "confirm")
    return f"Deleted {filename}." if answers else asks(confirm=ask_user(f"Delete {filename}?", "confirm", "boolean"))


@server.tool()
def multi_input(ctx: Context) -> str | InputRequiredResult:
    """Asks two questions at once"""
    answers = given(ctx, "first", "second")
    return "Both answered." if answers else asks(first=ask_user(), second=ask_user("And your color?", "color"))


@server.tool()
async def test_tool_with_task(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name, and then takes its time"""
    answers = given(ctx, "user_name")
    if not answers:
        return asks(user_name=ask_user())
    await asyncio.sleep(3)
    return f"Done for {answers[0].content['name']}."


# Resources.


@server.resource("test://static-text")
def static_text() -> str:
    """A text"""
    return "This is the content of the static text resource."


@server.resource("test://static-binary")
def static_binary() -> bytes:
    """An image"""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data")
def template(id: str) -> str:
    """Data for any id"""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource")
def watched() -> str:
    """A text that clients subscribe to"""
    return "Watched resource content"


# Prompts.


def said(*contents):
    return [UserMessage(role="user", content=content) for content in contents]


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """A text"""
    return said(text("This is a simple prompt for testing."))


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """A text with two arguments"""
    return said(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """A resource and a text"""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return said(resource, text("Please process the embedded resource above."))


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """An image and a text"""
    return said(image(), text("Please analyze the image above."))


@server.prompt()
def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """Asks the user for a context first"""
    answers = given(ctx, "user_context")
    if answers:
        return said(text(f"Use the following context: {answers[0].content['context']}"))
    return asks(user_context=ask_user("What context should the prompt use?", "context"))


@server.completion()
async def complete(ref, argument, context) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def nothing(ctx, params) -> EmptyResult:
    return EmptyResult()


# These have no decorator.
for method, params in {
    "logging/setLevel": SetLevelRequestParams,
    "resources/subscribe": SubscribeRequestParams,
    "resources/unsubscribe": UnsubscribeRequestParams,
}.items():
    server._lowlevel_server.add_request_handler(method, params, nothing)


arguments = argparse.ArgumentParser()
arguments.add_argument("--port", type=int)
arguments.add_argument("--stdio", action="store_true")
arguments.add_argument("--tools", action="store_true")
arguments = arguments.parse_args()
if arguments.tools:
    tools = asyncio.run(server.list_tools())
    print(json.dumps([tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]))
elif arguments.stdio:
    server.run(transport="stdio")
else:
    server.run(transport="streamable-http", host="127.0.0.1", port=arguments.port)
