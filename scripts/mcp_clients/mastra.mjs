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

let runs = 0;
await work(async (place, job, model) => {
  const client = new MCPClient({ id: `run-${runs++}`, servers: { shop: serverAt(place) }, timeout: job.timeout_s * 1000 });
  try {
    const agent = new Agent({ id: "clerk", name: "clerk", instructions: "Order it.", model, tools: await client.listTools() });
    await agent.generate("Order it.", { maxSteps: 5 });
  } finally {
    await client.disconnect();
  }
});
