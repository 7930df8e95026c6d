// An application with the TypeScript SDK 1.12.3, of 2025-03-26: it asks, and if that fails, it asks once more.
import { Client } from "sdk-1.12.3/client/index.js";
import { StdioClientTransport } from "sdk-1.12.3/client/stdio.js";
import { StreamableHTTPClientTransport } from "sdk-1.12.3/client/streamableHttp.js";
import { work } from "./turns.mjs";

await work({
  client: () => new Client({ name: "typescript-sdk-1.12.3", version: "1.0.0" }),
  byUrl: (url) => new StreamableHTTPClientTransport(url),
  byCommand: (command) => new StdioClientTransport(command),
  call: (client, call, settings) => client.callTool(call, undefined, settings),
});
