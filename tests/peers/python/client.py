"""A client built with the official Python SDK: talks to the demo agent through
`conductor connect` and writes what it saw to stdout, as JSON.
"""

import asyncio
import json
import os
import sys

import acp
from acp.schema import AllowedOutcome, ClientCapabilities, FileSystemCapabilities, Implementation


class Client(acp.Client):
    def __init__(self):
        self.offered = []
        self.agent_text = ""
        self.user_text = []
        self.chunk = asyncio.Event()

    def on_connect(self, conn):
        pass

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.offered = [option.kind for option in options]
        chosen = next(option for option in options if option.kind == "allow_once")
        outcome = AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return acp.RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id, update, **kwargs):
        if update.session_update == "agent_message_chunk":
            self.agent_text += update.content.text
            self.chunk.set()
        elif update.session_update == "user_message_chunk":
            self.user_text.append(update.content.text)


async def main():
    conductor, cwd = sys.argv[1:]
    client = Client()
    report = {}
    async with acp.spawn_agent_process(client, conductor, "connect", env=os.environ) as (agent, _process):
        hello = await agent.initialize(
            protocol_version=1,
            client_capabilities=ClientCapabilities(
                fs=FileSystemCapabilities(read_text_file=True, write_text_file=True)
            ),
            client_info=Implementation(name="python-client", version="1"),
        )
        report["protocolVersion"] = hello.protocol_version
        session_id = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id

        async def prompt(text):
            client.agent_text = ""
            answer = await agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])
            return answer.stop_reason

        async def turn(text):
            stop_reason = await prompt(text)
            return {"stopReason": stop_reason, "text": client.agent_text}

        report["stream"] = await turn("stream 5")
        report["ask"] = await turn("ask")
        report["offered"] = client.offered
        client.chunk.clear()
        slow = asyncio.create_task(prompt("slow 60"))
        await client.chunk.wait()
        await agent.cancel(session_id=session_id)
        report["slow"] = {"stopReason": await slow}

        answer = await agent.set_config_option(config_id="model", session_id=session_id, value="demo-large")
        model = next(option for option in answer.config_options if option.id == "model")
        report["model"] = model.current_value

        await agent.close_session(session_id=session_id)
        client.user_text = []
        await agent.load_session(cwd=cwd, session_id=session_id, mcp_servers=[])
        report["replayed"] = client.user_text
        report["after"] = await turn("stream 1")
    json.dump(report, sys.stdout)


asyncio.run(main())
