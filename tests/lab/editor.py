"""An editor that drives an agent through `conductor connect`, with raw JSON."""

import json
import queue
import subprocess
import tempfile
import threading
import time

PATIENCE = 90  # seconds that anything may take: longer than the 60 in which an agent may start


class Refused(Exception):
    """A request was answered with an error."""


class Skip(Exception):
    """The agent does not offer this."""


class Editor:
    def __init__(self, command, env):
        self.bridge = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lock = threading.Lock()
        self.answers = {}  # request id -> queue for its answer
        self.updates = []  # of all sessions, in order
        self.arrived = threading.Condition()
        self.permissions = queue.Queue()  # requests for permission, to be answered by the lab
        self.terminals = {}
        self.asked = []  # methods that the agent has called
        self.next_id = 0
        threading.Thread(target=self.read, daemon=True).start()
        self.stderr = b""
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        self.stderr = self.bridge.stderr.read()

    def read(self):
        for line in self.bridge.stdout:
            message = json.loads(line)
            if "method" not in message:
                self.answers[message["id"]].put(message)
            elif "id" not in message:
                with self.arrived:
                    self.updates.append(message.get("params") or {})
                    self.arrived.notify_all()
            else:
                self.asked.append(message["method"])
                if message["method"] == "session/request_permission":
                    self.permissions.put(message)
                else:
                    threading.Thread(target=self.serve, args=(message,), daemon=True).start()
        for answer in list(self.answers.values()):
            answer.put({"error": {"message": f"the bridge has ended: {self.stderr.decode()}"}})

    def send(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        with self.lock:
            self.bridge.stdin.write(line.encode())
            self.bridge.stdin.flush()

    def request(self, method, params):
        """Sends a request; a function that waits for its result."""
        self.next_id += 1
        answer = self.answers[self.next_id] = queue.Queue()
        self.send({"id": self.next_id, "method": method, "params": params})

        def wait(patience=PATIENCE):
            try:
                message = answer.get(timeout=patience)
            except queue.Empty:
                raise Refused(f"{method} was not answered within {patience} s") from None
            if "error" in message:
                raise Refused(f"{method}: {json.dumps(message['error'])}")
            return message["result"]

        return wait

    def call(self, method, params):
        return self.request(method, params)()

    def notify(self, method, params):
        self.send({"method": method, "params": params})

    def initialize(self):
        files = {"readTextFile": True, "writeTextFile": True}
        info = {"name": "lab", "version": "1"}
        capabilities = {"fs": files, "terminal": True}
        params = {"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": info}
        return self.call("initialize", params)

    def prompt(self, session, text):
        return self.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def chunks(self, session, since=0, kind="agent_message_chunk"):
        """Texts of a session's chunks among the updates that came later than `since`."""
        found = []
        for params in self.updates[since:]:
            update = params.get("update") or {}
            if params.get("sessionId") == session and update.get("sessionUpdate") == kind:
                found.append(update["content"].get("text", ""))
        return found

    def told(self, session):
        """What was said in a session: texts and tool calls."""
        kinds = ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update")
        updates = [params.get("update") or {} for params in self.updates if params.get("sessionId") == session]
        return [update for update in updates if update.get("sessionUpdate") in kinds]

    def wait_until(self, done, what, patience=PATIENCE):
        until = time.monotonic() + patience
        with self.arrived:
            while not done():
                left = until - time.monotonic()
                if left <= 0:
                    raise Refused(f"{what} did not come within {patience} s")
                self.arrived.wait(left)

    def permission(self, patience=PATIENCE):
        try:
            return self.permissions.get(timeout=patience)
        except queue.Empty:
            raise Refused("no permission was asked for") from None

    def decide(self, request, kind):
        """Answers a request for permission with the option of this kind."""
        options = request["params"]["options"]
        option = next((option for option in options if option["kind"] == kind), None)
        if option is None:
            raise Refused(f"no option {kind} among {options}")
        outcome = {"outcome": "selected", "optionId": option["optionId"]}
        self.send({"id": request["id"], "result": {"outcome": outcome}})

    def kill(self):
        self.bridge.kill()
        self.bridge.wait(PATIENCE)

    def close(self):
        self.bridge.stdin.close()
        return self.bridge.wait(PATIENCE)

    # What the agent asks of its editor.

    def serve(self, message):
        try:
            result = {"result": self.do(message["method"], message["params"])}
        except Exception as error:  # whatever it is, the agent must be told
            result = {"error": {"code": -32603, "message": str(error)}}
        self.send({"id": message["id"], **result})

    def do(self, method, params):
        if method == "fs/read_text_file":
            with open(params["path"]) as file:
                lines = file.read().splitlines(keepends=True)
            first = (params.get("line") or 1) - 1
            return {"content": "".join(lines[first:][: params.get("limit")])}
        if method == "fs/write_text_file":
            with open(params["path"], "w") as file:
                file.write(params["content"])
            return {}
        if method == "terminal/create":
            command, args = params["command"], params.get("args") or []
            output = tempfile.TemporaryFile()
            child = subprocess.Popen(
                [command, *args] if args else ["sh", "-c", command],
                cwd=params.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            self.terminals[str(child.pid)] = (child, output)
            return {"terminalId": str(child.pid)}
        child, output = self.terminals[params["terminalId"]]
        if method == "terminal/wait_for_exit":
            return {"exitCode": child.wait(), "signal": None}
        if method == "terminal/output":
            output.seek(0)
            ended = child.poll()
            status = None if ended is None else {"exitCode": ended, "signal": None}
            return {"output": output.read().decode(), "truncated": False, "exitStatus": status}
        if method in ("terminal/kill", "terminal/release"):
            if child.poll() is None:
                child.kill()
            return {}
        raise ValueError(f"the lab does not know {method}")
