"""Somebody in a second terminal answers what the rules leave to approvers."""

import json
import subprocess
import time

from editor import Skip

STEPS = [("approve", "an approver allows"), ("reject", "an approver denies")]

# `mkdir` is for approvers; whoever drives the session is not asked.
RULES = """use = ["default"]

[[rule]]
id = "lab-approval"
effect = "ask"
reason = "a second person looks at this"
run = { program = ["mkdir"] }
ask = { approvers = { role = ["approver"] }, driver = false, self = false, timeout = "2m" }
"""


class Approving:
    """Steps of a trial that need a second person."""

    def approver(self, *args):
        """Runs a command as somebody else, who has the role for it."""
        if not hasattr(self.service, "approver_env"):
            made = json.loads(self.service.output("token", "create", "--user", "lea", "--role", "approver", "--json"))
            self.service.approver_env = self.service.env | {"CONDUCTOR_TOKEN": made["token"]}
        command = [self.service.conductor, "approvals", *args]
        return subprocess.run(command, env=self.service.approver_env, check=True, stdout=subprocess.PIPE, text=True).stdout

    def by_approver(self, answer):
        if not (self.agent.asks and self.agent.scripted):
            raise Skip("its tool calls are fixed")
        self.take_permissions()
        made = self.service.work / f"{self.name}-{answer}"
        turn = self.editor.prompt(self.session, f"do it [lab:run mkdir {made}]")
        until = time.monotonic() + 30
        while not (waiting := json.loads(self.approver("ls", "--json"))["approvals"]):
            assert time.monotonic() < until, "no question came"
            time.sleep(0.1)
        actions = waiting[0]["actions"]
        assert any(str(made) in action for action in actions), f"the question was {actions}"
        assert not made.exists(), "the command ran before anybody had answered"
        self.approver(answer, waiting[0]["id"])
        stop = turn()["stopReason"]
        assert self.editor.permissions.empty(), "whoever drives the session was asked"
        assert made.exists() == (answer == "allow"), f"{made.name} exists: {made.exists()}"
        return stop

    def approve(self):
        stop = self.by_approver("allow")
        assert stop == "end_turn", f"the turn ended with {stop}"

    def reject(self):
        # Whether the agent then goes on or ends the turn is its own affair.
        self.by_approver("deny")
