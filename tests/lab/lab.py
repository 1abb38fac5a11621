#!/usr/bin/env python3
"""Tries real agents and clients with a real conductor and a fake model on loopback.

  lab.py [--root DIR] [--conductor FILE] [--home HOME] [--bubble] [--json] [--readme FILE] [NAME…]

Installs each by package name beneath DIR (once), starts `conductor serve` with
all agents, drives each through `conductor connect`, has each client talk to the
demo agent, and prints what worked. Exits with 1 if something failed that the
agent offers. Needs Python 3.11, npm, and for some agents a Python 3.13 that uv
finds.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import model
from agents import AGENTS, Installer
from approving import RULES, Approving
from approving import STEPS as APPROVING_STEPS
from clients import CLIENTS
from editor import PATIENCE, Editor, Refused, Skip
from lasting import STEPS as LASTING_STEPS
from lasting import Lasting
from moving import STEPS as MOVING_STEPS
from moving import Moving

# Key, heading, of every step; in the order in which they are tried.
STEPS = [
    ("open", "initialize, new"),
    ("stream", "prompt, streamed"),
    ("allow", "tool call, allowed"),
    ("deny", "tool call, rejected"),
    ("rule_allow", "policy allows"),
    ("rule_deny", "policy denies"),
    ("contained", "sandboxed"),
    *APPROVING_STEPS,
    ("cancel", "cancel"),
    ("cancel_ask", "cancel while asked"),
    ("close", "close"),
    ("load", "restart, load"),
    ("resume", "restart, resume"),
    *LASTING_STEPS,
    *MOVING_STEPS,
]


def run_steps(trial, steps):
    """What became of each step; nothing more is tried once the first has failed."""
    results = {}
    for key, _ in steps:
        try:
            getattr(trial, key)()
            results[key] = "yes"
        except Skip as why:
            results[key] = f"not offered: {why}"
        except (Refused, AssertionError, OSError, KeyError, subprocess.SubprocessError) as error:
            results[key] = f"failed: {type(error).__name__}: {error}"
        if list(results.values()) != ["yes"] and len(results) == 1:
            break
    return results


class Trial(Approving, Lasting, Moving):
    """One agent being tried."""

    def __init__(self, service, name, fake):
        self.service, self.name, self.agent, self.model = service, name, AGENTS[name], fake
        self.editor = None
        self.session = None
        self.capabilities = {}
        self.opened = self.seconds = None
        self.ways = []  # how a session came to its agents when one was killed

    def run(self):
        results = run_steps(self, STEPS)
        self.leave()
        return results

    def connect(self, *args):
        self.editor = self.service.editor(self.name, *args)
        hello = self.editor.initialize()
        self.capabilities = hello["agentCapabilities"]
        return hello

    def new(self):
        params = {"cwd": str(self.service.work), "mcpServers": []}
        return self.editor.call("session/new", params)["sessionId"]

    def turn(self, text):
        since = len(self.editor.updates)
        answer = self.editor.prompt(self.session, text)
        stop = answer()["stopReason"]
        return stop, self.editor.chunks(self.session, since)

    def plain_turn(self, marker):
        """A turn that must simply work."""
        stop, chunks = self.turn(f"{marker} [lab:stream 3]")
        assert stop == "end_turn", f"the turn ended with {stop}"
        said = "".join(chunks)
        if self.agent.scripted:
            assert said.split() == ["word0", "word1", "word2"], f"the answer was {said!r}"
        else:
            assert said, "there was no answer"

    # The steps.

    def open(self):
        start = time.monotonic()
        hello = self.connect()
        assert hello["protocolVersion"] == 1, hello
        self.session = self.new()
        self.opened = time.monotonic()
        self.seconds = round(self.opened - start, 1)

    def stream(self):
        self.answer_permissions("allow_once")
        stop, chunks = self.turn("first things first [lab:stream 20]")
        assert stop == "end_turn", f"the turn ended with {stop}"
        said = "".join(chunks)
        if self.agent.scripted:
            wanted = [f"word{number}" for number in range(20)]
            assert said.split() == wanted, f"the answer was {said!r}"
            assert len(chunks) > 1, "the answer came in one piece"
        else:
            assert said, "there was no answer"

    def answer_permissions(self, kind):
        """A fixed script asks in every turn."""
        if not self.agent.scripted and self.agent.asks:
            decide = self.editor.decide
            self.editor.permissions.put = lambda request: decide(request, kind)

    def take_permissions(self):
        self.editor.permissions.__dict__.pop("put", None)

    def tool(self, kind):
        if not self.agent.asks:
            raise Skip("it has no tools")
        self.take_permissions()
        made = self.service.work / f"{self.name}-{kind}"
        answer = self.editor.prompt(self.session, f"make it [lab:run touch {made}]")
        self.editor.decide(self.editor.permission(), kind)
        stop = answer()["stopReason"]
        if self.agent.scripted:
            assert made.exists() == (kind == "allow_once"), f"{made.name} exists: {made.exists()}"
        return stop

    def allow(self):
        stop = self.tool("allow_once")
        assert stop == "end_turn", f"the turn ended with {stop}"

    def deny(self):
        # Whether the agent then goes on or ends the turn is its own affair.
        self.tool("reject_once")

    def by_rule(self, line):
        """Runs a command about which the policy decides alone."""
        if not (self.agent.asks and self.agent.scripted):
            raise Skip("its tool calls are fixed")
        self.take_permissions()
        answer = self.editor.prompt(self.session, f"do it [lab:run {line}]")
        stop = answer()["stopReason"]
        assert self.editor.permissions.empty(), "somebody was asked"
        return stop

    def rule_allow(self):
        stop = self.by_rule(f"ls -la {self.service.work}")
        assert stop == "end_turn", f"the turn ended with {stop}"

    def rule_deny(self):
        made = self.service.work / f"{self.name}-denied"
        self.by_rule(f"sudo touch {made}")
        assert not made.exists(), "the command ran all the same"

    def contained(self):
        """The kernel holds it: what is allowed, but out of reach, does not happen."""
        process = next(process for process in self.service.processes(self.name) if process["sessions"])
        sandbox = process["sandbox"]
        assert sandbox["mode"] == "required" and not sandbox["missing"], f"it is held by {sandbox}"
        assert set(self.service.layers) <= set(sandbox["layers"]), f"it is held by {sandbox}"
        if not (self.agent.asks and self.agent.scripted):
            return
        outside, leak = self.service.directory / "outside", self.service.work / f"{self.name}-leak"
        outside.write_text("secret")
        self.run_allowed(f"cp {outside} {leak}")
        assert not leak.exists(), "it has read what is out of its reach"
        assert outside.read_text() == "secret"
        if "bwrap" in self.service.layers:
            self.plant()

    def plant(self):
        """What others would run cannot be put into the project, though all beside it can be changed."""
        work = self.service.work
        script, done = work / f"{self.name}-plant.sh", work / f"{self.name}-planted"
        places = [work / ".git/hooks/post-commit", work / ".vscode/tasks.json", work / ".claude/settings.json"]
        # No rule sees what a script does.
        script.write_text("".join(f"echo x >> {place}\n" for place in places) + f"echo done > {done}\n")
        self.run_allowed(f"sh {script}")
        assert done.exists(), "the script did not run"
        planted = [str(place) for place in places if place.exists()]
        assert not planted, f"it has planted {planted}"

    def run_allowed(self, line):
        """Runs a command that everybody allows."""
        # Some ask twice: about the command, and about where it leads.
        self.editor.permissions.put = lambda request: self.editor.decide(request, "allow_once")
        self.editor.prompt(self.session, f"do it [lab:run {line}]")()
        self.take_permissions()

    def cancel(self):
        if not self.agent.slow:
            raise Skip("its turns end at once")
        since = len(self.editor.updates)
        answer = self.editor.prompt(self.session, "take your time [lab:slow]")
        self.editor.wait_until(lambda: self.editor.chunks(self.session, since), "the first chunk")
        self.editor.notify("session/cancel", {"sessionId": self.session})
        stop = answer()["stopReason"]
        assert stop == "cancelled", f"the turn ended with {stop}"
        self.answer_permissions("allow_once")
        self.plain_turn("after the cancel")

    def cancel_ask(self):
        if not self.agent.asks:
            raise Skip("it has no tools")
        self.take_permissions()
        made = self.service.work / f"{self.name}-cancelled"
        answer = self.editor.prompt(self.session, f"make it [lab:run touch {made}]")
        self.editor.permission()
        self.editor.notify("session/cancel", {"sessionId": self.session})
        stop = answer()["stopReason"]
        assert stop == "cancelled", f"the turn ended with {stop}"
        assert not made.exists(), "the command ran all the same"
        self.answer_permissions("allow_once")
        self.plain_turn("after the second cancel")

    def close(self):
        other = self.new()
        self.editor.call("session/close", {"sessionId": other})
        try:
            self.editor.prompt(other, "are you there?")()
        except Refused:
            return
        raise AssertionError("a closed session still answers")

    def reopen(self, method):
        """Ends the agent's process and opens the session in a new one; what came before the answer."""
        self.editor.close()
        self.service.run("agents", "restart", self.name, "--force")
        self.connect()
        self.answer_permissions("allow_once")
        params = {"sessionId": self.session, "cwd": str(self.service.work), "mcpServers": []}
        self.editor.call(method, params)
        return self.editor.chunks(self.session, kind="user_message_chunk")

    def load(self):
        if not self.capabilities.get("loadSession"):
            raise Skip("it cannot load sessions")
        time.sleep(max(0, self.opened + self.agent.load_after - time.monotonic()))
        self.reopen("session/load")
        # Gemini CLI goes on telling the history after its answer, also without the conductor.
        told = lambda: "".join(self.editor.chunks(self.session, kind="user_message_chunk"))
        self.editor.wait_until(lambda: "first things first" in told(), "the first prompt in the history")
        seen = -1
        while seen != len(self.editor.updates):
            seen = len(self.editor.updates)
            time.sleep(1)
        self.plain_turn("after the load")

    def resume(self):
        if (self.capabilities.get("sessionCapabilities") or {}).get("resume") is None:
            raise Skip("it cannot resume sessions")
        told = self.reopen("session/resume")
        assert not told, f"history was told: {told[:3]}"
        self.plain_turn("after the resume")


class Service:
    """A `conductor serve` of the lab's own."""

    def __init__(self, conductor, directory, agents):
        self.conductor, self.directory = conductor, directory
        self.scripted = [name for name in agents if AGENTS[name].scripted]
        self.layers = sorted({layer for agent in agents.values() for layer in agent["sandbox_layers"]})
        self.work = directory / "work"
        self.work.mkdir()
        # As a project is one, with what others run from it.
        subprocess.run(["git", "init", "--quiet", self.work], check=True)
        self.endpoint = directory / "state/endpoint"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("CONDUCTOR_")}
        self.env |= {"CONDUCTOR_STATE_DIR": str(directory / "state"), "HOME": str(directory), "TMPDIR": str(directory / "tmp")}
        self.config = directory / "agents.toml"
        # Keys stand in it, if only for a fake model: a file that all may read is refused.
        self.config.touch(mode=0o600)
        rules = directory / "policy.toml"
        rules.write_text(RULES)
        self.config.write_text(toml({"roots": [str(self.work)], "policy": {"file": str(rules)}, "agents": agents}))
        self.log = directory / "serve.log"
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.conductor, "serve", "--config", self.config, "--listen", "127.0.0.1:0"],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + PATIENCE
        while not self.endpoint.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"lab: the service does not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait(30)
        # Else it would be taken for the next one's.
        self.endpoint.unlink()

    def port(self):
        return int(self.endpoint.read_text().rpartition(":")[2])

    def processes(self, name):
        """The processes of an agent."""
        agents = json.loads(self.output("agents", "--json"))
        return next(agent for agent in agents if agent["name"] == name)["processes"]

    def pids(self, name):
        """Their ids."""
        return [process["pid"] for process in self.processes(name) if process["pid"]]

    def editor(self, name, *args):
        return Editor([self.conductor, "connect", "--agent", name, *args], self.env)

    def run(self, *args):
        subprocess.run([self.conductor, *args], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def output(self, *args):
        done = subprocess.run([self.conductor, *args], env=self.env, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def toml(table, path=()):
    """A table as TOML; JSON's strings, lists and numbers are TOML's too."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{'.'.join(path)}]"] if path else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    text = "\n".join(lines) + "\n"
    return text + "".join(toml(value, (*path, key)) for key, value in table.items() if isinstance(value, dict))


def mark(result):
    return "✓" if result == "yes" else "–" if result.startswith("not offered") else "✗"


def markdown(what, steps, rows):
    """A table of (title, version, results)."""
    lines = [[what, "version", *(heading for _, heading in steps)], ["---"] * 2 + [":-:"] * len(steps)]
    for title, version, results in rows:
        lines.append([title, version, *(mark(results.get(key, "failed")) for key, _ in steps)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables(results):
    """All results as Markdown: the agents, then each client, whose steps are its own."""
    rows = []
    for name in filter(AGENTS.get, results):
        agent = AGENTS[name]
        title = f"{agent.title} ({agent.note})" if agent.note else agent.title
        rows.append((title, agent.version, results[name]["steps"]))
    found = [markdown("agent", STEPS, rows)] if rows else []
    for name in filter(CLIENTS.get, results):
        client = CLIENTS[name]
        found.append(markdown("client", client.steps, [(client.title, client.version, results[name]["steps"])]))
    return "\n".join(found)


def put_into(readme, table):
    """Replaces what lies between the lab's two marks."""
    begin, end = "<!-- lab: begin -->\n", "<!-- lab: end -->\n"
    text = readme.read_text()
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"lab: {readme} lacks the lines {begin.strip()} and {end.strip()}")
    readme.write_text(before + begin + table + end + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top = Path(__file__).resolve().parents[2]
    parser.add_argument("--root", type=Path, default=top / "target/lab", help="where agents are installed")
    parser.add_argument("--conductor", type=Path, default=top / "target/debug/conductor", help="which program is tried")
    parser.add_argument("--home", choices=["isolated", "inherit"], default="isolated", help="which home agents see")
    parser.add_argument("--bubble", action="store_true", help="hold agents by bubblewrap, too")
    parser.add_argument("--json", action="store_true", help="print every result with its reason")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put the table into FILE too")
    parser.add_argument("names", nargs="*", metavar="NAME", help="agents and clients; default: all")
    given = parser.parse_args()
    known = [*AGENTS, *CLIENTS]
    unknown = set(given.names) - set(known)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}, but {', '.join(known)}")
    names = given.names or known
    results = try_all(names, Installer(given.root.resolve()), given.conductor.resolve(), given.home, given.bubble)
    steps = [(name, key, why) for name in names for key, why in results[name]["steps"].items()]
    failed = [step for step in steps if step[2].startswith("failed")]
    if given.json:
        print(json.dumps({"results": results, "failed": len(failed)}, indent=2))
    else:
        print(tables(results))
    for name, key, why in failed:
        print(f"lab: {name}: {key}: {why}", file=sys.stderr)
    if failed:
        sys.exit(1)
    if given.readme:
        put_into(given.readme, tables(results))


def try_all(names, installer, conductor, home, bubble):
    """Installs and tries everything named; the results by name."""
    results = {}
    for name in names:
        try:
            if name in AGENTS:
                installer.install(name)
            else:
                installer.install_as(name, CLIENTS[name].install, node24=True)
        except (OSError, subprocess.CalledProcessError) as error:
            results[name] = {"steps": {"open": f"failed: cannot be installed: {error}"}}
    fake = model.start()
    ready = [name for name in names if name not in results]
    with tempfile.TemporaryDirectory(prefix="conductor-lab-", ignore_cleanup_errors=True) as directory:
        tmp = Path(directory, "tmp")
        tmp.mkdir()
        agents = {name: installer.table(name, fake.address, home, bubble) for name in ready if name in AGENTS}
        service = Service(conductor, Path(directory), agents)
        for name in ready:
            print(f"lab: trying {name}", file=sys.stderr, flush=True)
            if name in AGENTS:
                trial = Trial(service, name, fake)
                results[name] = {"version": trial.agent.version, "steps": trial.run(), "opened_after_s": trial.seconds}
                results[name]["bound_by"] = trial.ways
            else:
                client = CLIENTS[name](service, installer)
                results[name] = {"version": client.version, "steps": run_steps(client, client.steps)}
        ended = service.stop()
        if ended != 0 or any(why.startswith("failed") for name in ready for why in results[name]["steps"].values()):
            print(f"lab: end of the service's log:\n{service.log.read_text()[-3000:]}", file=sys.stderr)
        if ended != 0:
            sys.exit(f"lab: the service ended with {ended}")
    return {name: results[name] for name in names}


if __name__ == "__main__":
    main()
