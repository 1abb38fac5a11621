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
    echoes: bool = False  # it says what it was told
    asks: bool = True  # it asks for permission before it runs a command
    slow: bool = True  # a turn of it lasts long enough to be cancelled
    load_after: float = 0  # seconds that a session must be old before it can be loaded
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

CODEX = """{
    "model": "gpt-5",
    "model_provider": "lab",
    "model_providers": {"lab": {
        "name": "lab",
        "base_url": "{MODEL}/v1",
        "wire_api": "responses",
        "env_key": "LAB_API_KEY"
    }}
}"""

OPENCODE = """{
    "provider": {"lab": {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": "{MODEL}/v1", "apiKey": "none"},
        "models": {"gpt-4o": {}}
    }},
    "model": "lab/gpt-4o",
    "permission": {"bash": "ask"}
}"""

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
    "codex": Agent(
        title="Codex (codex-acp)",
        version="2.6.0",
        install=[[*NPM, "@agentclientprotocol/codex-acp@2.6.0"]],
        command="{DIR}/node_modules/.bin/codex-acp",
        node24=True,
        env={"CODEX_CONFIG": CODEX, "MODEL_PROVIDER": "lab", "LAB_API_KEY": "none", "INITIAL_AGENT_MODE": "read-only"},
    ),
    "gemini": Agent(
        title="Gemini CLI",
        version="0.61.0",
        install=[[*NPM, "@google/gemini-cli@0.61.0"]],
        command="{DIR}/node_modules/.bin/gemini",
        args=["--acp", "--model", "gemini-2.5-flash"],
        node24=True,
        env={"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": "{MODEL}"},
        # Seen: seconds after it was made, the session is not found; a minute later it is.
        load_after=65,
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
    "opencode": Agent(
        title="OpenCode",
        version="1.18.33",
        install=[[*NPM, "opencode-ai@1.18.33"]],
        command="{DIR}/node_modules/.bin/opencode",
        args=["acp"],
        env={"OPENCODE_CONFIG_CONTENT": OPENCODE, "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    "qwen": Agent(
        title="Qwen Code",
        version="0.24.4",
        install=[[*NPM, "@qwen-code/qwen-code@0.24.4"]],
        command="{DIR}/node_modules/.bin/qwen",
        args=["--acp", "--auth-type", "openai"],
        node24=True,
        env={"OPENAI_BASE_URL": "{MODEL}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "gpt-4o"},
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
        echoes=True,
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
        self.install_as(self.directory(name).name, agent.install, agent.node24)

    def install_as(self, name, steps, node24):
        """Takes the steps, and before them the tools that they need."""
        if any(step[0] in ("uv", "pip") for step in steps):
            self.once("tools", [[sys.executable, "-m", "venv", "{DIR}"], ["{DIR}/bin/pip", "install", "--quiet", "uv"]])
        if node24:
            self.once("node24", [[*NPM, "node@24"], ["{DIR}/node_modules/node/bin/node", "--version"]])
        self.once(name, steps, with_node=node24)

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

    def table(self, name, model, home, bubble):
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
            "home": home,
            "sandbox": "required",
            "sandbox_layers": ["landlock", "scope", "seccomp", *(["bwrap"] if bubble else [])],
            "warm": 0,
            "start_timeout": "60s",
        }
