// An agent built with the official TypeScript SDK, to stand behind the
// conductor. The first word of a prompt says what it does, as in the agents of
// the other languages.

import { randomUUID } from "node:crypto";
import { Readable, Writable } from "node:stream";
import { agent, methods, ndJsonStream, RequestError } from "@agentclientprotocol/sdk";

/** What to call when the turn of a session is cancelled; null between turns. */
const cancels = new Map();

const options = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];

async function play(client, sessionId, text) {
  const update = (update) => client.notify(methods.client.session.update, { sessionId, update });
  const say = (text) =>
    update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
  const [word, rest] = [text.split(" ", 1)[0], text.slice(text.indexOf(" ") + 1)];
  if (word === "stream") {
    for (let number = 0; number < Number(rest); number++) {
      await say(`chunk ${number}`);
    }
  } else if (word === "read") {
    const { content } = await client.request(methods.client.fs.readTextFile, { sessionId, path: rest });
    await say(content);
  } else if (word === "ask") {
    const toolCallId = "call-1";
    await update({ sessionUpdate: "tool_call", toolCallId, title: "Touch a file", kind: "edit", status: "pending" });
    const { outcome } = await client.request(methods.client.session.requestPermission, {
      sessionId,
      toolCall: { toolCallId },
      options,
    });
    const selected = outcome.outcome === "selected";
    await update({ sessionUpdate: "tool_call_update", toolCallId, status: selected ? "completed" : "failed" });
    await say(selected ? `selected ${outcome.optionId}` : "cancelled");
  } else if (word === "wait") {
    // Whoever hears "waiting" may cancel at once, so listen first.
    const cancelled = new Promise((resolve) => cancels.set(sessionId, resolve));
    await say("waiting");
    await cancelled;
    cancels.set(sessionId, null);
    return "cancelled";
  } else {
    await say(`echo: ${text}`);
  }
  return "end_turn";
}

agent({ name: "ts-agent" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: 1,
    agentCapabilities: {},
    agentInfo: { name: "ts-agent", version: "1" },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = randomUUID();
    cancels.set(sessionId, null);
    return { sessionId };
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    if (!cancels.has(params.sessionId)) {
      throw RequestError.resourceNotFound(params.sessionId);
    }
    const text = params.prompt.map((block) => (block.type === "text" ? block.text : "")).join("");
    return { stopReason: await play(client, params.sessionId, text) };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => cancels.get(params.sessionId)?.())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
