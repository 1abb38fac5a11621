"""A model that runs on loopback and does what the prompt says.

Speaks OpenAI's chat completions and responses, Anthropic's messages and Gemini's
content, streamed or not. The last prompt that carries an order decides:

  [lab:stream N]   N words, one chunk each
  [lab:slow]       a word every tenth of a second, until nobody listens
  [lab:run LINE]   calls the shell tool that the request offers, then says how it ended

Orders in a history that was handed over are none: it is context, wherever the agent puts it.

Orders count only in requests that offer tools, so that what agents ask on the
side (a title for the session, say) is answered at once and with nothing.
"""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDER = re.compile(r"\[lab:(stream|slow|run)(?: ([^\]]*))?\]")
SHELL = re.compile(r"(^|_)(bash|shell|shell_command|exec_command|execute)$", re.IGNORECASE)
HISTORY = re.compile(r"\[History of this conversation.*?\[End of the history[^\]]*\]", re.DOTALL)
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
        said = [HISTORY.sub("", text) for text in texts(message.get("content"))]
        found = [match for text in said for match in ORDER.finditer(text)]
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
    return Answer(call=(name, arguments(tools[name], rest)))


def arguments(schema, line):
    """What to hand to a shell tool, as its schema wants it."""
    properties = schema.get("properties") or {}
    given = {key: "lab" for key in schema.get("required", [])}
    key = "command" if "command" in properties else "cmd"
    given[key] = ["sh", "-c", line] if properties.get(key, {}).get("type") == "array" else line
    if "sandbox_permissions" in properties:
        # Codex asks before it leaves its sandbox, and only then.
        given |= {"sandbox_permissions": "require_escalated", "justification": "the lab wants it"}
    return given


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


def responses(request):
    """The events of a response, and the response in one piece."""
    tools = {tool["name"]: tool.get("parameters") or {} for tool in request.get("tools") or [] if "name" in tool}
    items = request["input"] if isinstance(request["input"], list) else [{"role": "user", "content": request["input"]}]
    messages = []
    for item in items:
        if item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": ""})
        elif "role" in item:
            messages.append(item)
    answer = decide(messages, tools)
    number = time.time_ns()
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "".join(answer.words), "annotations": []}]
    if answer.call:
        name, given = answer.call
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
        item["arguments"] = json.dumps(given)
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request["model"],
        "status": "completed",
        "output": [item],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
    }

    def events():
        def event(kind, **more):
            return kind, {"type": kind, **more}

        yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
        if not answer.call:
            yield event("response.output_item.added", output_index=0, item={**item, "content": []})
        for word in answer.words:
            time.sleep(answer.pause)
            yield event("response.output_text.delta", item_id=item["id"], output_index=0, content_index=0, delta=word)
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=whole)

    return events(), whole


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


def gemini(request):
    """The events of generated content, and the content in one piece."""
    offered = [tool for tools in request.get("tools") or [] for tool in tools.get("functionDeclarations") or []]
    tools = {tool["name"]: tool.get("parametersJsonSchema") or tool.get("parameters") or {} for tool in offered}
    messages = []
    for content in request["contents"]:
        result = any("functionResponse" in part for part in content["parts"])
        messages.append({"role": "tool" if result else content.get("role", "user"), "content": content["parts"]})
    answer = decide(messages, tools)
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}

    def chunk(part, reason=None):
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}}
        if reason:
            candidate["finishReason"] = reason
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "lab"}

    call = {"functionCall": {"name": answer.call[0], "args": answer.call[1]}} if answer.call else None

    def events():
        for word in answer.words:
            time.sleep(answer.pause)
            yield None, chunk({"text": word})
        yield None, chunk(call or {"text": ""}, "STOP")

    return events(), chunk(call or {"text": "".join(answer.words)}, "STOP")


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
        if path.endswith(":countTokens"):
            return self.whole({"totalTokens": 10})
        dialects = {
            "/chat/completions": openai,
            "/responses": responses,
            "/messages": anthropic,
            ":generateContent": gemini,
            ":streamGenerateContent": gemini,
        }
        dialect = next((speak for end, speak in dialects.items() if path.endswith(end)), None)
        if dialect is None:
            return self.whole({})
        request = json.loads(body)
        self.server.hear(request)
        events, whole = dialect(request)
        if not request.get("stream") and not path.endswith(":streamGenerateContent"):
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

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []  # every request that was to be answered, as text
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def hear(self, request):
        self.seen.append(json.dumps(request, ensure_ascii=False))

    def handle_error(self, request, client_address):
        pass  # agents that are killed leave broken connections behind


def start():
    """Starts the model on a free port."""
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
