// An agent of Mastra with @mastra/mcp. Its model asks for the order, and again if it was told of none.
import { Agent } from "@mastra/core/agent";
import { MCPClient } from "@mastra/mcp";
import { work } from "./agent_runs.mjs";

// By its URL, or by its command as JSON.
function serverAt(place) {
  if (place.startsWith("http")) return { url: new URL(place) };
  const [command, ...args] = JSON.parse(place);
  return { command, args };
}

// The id of a tool call that a thread of Mastra's memory keeps.
function named(tools) {
  for (const tool of Object.values(tools)) {
    const execute = tool.execute;
    tool.execute = (input, context) => {
      const id = `conversation-1:${context.agent.toolCallId}`;
      return execute(input, { ...context, _meta: { "dev.oncegate/client-call-id": id } });
    };
  }
  return tools;
}

let runs = 0;
await work(async (place, job, model) => {
  const timeout = job.timeout_s ? { timeout: job.timeout_s * 1000 } : {};
  const client = new MCPClient({ id: `run-${runs++}`, servers: { shop: serverAt(place) }, ...timeout });
  try {
    const tools = job.client_call_id ? named(await client.listTools()) : await client.listTools();
    const agent = new Agent({ id: "clerk", name: "clerk", instructions: "Order it.", model, tools });
    await agent.generate("Order it.", { maxSteps: 5 });
  } finally {
    await client.disconnect();
  }
});
