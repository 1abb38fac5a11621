"""A model that runs on loopback and does what the prompt says.

Speaks OpenAI's chat completions and Anthropic's messages, streamed or not. The
last prompt that carries an order decides:

  [lab:stream N]   N words, one chunk each
  [lab:slow]       a word every tenth of a second, until nobody listens
  [lab:run LINE]   calls the shell tool that the request offers, then says how it ended

Orders count only in requests that offer tools, so that what agents ask on the
side (a title for the session, say) is answered at once and with nothing.
"""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDER = re.compile(r"\[lab:(stream|slow|run)(?: ([^\]]*))?\]")
SHELL = re.compile(r"(^|_)(bash|shell|execute)$", re.IGNORECASE)
LONGEST = 300  # words of `slow`


class Answer:
    """What the model has decided to answer: words, or a call of a tool."""

    def __init__(self, words=(), pause=0.0, call=None):
        self.words, self.pause, self.call = words, pause, call


def texts(content):
    """The texts of a message's content, which is text or a list of blocks."""
    if isinstance(content, str):
        return [content]
    return [block.get("text") or "" for block in content or [] if isinstance(block, dict)]


def is_result(message):
    """Whether the message carries what a tool returned."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return message["role"] == "tool" or any(block.get("type") == "tool_result" for block in blocks)


def decide(messages, tools):
    """`tools` maps the names on offer to their schemas."""
    order, answered = None, False
    for message in messages:
        found = [match for text in texts(message.get("content")) for match in ORDER.finditer(text)]
        if message["role"] == "user" and found:
            order, answered = found[-1], False
        elif is_result(message):
            answered = True
    if order is None or not tools:
        return Answer(["nothing"])
    verb, rest = order.group(1), order.group(2) or ""
    if verb == "stream":
        return Answer([f"word{number} " for number in range(int(rest))], 0.01)
    if verb == "slow":
        return Answer([f"slow{number} " for number in range(LONGEST)], 0.1)
    name = next((name for name in tools if SHELL.search(name)), None)
    if answered or name is None:
        return Answer(["the ", "tool ", "has ", "ended"] if answered else ["no shell tool on offer"])
    needed = {key: "lab" for key in tools[name].get("required", [])}
    return Answer(call=(name, {**needed, "command": rest}))


def openai(request):
    """The events of a chat completion, and the completion in one piece."""
    tools = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in request.get("tools") or []}
    answer = decide(request["messages"], tools)
    head = {"id": "chatcmpl-lab", "created": int(time.time()), "model": request["model"]}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    message = {"role": "assistant", "content": "".join(answer.words)}
    if answer.call:
        name, given = answer.call
        function = {"name": name, "arguments": json.dumps(given)}
        calls = [{"index": 0, "id": f"call_{time.time_ns()}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    reason = "tool_calls" if answer.call else "stop"

    def events():
        def chunk(delta, reason=None, **more):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            return None, {**head, "object": "chat.completion.chunk", "choices": [choice], **more}

        if answer.call:
            yield chunk(message)
        else:
            yield chunk({"role": "assistant", "content": ""})
            for word in answer.words:
                time.sleep(answer.pause)
                yield chunk({"content": word})
        yield chunk({}, reason)
        yield None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield None, "[DONE]"

    choice = {"index": 0, "message": message, "finish_reason": reason}
    return events(), {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def anthropic(request):
    """The events of a message, and the message in one piece."""
    tools = {tool["name"]: tool.get("input_schema") or {} for tool in request.get("tools") or []}
    answer = decide(request["messages"], tools)
    usage = {"input_tokens": 10, "output_tokens": 5}
    reason = "tool_use" if answer.call else "end_turn"
    block = {"type": "text", "text": "".join(answer.words)}
    if answer.call:
        name, given = answer.call
        block = {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": name, "input": given}
    whole = {
        "id": f"msg_{time.time_ns()}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }

    def events():
        def event(kind, **more):
            return kind, {"type": kind, **more}

        yield event("message_start", message={**whole, "content": [], "stop_reason": None})
        empty = {**block, "input": {}} if answer.call else {**block, "text": ""}
        yield event("content_block_start", index=0, content_block=empty)
        if answer.call:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_delta", index=0, delta=delta)
        for word in answer.words:
            time.sleep(answer.pause)
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        yield event("content_block_stop", index=0)
        yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
        yield event("message_stop")

    return events(), whole


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        self.whole({"object": "list", "data": [{"id": "gpt-4o", "object": "model"}]})

    def do_HEAD(self):
        self.whole({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return self.whole({"input_tokens": 10})
        dialects = {"/chat/completions": openai, "/messages": anthropic}
        dialect = next((speak for end, speak in dialects.items() if path.endswith(end)), None)
        if dialect is None:
            return self.whole({})
        request = json.loads(body)
        events, whole = dialect(request)
        if not request.get("stream"):
            return self.whole(whole)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for kind, event in events:
                name = f"event: {kind}\n" if kind else ""
                text = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"{name}data: {text}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # a cancelled turn hangs up

    def whole(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # agents that are killed leave broken connections behind


def start():
    """Starts the model on a free port; its address."""
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
