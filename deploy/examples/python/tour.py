"""A tour of the typed service with the built-in demo agent, which needs no
model: see README.md. Events go to stderr, a summary goes to stdout as JSON.
"""

import json
import sys
import threading

import grpc

from client import STATUS, Conductor, after, describe


def show(who, event):
    print(f"{who} {event.seq:>4} {describe(event)}", file=sys.stderr)


class Watcher(threading.Thread):
    """A second client that watches a session until it ends. After the first turn
    it leaves, and later carries on where it was."""

    def __init__(self, session):
        super().__init__()
        self.session = session
        self.events = []
        self.left = threading.Event()
        self.back = threading.Event()

    def run(self):
        conductor = Conductor(client="python-watcher/1")
        self.watch(conductor, 1, "turn_ended")
        self.left.set()
        self.back.wait()
        self.watch(conductor, after(self.events[-1]), "session_ended")
        conductor.close()

    def watch(self, conductor, from_seq, last):
        for event in conductor.observe(self.session, from_seq):
            show("watcher", event)
            self.events.append(event)
            if event.WhichOneof("kind") == last:
                return


def main():
    (cwd,) = sys.argv[1:]
    conductor = Conductor()
    report = {}

    created = conductor.create(cwd, agent="demo")
    session = created.session_id
    report["options"] = [option.id for option in created.config_options]
    watcher = Watcher(session)
    watcher.start()

    def prompt(text, each=lambda event: None):
        """One turn: what was said, which tools were used, how it ended."""
        said, tools, end = "", [], None
        for event in conductor.prompt(session, text):
            show("driver ", event)
            each(event)
            match event.WhichOneof("kind"):
                case "agent_message":
                    said += event.agent_message.content.text
                case "tool_call":
                    tools.append([event.tool_call.name, STATUS[event.tool_call.status]])
                case "turn_ended":
                    end = event.turn_ended.error or event.turn_ended.stop_reason
        return {"said": said, "tools": tools, "end": end}

    report["tool"] = prompt("tool")

    # The model is an option of the category "model".
    model = next(option for option in created.config_options if option.category == "model")
    options = conductor.select(session, model.id, "demo-large")
    report["model"] = next(option.selected for option in options if option.id == model.id)

    # A permission is asked for in the turn; the first valid answer counts.
    def allow(event):
        if event.WhichOneof("kind") == "permission_requested":
            asked = event.permission_requested
            chosen = next(option for option in asked.options if option.kind == "allow_once")
            conductor.answer(session, asked.request, chosen.option_id)
            report["offered"] = [option.kind for option in asked.options]
            try:
                conductor.answer(session, asked.request, chosen.option_id)
            except grpc.RpcError as error:
                report["second answer"] = error.code().name
        elif event.WhichOneof("kind") == "permission_resolved":
            report["decision"] = event.permission_resolved.option_kind

    report["ask"] = prompt("ask", allow)

    # Who was away meanwhile misses nothing.
    watcher.left.wait()
    watcher.back.set()

    # While a turn runs, prompts wait; each can be taken back, or all are ended.
    running = conductor.prompt(session, "slow 60")
    while next(running).WhichOneof("kind") != "agent_message":
        pass
    waiting = conductor.prompt(session, "stream 3")
    queued = next(waiting).prompt_queued
    report["queue"] = [entry.text for entry in conductor.queue(session)]
    conductor.take_back(session, queued.entry)
    report["taken back"] = [event.turn_ended.stop_reason for event in waiting][-1]
    conductor.cancel(session)
    report["cancelled"] = [event.turn_ended.stop_reason for event in running][-1]

    report["listed"] = [entry.session_id for entry in conductor.list(page_size=1)] == [session]

    try:
        conductor.select(session, model.id, "demo-nonsense")
    except grpc.RpcError as error:
        report["nonsense"] = error.code().name

    conductor.end(session)
    watcher.join(timeout=60)
    seqs = [event.seq for event in watcher.events]
    report["watched"] = {
        "in order": seqs == sorted(seqs),
        "twice": len(seqs) - len({(event.seq, event.WhichOneof("kind")) for event in watcher.events}),
        "turns": [
            event.turn_ended.stop_reason
            for event in watcher.events
            if event.WhichOneof("kind") == "turn_ended"
        ],
        "ended": watcher.events[-1].WhichOneof("kind"),
    }
    conductor.close()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
