// An application with @modelcontextprotocol/ext-tasks over the TypeScript SDK 2: it asks once, and polls the task that it is given.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const clientInfo = { name: "ext-tasks", version: "1.0.0" };

// The SDK knows no results that are tasks, so its application sends these requests itself, by the SDK's transport.
function dispatchBy(transport) {
  const open = new Map();
  const others = transport.onmessage;
  transport.onmessage = (message, extra) => {
    const answered = open.get(message.id);
    if (!answered) return others?.(message, extra);
    open.delete(message.id);
    answered(message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
  };
  let sent = 0;
  return (request) =>
    new Promise((answered, failed) => {
      const id = `task-${++sent}`;
      open.set(id, answered);
      transport.send({ jsonrpc: "2.0", id, ...request }).catch(failed);
    });
}

const [place, jobs] = process.argv.slice(2);
for (const { order, fault } of JSON.parse(jobs)) {
  const client = new Client(clientInfo, { versionNegotiation: { mode: "auto" } });
  const transport = new StreamableHTTPClientTransport(new URL(place));
  await client.connect(transport);
  const session = createTaskSessionFromClient(client, {
    endpointId: place,
    rawDispatch: dispatchBy(transport),
    v2RequestFraming: { protocolVersion: client.getNegotiatedProtocolVersion(), clientInfo, clientCapabilities: {} },
  });
  const execution = await session.callTool("create_order", { order, fault });
  const { outcome } = await execution.settle();
  const told = [resultFromTaskOutcome(outcome).content.map((block) => block.text).join("\n")];
  await session.close();
  await client.close();
  console.log(JSON.stringify({ order, told, task: execution.handle?.taskId }));
}
process.exit(0);
