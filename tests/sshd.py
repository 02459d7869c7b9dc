"""A real OpenSSH sshd on a loopback port, with its own keys, configuration and home: the node of the tests.

    with Sshd(tmp_path) as node:
        subprocess.run(["ssh", "-F", node.ssh_config, node.name, "true"])
        connect(Target.parse(node.name), node.settings())

Everything it needs lies under its folder; the account is the one that runs the tests, as root or not.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from orchestrator.remote.transport import ConnectSettings

START_LIMIT_S = 10.0
PRIVILEGE_SEPARATION = Path("/run/sshd")


def find_sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")


def make_key(path: Path, kind: str = "ed25519", comment: str = "", passphrase: str = "") -> Path:
    size = ("-b", "2048") if kind == "rsa" else ()
    words = ("-t", kind, *size, "-N", passphrase, "-C", comment or path.name, "-f", str(path))
    subprocess.run(["ssh-keygen", "-q", *words], check=True)
    return path


class Sshd:
    """`options` are lines of sshd_config (a list repeats the keyword); `env` is what its sessions find set.

    `wrapper` is a command that runs sshd somewhere else on this machine, where `address` is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "testnode",
        host_keys: Sequence[str] = ("ed25519",),
        options: Mapping[str, str | Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
        client_options: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
        wrapper: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.name = name
        self.address = address
        self.home = folder / "home"
        self.dynspec_home = self.home / ".dynspec"
        self.lock_name = f"dynspec-test-{secrets.token_hex(6)}"
        self.client_key = folder / "client_key"
        self.ssh_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "sshd.log"
        self.port = 0
        self.env = {
            "HOME": str(self.home),
            "DYNSPEC_HOME": str(self.dynspec_home),
            "DYNSPEC_LOCK_NAME": self.lock_name,
            **(env or {}),
        }
        self._host_key_kinds = tuple(host_keys)
        self._options = dict(options or {})
        self._client_options = dict(client_options or {})
        self._wrapper = tuple(wrapper)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        make_key(self.client_key)
        shutil.copy(f"{self.client_key}.pub", self.folder / "authorized_keys")
        for kind in self._host_key_kinds:
            make_key(self.host_key(kind), kind)
        self._start()
        self.trust()
        self.ssh_config.write_text(self.host_block())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def host_key(self, kind: str = "ed25519") -> Path:
        return self.folder / f"host_{kind}_key"

    def known_hosts_line(self, kind: str = "ed25519", name: str = "") -> str:
        public = self.host_key(kind).with_suffix(".pub").read_text().split()
        return f"{name or f'[{self.address}]:{self.port}'} {public[0]} {public[1]}\n"

    def trust(self) -> None:
        """Write a known_hosts with all of the node's keys."""
        self.known_hosts.write_text("".join(map(self.known_hosts_line, self._host_key_kinds)))

    def host_block(self, **options: str) -> str:
        """A Host block for an ssh configuration; keyword arguments replace or add lines."""
        lines = {
            "HostName": self.address,
            "Port": str(self.port),
            "User": getpass.getuser(),
            "IdentityFile": str(self.client_key),
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            **self._client_options,
            **options,
        }
        return f"Host {self.name}\n" + "".join(f"  {key} {value}\n" for key, value in lines.items())

    def settings(self, **changes: object) -> ConnectSettings:
        return ConnectSettings(**{"ssh_config": str(self.ssh_config), **changes})  # type: ignore[arg-type]

    def authorize(self, public_key: Path, prefix: str = "") -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(f"{prefix}{public_key.read_text()}")

    def sessions(self) -> list[int]:
        """Pids of the sshd processes that serve connections."""
        assert self._process
        return [pid for pid in descendants(self._process.pid) if process_name(pid).startswith("sshd")]

    def freeze(self) -> list[int]:
        """Stop the session processes without ending their connections, as a hung node does."""
        frozen = self.sessions()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def stop(self) -> None:
        if self._process is None:
            return
        for pid in reversed(self.sessions()):
            _kill(pid)
        self._process.terminate()
        self._process.wait(10)
        self._process = None

    def start_again(self, **env: str) -> None:
        """After `stop`: the same machine, with more in the environment of its logins."""
        self.env.update(env)
        self._start()
        self.trust()
        self.ssh_config.write_text(self.host_block())

    def _start(self) -> None:
        binary = find_sshd()
        assert binary, "no sshd"
        if os.getuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        config = self.folder / "sshd_config"
        for _ in range(5):  # somebody else may take the port between the choice and the start
            # Behind a wrapper any port is free; this one's address is of no interface here.
            self.port = secrets.randbelow(10000) + 20000 if self._wrapper else free_port(self.address)
            config.write_text(self._config())
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._wrapper, binary, "-D", "-e", "-f", str(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if self._wait_for_banner():
                return
        raise RuntimeError(f"sshd did not start: {self.log.read_text()}")

    def _config(self) -> str:
        lines: dict[str, str | Sequence[str]] = {
            "ListenAddress": f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}",
            "HostKey": [str(self.host_key(kind)) for kind in self._host_key_kinds],
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes",
            "PrintMotd": "no",
            "LogLevel": "VERBOSE",
            "SetEnv": " ".join(f'"{key}={value}"' for key, value in self.env.items()),
            **({"PerSourcePenalties": "no"} if openssh_version() >= (9, 8) else {}),
            **self._options,
        }
        pairs = (
            (key, value)
            for key, values in lines.items()
            for value in ([values] if isinstance(values, str) else values)
        )
        return "".join(f"{key} {value}\n" for key, value in pairs)

    def _wait_for_banner(self) -> bool:
        assert self._process
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection((self.address, self.port), timeout=1) as link:
                    return link.recv(4) == b"SSH-"
            except OSError:
                time.sleep(0.02)
        return False


class SshAgent:
    """A real ssh-agent with its own socket; not in anybody's environment until `socket` is put there."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["ssh-agent", "-D", "-a", str(self.socket)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_LIMIT_S
        while not self.socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process
        self._process.terminate()
        self._process.wait(10)

    def add(self, *keys: Path) -> None:
        env = {**os.environ, "SSH_AUTH_SOCK": str(self.socket)}
        subprocess.run(["ssh-add", "-q", *map(str, keys)], env=env, stdin=subprocess.DEVNULL, check=True)


def free_port(address: str = "127.0.0.1") -> int:
    """Below the ports that Linux gives to outgoing connections, one of which would take it before the server does."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        port = 16384 + secrets.randbelow(16384)  # other test processes draw from their own
        with suppress(OSError), socket.create_server((address, port), family=family):
            return port


def openssh_version() -> tuple[int, int]:
    text = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def descendants(pid: int) -> list[int]:
    """All living descendants of `pid`, parents before children."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(0), [])
        found += children
        queue += children
    return found


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
