"""An application with the Python SDK, which knows no tasks itself: an extension of its client polls the task that it is given."""

import asyncio
import json
import sys
from typing import Any, Literal

from mcp import Client
from mcp.client import ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result

TASKS = "io.modelcontextprotocol/tasks"


class Task(Result):
    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: int | None = None


class TaskParams(RequestParams):
    task_id: str


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class TaskNow(Result):
    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    poll_interval_ms: int | None = None


class Tasks(ClientExtension):
    identifier = TASKS

    def __init__(self):
        self.given = []

    def claims(self):
        return [ResultClaim(result_type="task", model=Task, resolve=self.poll)]

    async def poll(self, task, context):
        self.given.append(task.task_id)
        wait_ms = task.poll_interval_ms
        while True:
            await asyncio.sleep((wait_ms or 1000) / 1000)
            now = await context.session.send_request(GetTask(params=TaskParams(task_id=task.task_id)), TaskNow)
            if now.status == "completed":
                return CallToolResult.model_validate(now.result)
            if now.status in ("failed", "cancelled"):
                raise RuntimeError(f"the task is {now.status}: {now.error}")
            wait_ms = now.poll_interval_ms


async def main(place, jobs):
    for job in jobs:
        tasks = Tasks()
        async with Client(place, extensions=[tasks]) as client:
            result = await client.call_tool("create_order", {"order": job["order"], "fault": job["fault"]})
        told = ["\n".join(block.text for block in result.content)]
        print(json.dumps({"order": job["order"], "told": told, "task": next(iter(tasks.given), None)}), flush=True)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
