"""The agents that the lab tries: how each is installed, by package name, and run."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Agent:
    """One agent. Text may name {DIR}, where it is installed, {MODEL}, the fake model's address, and {NODE}."""

    title: str
    version: str
    install: list  # commands, run in {DIR}
    command: str
    args: list = field(default_factory=list)
    env: dict = field(default_factory=dict)
    node24: bool = False  # it needs a newer Node than the machine may have
    scripted: bool = True  # it does what the fake model says; else what its own script says
    asks: bool = True  # it asks for permission before it runs a command
    slow: bool = True  # a turn of it lasts long enough to be cancelled
    note: str = ""


NPM = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error", "--prefix", "{DIR}"]
SDIST = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", "{DIR}"]


def python(version, *packages):
    """Steps that make an environment for packages; uv finds a Python of that version."""
    return [
        ["uv", "venv", "--quiet", "--allow-existing", "--python", version, "{DIR}/venv"],
        ["uv", "pip", "install", "--quiet", "--python", "{DIR}/venv/bin/python", *packages],
    ]


PY_EXAMPLES = [
    *python(">=3.10", "agent-client-protocol==0.12.1"),
    [*SDIST, "agent-client-protocol==0.12.1"],
    ["tar", "-xzf", "{DIR}/agent_client_protocol-0.12.1.tar.gz", "-C", "{DIR}"],
]
PY_EXAMPLE = "{DIR}/agent_client_protocol-0.12.1/examples"

AGENTS = {
    "claude": Agent(
        title="Claude Code (claude-agent-acp)",
        version="0.99.1",
        install=[[*NPM, "@agentclientprotocol/claude-agent-acp@0.99.1"]],
        command="{DIR}/node_modules/.bin/claude-agent-acp",
        node24=True,
        env={
            "ANTHROPIC_BASE_URL": "{MODEL}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "goose": Agent(
        title="goose",
        version="0.20.1",
        install=[[*NPM, "@aaif/goose@0.20.1"]],
        command="{DIR}/node_modules/.bin/goose",
        args=["acp", "--with-builtin", "developer"],
        env={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "gpt-4o",
            "GOOSE_MODE": "approve",
            "GOOSE_DISABLE_KEYRING": "1",
            "GOOSE_TELEMETRY_ENABLED": "false",
            "OPENAI_HOST": "{MODEL}",
            "OPENAI_API_KEY": "none",
        },
    ),
    "fast-agent": Agent(
        title="fast-agent",
        version="0.10.46",
        install=python("3.13", "fast-agent-mcp==0.10.46"),
        command="{DIR}/venv/bin/fast-agent-acp",
        args=["--model", "generic.gpt-4o", "--shell"],
        env={"GENERIC_BASE_URL": "{MODEL}/v1", "GENERIC_API_KEY": "none"},
    ),
    "ts-example": Agent(
        title="example of the TypeScript SDK",
        version="1.9.0",
        install=[[*NPM, "@agentclientprotocol/sdk@1.9.0"]],
        command="node",
        args=["{DIR}/node_modules/@agentclientprotocol/sdk/dist/examples/agent.js"],
        scripted=False,
        note="plays one fixed turn",
    ),
    "py-example": Agent(
        title="example of the Python SDK",
        version="0.12.1",
        install=PY_EXAMPLES,
        command="{DIR}/venv/bin/python",
        args=[PY_EXAMPLE + "/agent.py"],
        scripted=False,
        asks=False,
        slow=False,
        note="answers at once, has no tools",
    ),
    "py-echo": Agent(
        title="echo example of the Python SDK",
        version="0.12.1",
        install=PY_EXAMPLES,
        command="{DIR}/venv/bin/python",
        args=[PY_EXAMPLE + "/echo_agent.py"],
        scripted=False,
        asks=False,
        slow=False,
        note="answers at once and in one piece, has no tools",
    ),
}


class Installer:
    """Installs agents beneath a directory, each once."""

    def __init__(self, root):
        self.root = root
        self.tools = root / "tools"
        self.node = root / "node24/node_modules/node/bin"
        # uv looks for Pythons on PATH, where pyenv has only the one in use.
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        pythons = sorted(str(path) for path in pyenv.glob("versions/*/bin"))
        path = os.pathsep.join([f"{self.tools}/bin", os.environ["PATH"], *pythons])
        self.env = {**os.environ, "PATH": path}

    def directory(self, name):
        return self.root / ("py-sdk" if AGENTS[name].install is PY_EXAMPLES else name)

    def install(self, name):
        agent = AGENTS[name]
        if any(step[0] in ("uv", "pip") for step in agent.install):
            self.once("tools", [[sys.executable, "-m", "venv", "{DIR}"], ["{DIR}/bin/pip", "install", "--quiet", "uv"]])
        if agent.node24:
            self.once("node24", [[*NPM, "node@24"], ["{DIR}/node_modules/node/bin/node", "--version"]])
        self.once(self.directory(name).name, agent.install, with_node=agent.node24)

    def once(self, name, steps, with_node=False):
        directory = self.root / name
        stamp = directory / ".installed"
        if stamp.exists() and stamp.read_text() == repr(steps):
            return
        print(f"lab: installing {name} into {directory}", file=sys.stderr, flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        env = self.env
        if with_node:
            env = {**env, "PATH": f"{self.node}{os.pathsep}{env['PATH']}"}
        for step in steps:
            step = [word.replace("{DIR}", str(directory)) for word in step]
            subprocess.run(step, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
        stamp.write_text(repr(steps))

    def table(self, name, model):
        """The agent's table in agents.toml, as a dictionary."""
        agent = AGENTS[name]

        def fill(text):
            return text.replace("{DIR}", str(self.directory(name))).replace("{MODEL}", model)

        path = os.environ["PATH"]
        if agent.node24:
            path = f"{self.node}{os.pathsep}{path}"
        command = fill(agent.command)
        return {
            "title": agent.title,
            "command": str(Path(command)),
            "args": [fill(arg) for arg in agent.args],
            "env": {"PATH": path, **{key: fill(value) for key, value in agent.env.items()}},
            "home": "isolated",
            "warm": 0,
            "start_timeout": "60s",
        }
