"""Long calls, for `make clients`: real clients before a tool of a minute and a half, through a real gateway.

Some give up long before the tool answers, and ask again with the same arguments, or ask for the call by its id; some poll.
Each must get the order that the tool made, which must be one. Beside that, how long each client waits for an answer: by
default, and with a timeout of 60 s.
"""

import json
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from doc_tables import show
from processes import free_port, start, stop

# The seconds of the tool, and what the page has. With other seconds all others are scaled.
TOOL_S = 90
# `[mcp] answer_within`, which is the default, and one that is longer than the tool.
ANSWER_WITHIN_S, PATIENT_S = 45, 600
# Before a client asks again.
PAUSE_S = 1
CLIENT_S = 400

EXT_TASKS, EXTENDED, HTTP = "`@modelcontextprotocol/ext-tasks`", "Python SDK with an extension", "HTTP"
WITH_TASKS = [EXT_TASKS, EXTENDED]
# Clients, after how many seconds they give up, and the page's words for that and for what they do then.
WAITS = [
    (EXT_TASKS, None, "polls a task"),
    (EXTENDED, None, "polls a task"),
    (HTTP, None, "polls the `Location`"),
    *((HTTP, after, f"{after} s, the same again") for after in (20, 30, 60)),
    *(("TypeScript SDK 1", after, f"{after} s, the same again") for after in (20, 30, 60)),
    *(("Python SDK", after, f"{after} s, the same again") for after in (20, 30)),
    ("Python SDK", 60, "60 s, `await_call`"),
    ("LlamaIndex", None, "its default, the same again"),
    ("LlamaIndex", 60, "60 s, the same again"),
    ("Haystack", None, "its default, the same again"),
    ("Haystack", 60, "60 s, the same again"),
]
# What an application sets, so that its client waits for 60 s.
SETS = {
    "OpenAI Agents": "`client_session_timeout_seconds=60`",
    "LlamaIndex": "`BasicMCPClient(…, timeout=60)`",
    "Haystack": "`MCPTool(…, invocation_timeout=60)`",
    "TypeScript SDK 1": "`callTool(…, { timeout: 60000 })`",
    "TypeScript SDK 2": "`callTool(…, { timeout: 60000 })`",
    "Mastra": "`new MCPClient({ timeout: 60_000 })`",
    "Python SDK": "`Client(…, read_timeout_seconds=60)`",
    "LangChain": '`session_kwargs={"read_timeout_seconds": timedelta(seconds=60)}`',
    "Pydantic AI": "`MCPToolset(…, read_timeout=60)`",
    "Google ADK": "`StreamableHTTPConnectionParams(…, sse_read_timeout=60)`",
    "AI SDK": "`generateText({ timeout: { toolMs: 60_000 } })`",
    "CrewAI": "a thread of its own with a bound",
}
# It has no timeout of its own.
UNBOUND = ["CrewAI"]


def measure(seconds, clients, run, binary, fixture, page):
    """What is wrong, and where the page differs. `clients` are commands by names, `fixture` the one of the MCP server."""
    home = run / "long"
    home.mkdir()
    effects = home / "effects"
    effects.touch()
    waits = [order_of(client, after, seconds, f"{client} {words}") for client, after, words in WAITS]
    patience = [
        order_of(client, after, seconds, f"{client} {after} once") | {"turns": 1, "once": True}
        for client in SETS
        for after in ((None,) if client in UNBOUND else (None, 60))
    ]
    started = []
    try:
        server, gateway, patient = free_port(), free_port(), free_port()
        tool = [*fixture, "--port", str(server), "--effects", effects, "--slow", str(seconds)]
        started.append(start(tool, server, home / "server.log"))
        for name, port, within_s in [("gateway", gateway, ANSWER_WITHIN_S * seconds / TOOL_S), ("patient", patient, PATIENT_S)]:
            config = home / f"{name}.toml"
            config.write_text(configuration(port, server, home / f"{name}.db", within_s))
            started.append(start([binary, "serve", "--config", config], port, home / f"{name}.log"))
        # The second ones start slowly, and only their own waiting counts: they leave the processor to the first.
        jobs = [(job, f"http://127.0.0.1:{gateway}", "/mcp", []) for job in waits]
        jobs += [(job, f"http://127.0.0.1:{patient}", "/mcp/shop", ["nice", "-n", "5"]) for job in patience]
        with ThreadPoolExecutor(len(jobs)) as pool:
            told = list(pool.map(lambda asked: let(clients, home, effects, *asked), jobs))
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway}/v1/calls?limit=500") as answer:
            states = [call["state"] for call in json.load(answer)["calls"]]
    finally:
        stop(started)
    made = effects.read_text().split("\n")
    orders = [job["order"] for job in waits + patience]
    complaints = [f"long: {order}: {made.count(order)} effects" for order in orders if made.count(order) != 1]
    if states != ["succeeded"] * len(waits):
        complaints.append(f"long: {len(waits)} orders are in the ledger as {states}")
    complaints += [f"long: a gateway panicked, see {log}" for log in home.glob("*.log") if "panicked" in log.read_text()]
    rows = []
    for (client, _, words), job, (answers, task, after_s) in zip(WAITS, waits, told):
        if not answers or not has_order(answers[-1]):
            complaints.append(f"long: {job['order']}: it has no order, but {answers}")
        if (client in WITH_TASKS) != bool(task):
            complaints.append(f"long: {job['order']}: its task is {task}")
        running = sum(map(says_running, answers))
        rows.append([client, words, len(answers) - running - 1, running, made.count(job["order"])])
        print(f"{job['order']}: {after_s:.0f} s from the effect to the end")
    print()
    differ = show(page, ["client", "gives up after, and then", "gave up", "still running", "effects"], rows)
    found = {client: [] for client in SETS}
    for job, (answers, _, after_s) in zip(patience, told[len(waits) :]):
        if not answers:
            complaints.append(f"long: {job['order']}: it was told nothing")
        waited = f"{5 * round(after_s / 5)} s"
        if answers and has_order(answers[-1]):
            waited = f"more than {seconds} s"
        found[job["client"]].append(waited)
        print(f"{job['order']}: {after_s:.0f} s from the effect to the end, then {answers[:1]}")
    print()
    rows = [[client, *cells, *[""] * (2 - len(cells)), SETS[client]] for client, cells in found.items()]
    differ += show(page, ["client", "waits for", "with 60 s", "set"], rows)
    return complaints, differ if seconds == TOOL_S else []


def order_of(client, after, seconds, order):
    scale = seconds / TOOL_S
    return {
        "client": client,
        "order": order.replace("`", ""),
        "fault": "slow",
        "turns": 40,
        "timeout_s": after and after * scale,
        "pause_s": PAUSE_S * scale,
        "awaits": "await_call" in order,
    }


def has_order(text):
    return "order_id" in text


def says_running(text):
    return any(words in text for words in ("Still running", "call-in-progress", '"status":"running"'))


def let(clients, home, effects, job, gateway, route, niced):
    """Lets a client order; returns what it was told, the task it was given, and the seconds from the effect to its end."""
    name = "".join(c if c.isalnum() else "-" for c in job["order"])
    place = gateway if job["client"] == HTTP else gateway + route
    command = [*niced, *clients[job["client"]], place, json.dumps([job])]
    told, effect_at, deadline = home / f"{name}.told", None, time.monotonic() + CLIENT_S
    with open(told, "w") as out, open(home / f"{name}.log", "w") as log:
        client = subprocess.Popen(command, stdout=out, stderr=log)
        # A client that ends its connections may take a while after its answer.
        while client.poll() is None and not told.read_text().endswith("\n") and time.monotonic() < deadline:
            if effect_at is None and job["order"] in effects.read_text().split("\n"):
                effect_at = time.monotonic()
            time.sleep(0.1)
        after_s = time.monotonic() - (effect_at or time.monotonic())
        client.kill()
        client.wait()
    lines = told.read_text().splitlines()
    said = json.loads(lines[0]) if lines else {}
    return said.get("told", []), said.get("task"), after_s


def configuration(port, server, store, within_s):
    return f"""\
[server]
listen = "127.0.0.1:{port}"
[store]
url = "sqlite:{store}"
[mcp]
answer_within = "{within_s:.0f}s"
[upstreams.shop]
url = "http://127.0.0.1:{server}/mcp"
[tools.create_order]
upstream = "shop"
effect = "write"
timeout = "5m"
deadline = "6m"
retry = {{ attempts = 1 }}
"""
