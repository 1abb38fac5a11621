"""A session that goes to another real agent and comes back; each hears what it has missed."""

from editor import Skip
from lasting import SECRET

STEPS = [("moved", "to another agent and back")]

MEANWHILE = "the door is blue"
THERE = "what is the password here?"
BACK = "which colour has the door?"


class Moving:
    """The step, for a trial."""

    def moved(self):
        if not self.agent.scripted:
            raise Skip("nobody knows what it has heard")
        other = next((name for name in self.service.scripted if name != self.name), None)
        if other is None:
            raise Skip("no other agent is tried")
        self.leave()
        self.connect()
        opened = self.editor.call("session/new", {"cwd": str(self.service.work), "mcpServers": []})
        self.session = opened["sessionId"]
        self.plain_turn(SECRET)
        option = next(option for option in opened["configOptions"] if option.get("category") == "model")
        values = [choice["value"] for choice in option["options"]]
        assert any(value.partition("/")[0] == other for value in values), f"agent {other} is not among {values}"
        # By its name: which of its models is the fake one, the other agent knows itself.
        self.choose(option["id"], other)
        self.asks(f"{THERE} {MEANWHILE}", SECRET)
        self.choose(option["id"], option["currentValue"])
        self.asks(BACK, MEANWHILE)
        self.model.seen.clear()

    def choose(self, option, value):
        params = {"sessionId": self.session, "configId": option, "value": value}
        options = self.editor.call("session/set_config_option", params)["configOptions"]
        model = next(option for option in options if option.get("category") == "model")
        assert model["currentValue"] == value, f"{value} was chosen, and {model['currentValue']} is shown"

    def asks(self, text, heard):
        """A turn in whose request the model hears something from before."""
        stop, chunks = self.turn(f"{text} [lab:stream 3]")
        assert stop == "end_turn", f"the turn ended with {stop}"
        assert "".join(chunks).split() == ["word0", "word1", "word2"], f"the answer was {chunks}"
        asked = [seen for seen in self.model.seen if text in seen]
        assert asked, "the model was not asked"
        assert any(heard in seen for seen in asked), f"the model did not hear of it: {asked[-1][:2000]}"
