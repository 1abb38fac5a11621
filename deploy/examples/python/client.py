"""A small client of the conductor's typed service `Sessions`.

It needs the modules that grpc_tools makes from the protos; README.md says how.
"""

import os
import pathlib
import time

import grpc

from conductor.v1 import events_pb2, sessions_pb2, sessions_pb2_grpc

# An event carries its frame as it was, and a frame may have 16 MiB.
LARGEST_EVENT = 64 << 20

# Pauses before a broken stream is carried on, in seconds.
PAUSES = (0.1, 0.5, 1, 2, 5)


def after(event):
    """The number to carry on with behind an event. Several events may have one
    number; `more` says so."""
    return event.seq if event.more else event.seq + 1


def state_dir():
    """Where the service on this machine keeps its address and its token."""
    given = os.environ.get("CONDUCTOR_STATE_DIR")
    if given:
        return pathlib.Path(given)
    home = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
    return pathlib.Path(home) / "conductor"


class Conductor:
    """A connection to the service. Errors are `grpc.RpcError`s, whose details()
    say cause and remedy."""

    def __init__(self, endpoint=None, token=None, client="python-example/1"):
        endpoint = endpoint or (state_dir() / "endpoint").read_text().strip()
        token = token or (state_dir() / "token").read_text().strip()
        address = endpoint.removeprefix("http://")
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", LARGEST_EVENT)]
        )
        self.calls = sessions_pb2_grpc.SessionsStub(self.channel)
        self.metadata = [("authorization", f"Bearer {token}")]
        self.client = client

    def close(self):
        self.channel.close()

    def create(self, cwd, agent="", model="", mode=""):
        """Opens a session; the answer has its id and its options."""
        request = sessions_pb2.CreateSessionRequest(
            cwd=str(cwd), agent=agent, model=model, mode=mode, client=self.client
        )
        return self.calls.Create(request, metadata=self.metadata)

    def prompt(self, session, text):
        """Prompts. Iterate over what it gives: events, up to `turn_ended`."""
        request = sessions_pb2.PromptRequest(session_id=session, text=text)
        return self.calls.Prompt(request, metadata=self.metadata)

    def observe(self, session, from_seq=1):
        """Every event from a number on, for as long as one likes.

        When the service restarts, the network breaks or we were too slow, the
        call ends with UNAVAILABLE. Nothing is lost by that: events have numbers,
        and the next call goes on behind the last one.
        """
        failures = 0
        while True:
            request = sessions_pb2.ObserveRequest(session_id=session, from_seq=from_seq)
            call = self.calls.Observe(request, metadata=self.metadata)
            try:
                for event in call:
                    from_seq = after(event)
                    failures = 0
                    yield event
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                time.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
            finally:
                call.cancel()

    def answer(self, session, request, option_id):
        """Answers a request for permission. ABORTED says who was faster."""
        answer = sessions_pb2.AnswerPermissionRequest(
            session_id=session, request=request, option_id=option_id
        )
        self.calls.AnswerPermission(answer, metadata=self.metadata)

    def select(self, session, config_id, value):
        """Sets an option, for example the model; gives all options."""
        request = sessions_pb2.SetConfigOptionRequest(
            session_id=session, config_id=config_id, selected=value
        )
        return self.calls.SetConfigOption(request, metadata=self.metadata).config_options

    def cancel(self, session):
        """Ends the running turn, and our prompts that wait."""
        self.calls.Cancel(sessions_pb2.CancelRequest(session_id=session), metadata=self.metadata)

    def queue(self, session):
        """The prompts that wait."""
        request = sessions_pb2.ListQueueRequest(session_id=session)
        return self.calls.ListQueue(request, metadata=self.metadata).prompts

    def take_back(self, session, entry):
        """Takes one of them back."""
        request = sessions_pb2.CancelQueuedRequest(session_id=session, entry=entry)
        self.calls.CancelQueued(request, metadata=self.metadata)

    def list(self, page_size=0):
        """All sessions that we may see, page after page."""
        token = ""
        while True:
            request = sessions_pb2.ListRequest(page_size=page_size, page_token=token)
            page = self.calls.List(request, metadata=self.metadata)
            yield from page.sessions
            token = page.next_page_token
            if not token:
                return

    def end(self, session):
        """Ends a session. The next prompt would open it again."""
        request = sessions_pb2.CloseSessionRequest(session_id=session)
        self.calls.Close(request, metadata=self.metadata)


STATUS = {
    events_pb2.TOOL_STATUS_PENDING: "pending",
    events_pb2.TOOL_STATUS_IN_PROGRESS: "in_progress",
    events_pb2.TOOL_STATUS_COMPLETED: "completed",
    events_pb2.TOOL_STATUS_FAILED: "failed",
}


def describe(event):
    """An event in one line. What a plug-in does not know it may leave out."""
    kind = event.WhichOneof("kind")
    match kind:
        case "agent_message" | "agent_thought" | "user_message":
            return f"{kind}: {getattr(event, kind).content.text!r}"
        case "tool_call":
            call = event.tool_call
            return f"tool {call.name} ({call.title}): {STATUS.get(call.status, 'unknown')}"
        case "plan":
            return "plan: " + ", ".join(f"{step.content} [{step.status}]" for step in event.plan.entries)
        case "permission_requested":
            asked = event.permission_requested
            options = ", ".join(option.option_id for option in asked.options)
            return f"permission {asked.request} for {asked.tool_call.title}: {options}"
        case "permission_resolved":
            it = event.permission_resolved
            return f"permission {it.request}: {it.outcome} {it.option_id} by {it.by or 'the conductor'}"
        case "turn_started":
            return f"turn of {event.turn_started.user}"
        case "turn_ended":
            end = event.turn_ended
            return f"turn ended: {end.error or end.stop_reason}"
        case _:
            return kind or "something newer than this program"
