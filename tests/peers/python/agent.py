"""An agent built with the official Python SDK, to stand behind the conductor.

The first word of a prompt says what it does, as in the agents of the other
languages.
"""

import asyncio
import uuid

import acp
from acp.schema import AgentCapabilities, Implementation, PermissionOption, ToolCallUpdate

OPTIONS = [
    PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
    PermissionOption(option_id="no", name="No", kind="reject_once"),
]


class Agent(acp.Agent):
    def __init__(self):
        self.cancels = {}  # session id -> event that ends a turn that waits
        self.client = None

    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        return acp.InitializeResponse(
            protocol_version=1,
            agent_capabilities=AgentCapabilities(),
            agent_info=Implementation(name="python-agent", version="1"),
        )

    async def new_session(self, cwd, additional_directories=None, mcp_servers=None, **kwargs):
        session_id = str(uuid.uuid4())
        self.cancels[session_id] = asyncio.Event()
        return acp.NewSessionResponse(session_id=session_id)

    async def cancel(self, session_id, **kwargs):
        self.cancels[session_id].set()

    async def prompt(self, session_id, prompt, **kwargs):
        if session_id not in self.cancels:
            raise acp.RequestError.resource_not_found(session_id)
        text = "".join(block.text for block in prompt if block.type == "text")
        self.cancels[session_id].clear()
        return acp.PromptResponse(stop_reason=await self.play(session_id, text))

    async def play(self, session_id, text):
        async def update(update):
            await self.client.session_update(session_id=session_id, update=update)

        async def say(text):
            await update(acp.update_agent_message_text(text))

        word, _, rest = text.partition(" ")
        if word == "stream":
            for number in range(int(rest)):
                await say(f"chunk {number}")
        elif word == "read":
            answer = await self.client.read_text_file(session_id=session_id, path=rest)
            await say(answer.content)
        elif word == "ask":
            await update(acp.start_tool_call("call-1", "Touch a file", kind="edit", status="pending"))
            answer = await self.client.request_permission(
                session_id=session_id, tool_call=ToolCallUpdate(tool_call_id="call-1"), options=OPTIONS
            )
            selected = answer.outcome.outcome == "selected"
            await update(acp.update_tool_call("call-1", status="completed" if selected else "failed"))
            await say(f"selected {answer.outcome.option_id}" if selected else "cancelled")
        elif word == "wait":
            await say("waiting")
            await self.cancels[session_id].wait()
            return "cancelled"
        else:
            await say(f"echo: {text}")
        return "end_turn"


asyncio.run(acp.run_agent(Agent()))
