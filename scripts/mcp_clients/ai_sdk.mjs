// An agent of Vercel's AI SDK with @ai-sdk/mcp. Its model asks for the order, and again if it was told of none.
import { AsyncLocalStorage } from "node:async_hooks";
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as StdioTransport } from "@ai-sdk/mcp/mcp-stdio";
import { generateText, stepCountIs } from "ai";
import { work } from "./agent_runs.mjs";

const calls = new AsyncLocalStorage();

// By its URL, or by its command as JSON.
function transportTo(place) {
  if (place.startsWith("http")) return { type: "http", url: place, fetch: fetchNamed };
  const [command, ...args] = JSON.parse(place);
  return new StdioTransport({ command, args });
}

// The client sends no `_meta` of a tool call, so the id goes into a header.
function fetchNamed(url, init) {
  const headers = new Headers(init?.headers);
  if (calls.getStore()) headers.set("x-client-call-id", `conversation-1:${calls.getStore()}`);
  return fetch(url, { ...init, headers });
}

function named(tools) {
  for (const tool of Object.values(tools)) {
    const execute = tool.execute;
    tool.execute = (args, options) => calls.run(options.toolCallId, () => execute(args, options));
  }
  return tools;
}

await work(async (place, job, model) => {
  const client = await createMCPClient({ transport: transportTo(place), maxRetries: 2 });
  try {
    // `timeout` bounds the step, and with it the tool's call.
    const timeout = job.timeout_s ? { timeout: { toolMs: job.timeout_s * 1000 } } : {};
    const settings = { ...timeout, stopWhen: stepCountIs(5) };
    const tools = job.client_call_id ? named(await client.tools()) : await client.tools();
    await generateText({ model, tools, prompt: "Order it.", ...settings });
  } finally {
    await client.close();
  }
});
