"""What the tour shows, picture by picture, in the order in which it happens.

Each scene has a label for those who cannot see it, and a function that plays it and gives back
the terminals to be drawn.
"""

AGENTS = '[policy]\nfile = "~/.config/conductor/policy.toml"\n'
POLICY = """\
use = ["default"]

[[rule]]
id = "no-production"
effect = "deny"
reason = "production is changed by the pipeline only"
run = { program = ["kubectl", "terraform"] }
match = [{ shell = "kubectl delete pod web-1" }]
"""
DEPLOYMENTS = """
[[rule]]
id = "deployments"
effect = "ask"
reason = "somebody else looks at deployments"
run = { program = ["make"], subcommand = ["deploy"] }
ask = { driver = false, self = false, timeout = "30m" }
match = [{ shell = "make deploy" }]
"""


def write(path, text):
    """A command that writes a file."""
    return f"mkdir -p $(dirname {path}) && cat > {path} <<'END'\n{text}END"


def prompt(place):
    place.quietly(write("Makefile", "deploy:\n\t@echo web is at 1.4.2\n"))
    place.serve()
    shell = place.terminal("ada@team: shop")
    shell.run("conductor prompt plan")
    shell.type('conductor prompt "write NOTES.md Checkout is faster now."')
    shell.see("Enter alone rejects:")
    shell.type("1")
    shell.ready()
    return [shell]


def policy(place):
    rules = "~/.config/conductor/policy.toml"
    place.quietly(write(rules, POLICY))
    place.quietly(write("~/.config/conductor/agents.toml", AGENTS))
    place.serve()
    shell = place.terminal("ada@team: shop")
    shell.run(
        f"tail -n 6 {rules}",
        f"conductor policy check {rules}",
        'conductor policy explain --run "git log | head -3 && kubectl delete pod web-1"',
        'conductor prompt "run kubectl delete pod web-1"',
    )
    return [shell]


def approvals(place):
    place.quietly(write("~/.config/conductor/policy.toml", POLICY + DEPLOYMENTS))
    place.serve()
    driver = place.terminal("ada@team: shop")
    lea = place.quietly("conductor token create --user lea --role approver 2>/dev/null").strip()
    approver = place.terminal("lea@team: a second terminal", CONDUCTOR_TOKEN=lea)
    approver.type("conductor approvals watch")
    approver.see("waiting for questions")
    driver.type('conductor prompt "run make deploy"')
    driver.see("Waiting for approval")
    approver.see("Enter to leave it:")
    approver.type("a")
    approver.see("allowed by lea")
    driver.ready()
    return [driver, approver]


def record(place):
    shell = place.terminal("ada@team: shop")
    shell.run(
        "conductor sessions",
        "conductor search deploy --kind command",
        'conductor ledger sql "SELECT decided_user, rule, decision, title FROM decision_log"',
        "conductor ledger verify",
    )
    return [shell]


def doctor(place):
    shell = place.terminal("ada@team: shop")
    shell.run("conductor doctor --agent demo")
    return [shell]


SCENES = {
    "prompt": ("conductor prompt: a plan is worked through; then the agent asks before it writes a file", prompt),
    "policy": ("A rule denies: in policy explain, and when the agent asks for it", policy),
    "approvals": ("An agent waits in one terminal; in another, conductor approvals watch allows it", approvals),
    "record": ("What was done and decided: sessions, search, SQL, and the proof that nothing was changed", record),
    "doctor": ("conductor doctor: everything that is looked at is fine", doctor),
}
