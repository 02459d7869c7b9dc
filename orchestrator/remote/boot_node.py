"""Runs on the node, once per connection: says which agent files are there, takes the missing ones, becomes the agent.

`bootstrap.py` sends this file's text on the command line (agent/protocol.md, "Bootstrap"). Python 3.8, stdlib only.
Its stdin is read byte-exactly, because what follows the files belongs to the agent.
"""

import errno
import hashlib
import json
import os
import sys


def say(marker: str, value: object) -> None:
    # A line of its own even after a start file that printed no newline.
    os.write(1, f"\n{marker} {json.dumps(value)}\n".encode("ascii"))


def read_exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = os.read(0, min(65536, size - len(data)))
        if not block:
            sys.exit(1)
        data += block
    return bytes(data)


def read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += read_exactly(1)
    return line


def intact(path: str) -> bool:
    name = os.path.basename(path)
    with open(path, "rb") as file:
        return is_named_for(name, file.read())


def is_named_for(name: str, data: bytes) -> bool:
    return name.endswith(f"-{hashlib.sha256(data).hexdigest()[:16]}.pyz")


def store(folder: str, name: str, data: bytes) -> None:
    if os.path.basename(name) != name or not is_named_for(name, data):
        raise ValueError(f"{name} arrived damaged")
    part = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.rename(part, os.path.join(folder, name))
    except OSError:
        os.unlink(part)
        raise


def main() -> None:
    home = os.environ.get("DYNSPEC_HOME") or os.path.join(os.path.expanduser("~"), ".dynspec")
    folder = os.path.join(home, "agent")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise ValueError(f"{folder} belongs to another user")
    os.chmod(home, 0o700)
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pyz")]
    version = ".".join(map(str, sys.version_info[:3]))
    have = [os.path.basename(path)[:-4] for path in files if intact(path)]
    say("DYNSPEC-BOOT", {"have": have, "python": version, "home": home, "executable": sys.executable})
    header = json.loads(read_line())
    for blob in header["blobs"]:
        store(folder, blob["name"], read_exactly(blob["size"]))
    if header["run"] is None:
        return
    agent = os.path.join(folder, header["run"])
    # -I -S: neither PYTHON* variables, nor the working folder, nor an environment's .pth files reach the agent.
    os.execv(sys.executable, [sys.executable, "-I", "-S", agent, "serve"])


try:
    main()
except OSError as problem:
    said = f"{problem.strerror}: {problem.filename}" if problem.filename else str(problem.strerror or problem)
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    say("DYNSPEC-FAIL", {"message": said, "code": "no_space" if full else "failed"})
    sys.exit(1)
except (ValueError, KeyError) as problem:
    say("DYNSPEC-FAIL", {"message": f"the agent cannot be started: {problem}"})
    sys.exit(1)
