"""An MCP server of the revision 2025-11-25 over standard streams that misbehaves on request. It needs only Python.

Its first argument is a JSON object of options. What a tool call does is in its arguments, so that one server can be
good and bad in turn.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
LOCK = threading.Lock()
TOOLS = [
    {
        "name": "say",
        "description": "Says the text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "do", "description": "Does what the arguments say.", "inputSchema": {"type": "object"}},
    {
        "name": "do_again",
        "description": "Does what the arguments say, and may be repeated.",
        "inputSchema": {"type": "object"},
        "annotations": {"idempotentHint": True},
    },
]
TOOLS += OPTIONS.get("more_tools", [])
calls = 0


def write(message):
    with LOCK:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def answer(id, text, **more):
    write({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}], **more}})


def notify(method, params=None):
    write({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})


def remember(line):
    if "record" in OPTIONS:
        with pathlib.Path(OPTIONS["record"]).open("a") as file:
            file.write(line + "\n")


def escape_and_sleep():
    """Starts a grandchild in another process group and session that ignores SIGTERM and holds the output open."""
    program = "import signal,sys,time; signal.signal(15, signal.SIG_IGN); print(file=sys.stderr); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", program, "grandchild"], start_new_session=True)
    return child.pid


def act(id, name, arguments):
    global calls
    calls += 1
    remember(f"{name} {json.dumps(arguments)}")
    crash = OPTIONS.get("crash_every")
    if crash and calls % crash == 0:
        os._exit(3)
    what = arguments.get("what", "")
    if name == "say":
        answer(id, arguments.get("text", ""))
    elif what == "exit":
        os._exit(arguments.get("code", 3))
    elif what == "exit_once":
        if not pathlib.Path(OPTIONS["mark"]).exists():
            pathlib.Path(OPTIONS["mark"]).touch()
            os._exit(3)
        answer(id, "done")
    elif what == "never":
        pass
    elif what == "late":
        threading.Timer(arguments["seconds"], answer, (id, "late")).start()
    elif what == "big":
        piece = "x" * 1_000_000
        with LOCK:
            sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {id}, "result": {{"content": [{{"type": "text", "text": "')
            for _ in range(arguments["megabytes"]):
                sys.stdout.write(piece)
            sys.stdout.write('"}]}}\n')
            sys.stdout.flush()
    elif what == "values":
        with LOCK:
            sys.stdout.write(
                f'{{"jsonrpc": "2.0", "id": {id}, "result": {{"content": [], "structuredContent": {{"a": ['
            )
            sys.stdout.write("{}," * arguments["count"] + "0]}}}\n")
            sys.stdout.flush()
    elif what == "notify":
        for number in range(arguments["count"]):
            notify("notifications/message", {"level": "info", "data": f"message {number}"})
        answer(id, "done")
    elif what == "progress":
        token = arguments["token"]
        for number in (1, 2):
            said = {"progressToken": token, "progress": number, "total": 2, "message": "go\u200bing"}
            notify("notifications/progress", said)
        answer(id, "done")
    elif what == "change":
        TOOLS.append({"name": "new", "description": "New.", "inputSchema": {"type": "object"}})
        TOOLS[:] = [tool for tool in TOOLS if tool["name"] != "say"]
        notify("notifications/tools/list_changed")
        answer(id, "changed")
    elif what == "child":
        answer(id, str(escape_and_sleep()))
    elif what == "pid":
        answer(id, str(os.getpid()))
    elif what == "environment":
        answer(id, json.dumps(dict(os.environ)))
    elif what == "run":
        done = subprocess.run(arguments["command"], shell=True, capture_output=True, text=True)
        answer(id, f"{done.returncode} {done.stdout}{done.stderr}")
    elif what == "garbage":
        with LOCK:
            sys.stdout.write("this is no message\n\x00\xff{[\n")
            sys.stdout.flush()
        answer(id, "done")
    elif what == "result":
        write({"jsonrpc": "2.0", "id": id, "result": arguments["result"]})
    elif what == "error":
        write({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": arguments["message"]}})
    elif what == "ask":
        asked[f"ask-{id}"] = id
        write(
            {
                "jsonrpc": "2.0",
                "id": f"ask-{id}",
                "method": "elicitation/create",
                "params": {"message": arguments["message"], "requestedSchema": arguments["schema"]},
            }
        )
    else:
        answer(id, f"I do not know how to {what}.")


asked = {}


def handle(message):
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method is None:
        if id in asked:
            answer(asked.pop(id), json.dumps(message.get("result") or message.get("error")))
        return
    remember(method)
    if method == OPTIONS.get("ignores"):
        return
    if method == "initialize":
        if OPTIONS.get("exit_at") == "initialize":
            os._exit(4)
        capabilities = {"tools": {"listChanged": True}}
        if OPTIONS.get("prompts"):
            capabilities["prompts"] = {}
        if OPTIONS.get("resources"):
            capabilities["resources"] = {}
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": "bad", "version": "1"},
            "instructions": OPTIONS.get("instructions", ""),
        }
        write({"jsonrpc": "2.0", "id": id, "result": result})
    elif method == "tools/list":
        write({"jsonrpc": "2.0", "id": id, "result": {"tools": TOOLS}})
    elif method == "prompts/list":
        write({"jsonrpc": "2.0", "id": id, "result": {"prompts": OPTIONS["prompts"]}})
    elif method == "prompts/get":
        text = f"{params['name']} {json.dumps(params.get('arguments'))}"
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        write({"jsonrpc": "2.0", "id": id, "result": {"messages": messages}})
    elif method == "resources/list":
        write({"jsonrpc": "2.0", "id": id, "result": {"resources": OPTIONS["resources"]}})
    elif method == "resources/read":
        write({"jsonrpc": "2.0", "id": id, "result": {"contents": [{"uri": params["uri"], "text": "the content"}]}})
    elif method == "tools/call":
        token = (params.get("_meta") or {}).get("progressToken")
        arguments = params.get("arguments") or {}
        if arguments.get("what") == "progress":
            arguments["token"] = token
        act(id, params["name"], arguments)
    elif method == "ping":
        write({"jsonrpc": "2.0", "id": id, "result": {}})
    elif id is not None:
        write({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}})


def main():
    if OPTIONS.get("ignores_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in OPTIONS:
        escape_and_sleep()
    if "exit" in OPTIONS:
        sys.stderr.write(OPTIONS.get("says", "no configuration found") + "\n")
        sys.exit(OPTIONS["exit"])
    if OPTIONS.get("garbage"):
        for number in range(100):
            sys.stdout.write(f"log line {number}\n")
        sys.stdout.flush()
    flood = OPTIONS.get("flood")
    if flood:
        stream = sys.stdout if flood == "stdout" else sys.stderr
        if flood == "endless":
            while True:
                sys.stdout.write("x" * 65536)
        while True:
            stream.write("y" * 1000 + "\n")
    if OPTIONS.get("floods_errors"):

        def shout():
            while True:
                sys.stderr.write("error " * 100 + "\n")

        threading.Thread(target=shout, daemon=True).start()
    for line in sys.stdin:
        handle(json.loads(line))
    remember("input closed")
    if OPTIONS.get("ignores_input_end"):
        time.sleep(1000)


main()
