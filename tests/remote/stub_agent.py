"""A small agent for tests of the way to it: it speaks agent/protocol.md, with verbs that misbehave on request."""

import base64
import hashlib
import json
import os
import sys
import threading
import time
import zlib

OUT = threading.Lock()


def say(message):
    with OUT:
        sys.stdout.buffer.write(json.dumps(message).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


def raw(data):
    with OUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def answer(request):
    number, verb, args = request["id"], request["verb"], request["args"]
    if verb == "hello":
        who = {"user": "u", "uid": os.getuid(), "host": "h", "boot_id": "b", "from_a_later_version": 1}
        home = os.environ.get("DYNSPEC_HOME", "")
        say({"id": number, "ok": {"pid": os.getpid(), "python": sys.version.split()[0], "home": home, **who}})
    elif verb == "beat":
        say({"id": number, "ok": {"lease_left_s": 100.0, "server": None}})
    elif verb == "echo":
        time.sleep(args.get("after_s", 0))
        say({"id": number, "ok": args})
    elif verb == "mirror":
        say({"id": number, "ok": len(args["text"])})
    elif verb == "environment":
        say(
            {
                "id": number,
                "ok": {"flags": [sys.flags.isolated, sys.flags.no_site], "lang": os.environ.get("LANG")},
            }
        )
    elif verb == "guard":
        holder = {"run_id": "r1", "user": "ann", "controller": "ann@laptop:7", "guardian_pid": 1}
        details = {
            **holder,
            "since_utc": "2026-01-01T00:00:00Z",
            "state": "live",
            "lease_left_s": 60,
            "phase": "sweep",
        }
        say({"id": number, "error": {"code": "busy", "message": "held", "details": details}})
    elif verb == "print":
        raw(base64.b64decode(args["bytes"]))
        say({"id": number, "ok": {}})
    elif verb == "load":
        for done in (1, 2):
            say({"event": "load_progress", "data": {"done": done}})
        records = base64.b64encode(zlib.compress(b'{"i": 0}\n\xff\n')).decode()
        say({"id": number, "ok": {"summary": {"n": 1}, "records": {"z": records}}})
    elif verb == "exit":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(7)
    elif verb == "server_dies":
        say(
            {"event": "server_exit", "data": {"pid": 1, "exit_code": 3, "signal": None, "log_tail": ["boom"]}}
        )
        say({"id": number, "ok": {}})
    else:
        say({"id": number, "error": {"code": "unknown_verb", "message": verb}})


def serve():
    print("DYNSPEC-AGENT " + json.dumps({"protocol": 1, "pid": os.getpid()}), flush=True)
    for line in sys.stdin.buffer:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


def fetch():
    out = sys.stdout.buffer
    for file in json.loads(sys.stdin.buffer.readline())["files"]:
        head = {"path": file["path"], "size": 0, "offset": file["offset"]}
        try:
            with open(file["path"], "rb") as source:
                data = source.read()
        except OSError as error:
            out.write(json.dumps(dict(head, error=error.strerror)).encode() + b"\n")
            continue
        out.write(json.dumps(dict(head, size=len(data))).encode() + b"\n")
        packed = zlib.compress(data[file["offset"] :])
        for start in range(0, len(packed), 10000):
            block = packed[start : start + 10000]
            out.write(b'{"n": %d}\n' % len(block) + block)
        out.write(json.dumps({"n": 0, "sha256": hashlib.sha256(data).hexdigest()}).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    {"serve": serve, "fetch": fetch}[sys.argv[1]]()
