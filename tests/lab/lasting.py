"""Steps that end something the session needs: the bridge's way, the agent's process, the service."""

import contextlib
import json
import os
import signal
import time

from editor import PATIENCE, Refused, Skip
from proxy import Proxy

STEPS = [
    ("cut", "cut off in a turn"),
    ("agent_killed", "agent killed"),
    ("service_killed", "service killed, load"),
]

SECRET = "the password is marmalade"
LATER = "what was the password again?"


class Lasting:
    """The steps, for a trial. Each has an editor and a session of its own."""

    def begin(self, *args):
        """A fresh editor with a session in which something was said."""
        self.leave()
        self.connect(*args)
        self.answer_permissions("allow_once")
        self.session = self.new()
        self.plain_turn(SECRET)

    def leave(self):
        if self.editor:
            self.editor.close()
            self.editor = None

    def goes_on(self):
        """The next turn works, and whoever answers it knows what was said before."""
        stop, chunks = self.turn(f"{LATER} [lab:stream 3]")
        assert stop == "end_turn", f"the turn ended with {stop}"
        if self.agent.scripted:
            asked = [text for text in self.model.seen if LATER in text]
            assert asked, "the model was not asked"
            assert any(SECRET in text for text in asked), f"the model did not hear of it: {asked[-1][:2000]}"
        elif self.agent.echoes:
            assert SECRET in "".join(chunks), f"the agent did not hear of it: {chunks}"
        self.model.seen.clear()

    def bound(self):
        """How the session came to its agent, each time."""
        record = self.service.output("sessions", "export", self.session)
        notes = [json.loads(line) for line in record.splitlines() if "_conductor/session_bound" in line]
        params = [(note.get("frame") or json.loads(note.get("raw") or "{}")).get("params") or {} for note in notes]
        return [given["how"] for given in params if given.get("how")]

    def begin_turn(self, order):
        """A turn that is under way; a function that waits for its answer."""
        since = len(self.editor.updates)
        if self.agent.scripted:
            answer = self.editor.prompt(self.session, f"take your time [lab:{order}]")
            self.editor.wait_until(lambda: self.editor.chunks(self.session, since), "the first chunk")
            return answer, since
        # A fixed script asks, and waits for the answer.
        self.take_permissions()
        return self.editor.prompt(self.session, "take your time"), since

    def kill_agent(self):
        """Kills its processes, and waits until the service has seen it: what is sent earlier fails, rightly."""
        killed = self.service.pids(self.name)
        for pid in killed:
            # One that rested may be gone already.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while set(killed) & set(self.service.pids(self.name)):
            assert time.monotonic() < until, "the service does not see that its agent is gone"
            time.sleep(0.05)

    # The steps.

    def cut(self):
        if not self.agent.slow:
            raise Skip("its turns end at once")
        proxy = Proxy(self.service.port())
        try:
            self.begin("--endpoint", f"127.0.0.1:{proxy.port}")
            answer, since = self.begin_turn("stream 100")
            request = None if self.agent.scripted else self.editor.permission()
            before = proxy.connections
            proxy.cut()
            if request:
                self.editor.decide(request, "allow_once")
            stop = answer()["stopReason"]
            assert stop == "end_turn", f"the turn ended with {stop}"
            assert proxy.connections > before, "the bridge was not cut off"
            said = "".join(self.editor.chunks(self.session, since)).split()
            if self.agent.scripted:
                assert said == [f"word{number}" for number in range(100)], f"the answer was {said}"
            self.leave()
        finally:
            proxy.close()

    def agent_killed(self):
        self.begin()
        answer = None
        if self.agent.slow:
            answer, _ = self.begin_turn("slow")
            if not self.agent.scripted:
                self.editor.permission()
        self.kill_agent()
        if answer:
            try:
                stop = answer()["stopReason"]
            except Refused as refused:
                assert "SIGKILL" in str(refused), f"the turn ended with {refused}"
            else:
                raise AssertionError(f"the turn ended with {stop}")
        self.answer_permissions("allow_once")
        self.goes_on()
        self.ways = self.bound()
        assert self.ways[0] == "new" and len(self.ways) > 1, f"the session was bound by {self.ways}"

    def service_killed(self):
        self.begin()
        live = self.editor.told(self.session)
        self.editor.kill()
        self.service.kill()
        self.service.start()
        self.connect()
        listed = [session["sessionId"] for session in self.editor.call("session/list", {})["sessions"]]
        assert self.session in listed, f"it is not among {len(listed)} sessions"
        params = {"sessionId": self.session, "cwd": str(self.service.work), "mcpServers": []}
        self.editor.call("session/load", params)
        asked = "".join(self.editor.chunks(self.session, kind="user_message_chunk"))
        assert SECRET in asked, f"the history tells of {asked!r}"
        told = [update for update in self.editor.told(self.session) if update["sessionUpdate"] != "user_message_chunk"]
        live = [update for update in live if update["sessionUpdate"] != "user_message_chunk"]
        assert told[: len(live)] == live, f"the history is {told}, not {live}"
        self.answer_permissions("allow_once")
        self.goes_on()
