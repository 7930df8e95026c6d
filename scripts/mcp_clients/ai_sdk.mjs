// An agent of Vercel's AI SDK with @ai-sdk/mcp. Its model asks for the order, and again if it was told of none.
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as StdioTransport } from "@ai-sdk/mcp/mcp-stdio";
import { generateText, stepCountIs } from "ai";
import { work } from "./agent_runs.mjs";

// By its URL, or by its command as JSON.
function transportTo(place) {
  if (place.startsWith("http")) return { type: "http", url: place };
  const [command, ...args] = JSON.parse(place);
  return new StdioTransport({ command, args });
}

await work(async (place, job, model) => {
  const client = await createMCPClient({ transport: transportTo(place), maxRetries: 2 });
  try {
    // `timeout` bounds the step, and with it the tool's call.
    const settings = { timeout: { toolMs: job.timeout_s * 1000 }, stopWhen: stepCountIs(5) };
    await generateText({ model, tools: await client.tools(), prompt: "Order it.", ...settings });
  } finally {
    await client.close();
  }
});
