/** AI SDK: `generateText({ model, prompt, tools: aiTools(once, await once.tools(), { thread: "conversation-1" }) })`. */

import { jsonSchema, type Tool, tool } from "ai";
import { callId, type Thread } from "./call-id.js";
import type { Once, ToolSpec } from "./client.js";

/**
 * Tools for a model, whose calls go through the gateway. `thread` names the conversation; together with the tool call it
 * is the id of a call, which a run that is resumed finds again.
 */
export function aiTools(once: Once, tools: Iterable<ToolSpec>, { thread }: Thread = {}): Record<string, Tool> {
  const found: Record<string, Tool> = {};
  for (const { name, description, input_schema } of tools) {
    found[name] = tool({
      description,
      inputSchema: jsonSchema<object>(input_schema),
      execute: (args: object, { toolCallId, abortSignal }) =>
        once.forModel(name, args, { clientCallId: callId(thread, toolCallId), sessionId: thread, signal: abortSignal }),
    }) as Tool;
  }
  return found;
}
