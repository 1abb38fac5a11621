// A client built with the official TypeScript SDK: talks to the demo agent
// through `conductor connect` and writes what it saw to stdout, as JSON.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";
import { client, methods, ndJsonStream } from "@agentclientprotocol/sdk";

const [conductor, cwd] = process.argv.slice(2);
const bridge = spawn(conductor, ["connect"], { stdio: ["pipe", "pipe", "inherit"] });
const ended = once(bridge, "exit");

const report = {};
let agentText = "";
let userText = [];
let onChunk = () => {};

const app = client({ name: "ts-client" })
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    report.offered = params.options.map((option) => option.kind);
    const { optionId } = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId } };
  })
  .onNotification(methods.client.session.update, ({ params: { update } }) => {
    if (update.sessionUpdate === "agent_message_chunk") {
      agentText += update.content.text;
      onChunk();
    } else if (update.sessionUpdate === "user_message_chunk") {
      userText.push(update.content.text);
    }
  });

const stream = ndJsonStream(Writable.toWeb(bridge.stdin), Readable.toWeb(bridge.stdout));
await app.connectWith(stream, async (agent) => {
  const { session } = methods.agent;
  const hello = await agent.request(methods.agent.initialize, {
    protocolVersion: 1,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: false },
    clientInfo: { name: "ts-client", version: "1" },
  });
  report.protocolVersion = hello.protocolVersion;
  const { sessionId } = await agent.request(session.new, { cwd, mcpServers: [] });
  const prompt = (text) => {
    agentText = "";
    return agent.request(session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  };
  const turn = async (text) => {
    const { stopReason } = await prompt(text);
    return { stopReason, text: agentText };
  };

  report.stream = await turn("stream 5");
  report.ask = await turn("ask");
  const started = new Promise((resolve) => (onChunk = resolve));
  const slow = prompt("slow 60");
  await started;
  await agent.notify(session.cancel, { sessionId });
  report.slow = { stopReason: (await slow).stopReason };

  const { configOptions } = await agent.request(session.setConfigOption, {
    sessionId,
    configId: "model",
    value: "demo-large",
  });
  report.model = configOptions.find((option) => option.id === "model").currentValue;

  await agent.request(session.close, { sessionId });
  userText = [];
  await agent.request(session.load, { sessionId, cwd, mcpServers: [] });
  report.replayed = userText;
  report.after = await turn("stream 1");
});
bridge.stdin.end();
await ended;
process.stdout.write(JSON.stringify(report));
