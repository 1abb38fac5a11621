"""Clients that the lab tries against the demo agent: programs that people use, without a screen."""

import os
import shlex
import subprocess
from pathlib import Path

from agents import NPM

PATIENCE = 60  # seconds that one command may take

ACPX_STEPS = [
    ("stream", "prompt, streamed"),
    ("allow", "permission, allowed"),
    ("deny", "permission, rejected"),
    ("files", "read, write"),
    ("terminal", "terminal"),
    ("reopen", "session over several bridges"),
    ("cancel", "cancel"),
    ("options", "model, mode"),
    ("list", "list"),
    ("close", "close"),
]


class Acpx:
    """acpx, a client for the command line. It keeps sessions over many runs of itself."""

    title, version, steps = "acpx", "0.19.1", ACPX_STEPS
    install = [[*NPM, "acpx@0.19.1"]]

    def __init__(self, service, installer):
        self.work = service.work
        # Where there are others to pick from, a model stands behind its agent's name.
        self.large = "demo/demo-large" if service.scripted else "demo-large"
        self.program = installer.root / "acpx/node_modules/.bin/acpx"
        path = f"{installer.node}{os.pathsep}{os.environ['PATH']}"
        self.env = {**service.env, "PATH": path}
        self.bridge = f"{shlex.quote(str(service.conductor))} connect --agent demo"

    def command(self, *args):
        command = [self.program, "--agent", self.bridge, "--cwd", self.work, "--ttl", "5", *args]
        return {"args": command, "env": self.env, "stdin": subprocess.DEVNULL, "text": True}

    def run(self, *args, code=0):
        done = subprocess.run(**self.command(*args), capture_output=True, timeout=PATIENCE)
        assert done.returncode == code, f"acpx {args} ended with {done.returncode}: {done.stdout} {done.stderr}"
        return done.stdout

    def expect(self, text, *args, code=0):
        said = self.run(*args, code=code)
        assert text in said, f"acpx {args} said {said!r}, not {text!r}"

    def stream(self):
        self.expect("chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3", "exec", "stream 3")

    def allow(self):
        self.expect("which means allow_once", "--approve-all", "exec", "ask")

    def deny(self):
        self.expect("which means reject_once", "--deny-all", "exec", "ask", code=5)

    def files(self):
        file = self.work / "acpx.txt"
        self.expect("I wrote 5 bytes", "--approve-all", "exec", f"write {file} hello")
        assert file.read_text() == "hello", file.read_text()
        self.expect("I read 5 bytes", "--approve-all", "exec", f"read {file}")

    def terminal(self):
        self.expect("ended with exit code 0", "--approve-all", "exec", "run echo out")

    def reopen(self):
        self.run("sessions", "new")
        self.expect("chunk 2 of 2", "stream 2")

    def cancel(self):
        with subprocess.Popen(**self.command("slow 60"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as turn:
            said = ""
            while "second 1 of 60" not in said:
                line = turn.stdout.readline()
                assert line, f"the turn ended early: {said!r}"
                said += line
            self.run("cancel")
            rest, _ = turn.communicate(timeout=PATIENCE)
        assert "[done] cancelled" in rest, f"the turn ended with {rest!r}"

    def options(self):
        self.expect("demo-large", "set", "model", self.large)
        self.expect("code", "set-mode", "code")
        self.expect("- model: demo-large\n- mode: code\n", "whoami")

    def list(self):
        self.expect("stream 2", "sessions", "list")

    def close(self):
        self.run("sessions", "close")


CLIENTS = {"acpx": Acpx}
