/** What an adapter may be told. */
export interface Thread {
  /** The name of the conversation. */
  thread?: string | undefined;
}

/** The framework's id of a tool call, behind what makes it unique: at most 255 bytes, or none. */
export function callId(thread: string | undefined, toolCall: string | undefined): string | undefined {
  if (!toolCall) return undefined;
  const text = thread ? `${thread}:${toolCall}` : toolCall;
  return new TextEncoder().encode(text).length <= 255 && !/\p{Cc}/u.test(text) ? text : undefined;
}
