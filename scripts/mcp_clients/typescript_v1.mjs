// An application with the TypeScript SDK 1: it asks, and if that fails, it asks once more.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { work } from "./turns.mjs";

await work({
  client: () => new Client({ name: "typescript-sdk-1", version: "1.0.0" }),
  byUrl: (url) => new StreamableHTTPClientTransport(url),
  byCommand: (command) => new StdioClientTransport(command),
  call: (client, call, settings) => client.callTool(call, undefined, settings),
});
