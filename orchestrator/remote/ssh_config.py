"""What the user's ssh configuration says about a host, and the hops that lead there.

Where the OpenSSH client is installed, `ssh -G` answers: it knows Include, Match, tokens and canonical names, which no
other reader does completely. Without it, paramiko's reader has to do.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from orchestrator.errors import ConnectionFailed, UsageError
from orchestrator.model.target import Target

# What ssh tries when no IdentityFile is set (ssh_config(5)); a list that equals it was not the user's choice.
DEFAULT_IDENTITIES = tuple(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
DEFAULT_KNOWN_HOSTS = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
SSH_G_TIMEOUT_S = 10.0
MAX_HOPS = 16

Options = Mapping[str, tuple[str, ...]]
Jumps = tuple[Target, ...] | None  # None: as the host's own configuration says
Lookup = Callable[[Target, Jumps], Options]


@dataclass(frozen=True)
class HostConfig:
    """One host, resolved. Paths are expanded; `jump` is the ProxyJump list in ssh's order, first hop first."""

    alias: str  # as the user wrote it
    hostname: str
    port: int
    user: str
    identities: tuple[str, ...] = ()
    identities_chosen: bool = False  # by the user, not ssh's default list
    identities_only: bool = False
    certificates: tuple[str, ...] = ()
    identity_agent: str | None = None  # a socket path; None: $SSH_AUTH_SOCK; "none": no agent
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    jump: tuple[Target, ...] = ()
    proxy_command: str | None = None
    family: int = socket.AF_UNSPEC

    @classmethod
    def of(cls, target: Target, options: Options) -> Self:
        """From the key-value lines of `ssh -G` (keys in lower case)."""
        user = target.user or _one(options, "user") or getpass.getuser()
        port = target.port or int(_one(options, "port") or 22)
        hostname = _one(options, "hostname") or target.host
        words = {
            "h": hostname,
            "n": target.host,
            "p": str(port),
            "r": user,
            "u": getpass.getuser(),
            **_own_words(),
        }
        identities = tuple(path for path in options.get("identityfile", ()) if path.lower() != "none")
        known_hosts = _one(options, "userknownhostsfile"), _one(options, "globalknownhostsfile")
        return cls(
            alias=target.host,
            hostname=hostname,
            port=port,
            user=user,
            identities=tuple(expand(path, words) for path in identities or DEFAULT_IDENTITIES),
            identities_chosen=bool(identities) and identities != DEFAULT_IDENTITIES,
            identities_only=_one(options, "identitiesonly") == "yes",
            certificates=tuple(
                expand(path, words) for path in options.get("certificatefile", ()) if path.lower() != "none"
            ),
            identity_agent=_agent(_one(options, "identityagent"), words),
            known_hosts=tuple(
                expand(path, words) for value in known_hosts if value for path in _paths(value)
            ),
            host_key_alias=_one(options, "hostkeyalias"),
            jump=_jumps(_one(options, "proxyjump")),
            proxy_command=_command(_one(options, "proxycommand"), words),
            family={"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
                _one(options, "addressfamily") or "", socket.AF_UNSPEC
            ),
        )


def resolve(target: Target, config_path: str | None) -> tuple[HostConfig, ...]:
    """The hops to connect in order, the target last. Raises ConnectionFailed for a loop, UsageError for a bad file."""
    require_config(config_path)
    return _route(target, None, _reader(config_path), ())


def require_config(config_path: str | None) -> None:
    """Raises UsageError where a configuration is named and is no file."""
    if config_path is not None and not os.path.isfile(os.path.expanduser(config_path)):
        raise UsageError(f"ssh configuration {config_path} does not exist", help="correct node.ssh_config")


def _route(target: Target, via: Jumps, lookup: Lookup, seen: tuple[str, ...]) -> tuple[HostConfig, ...]:
    """As ssh does it: the last jump host is reached by the jumps before it, the first by its own configuration."""
    host = HostConfig.of(target, lookup(target, via))
    jumps = host.jump if via is None else via
    name = f"{host.user}@{host.hostname}:{host.port}"
    if name in seen or len(seen) > MAX_HOPS:
        raise _circle(target)
    if not jumps:
        return (host,)
    return (*_route(jumps[-1], jumps[:-1] or None, lookup, (*seen, name)), host)


def expand(text: str, words: Mapping[str, str]) -> str:
    """`~`, `${NAME}` and `%x` tokens. The home folder is the account's, as for ssh, not $HOME."""
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), text)
    text = re.sub(r"%(.)", lambda found: "%" if found[1] == "%" else words.get(found[1], found[0]), text)
    return account_home() + text[1:] if text == "~" or text.startswith("~/") else text


def account_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return str(Path.home())


def _reader(config_path: str | None) -> Lookup:
    client = shutil.which("ssh")
    path = None if config_path is None else os.path.expanduser(config_path)
    if client is None:
        return lambda target, via: _paramiko_options(target, path)
    return lambda target, via: _ssh_g_options(client, target, via, path)


def _ssh_g_options(client: str, target: Target, via: Jumps, path: str | None) -> Options:
    given = {"-F": path, "-l": target.user, "-p": target.port, "-J": ",".join(map(str, via or ()))}
    command = [
        client,
        "-G",
        *(word for option, value in given.items() if value for word in (option, str(value))),
    ]
    try:
        done = subprocess.run(
            [*command, "--", target.host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SSH_G_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionFailed(
            f"`ssh -G {target.host}` did not answer within {SSH_G_TIMEOUT_S:.0f} s",
            help="look for a `Match exec` in your ssh configuration that hangs",
        ) from error
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if any("jumphost loop" in word for word in words):
            raise _circle(target)
        raise UsageError(f"ssh cannot read its configuration for {target.host}", details=tuple(words[-5:]))
    return parse_options(done.stdout.decode("utf-8", "surrogateescape"))


def _circle(target: Target) -> ConnectionFailed:
    return ConnectionFailed(
        f"the jump hosts lead in a circle at {target.host}",
        help=f"give `Host {target.host}` its own `ProxyJump none`, above the pattern that sets the jump host",
    )


def parse_options(text: str) -> Options:
    """`key value` lines; a key that repeats (identityfile) keeps all its values."""
    options: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options[key.lower()] = (*options.get(key.lower(), ()), value)
    return options


def _paramiko_options(target: Target, path: str | None) -> Options:
    from paramiko.config import SSHConfig

    config = SSHConfig()
    for name in (path,) if path else (f"{account_home()}/.ssh/config", "/etc/ssh/ssh_config"):
        if os.path.isfile(name):
            with open(name, encoding="utf-8", errors="surrogateescape") as file:
                config.parse(file)
    found = config.lookup(target.host)
    options = {
        key: tuple(value) if isinstance(value, list) else (str(value),) for key, value in found.items()
    }
    options.setdefault("userknownhostsfile", (" ".join(DEFAULT_KNOWN_HOSTS),))
    return options


def _one(options: Options, key: str) -> str | None:
    values = options.get(key)
    return values[0] if values and values[0] else None


def _own_words() -> dict[str, str]:
    host = socket.gethostname()
    return {"d": account_home(), "i": str(os.getuid()), "l": host, "L": host.partition(".")[0]}


def _paths(value: str) -> tuple[str, ...]:
    """ssh -G prints a list of paths with nothing between them but blanks; one that exists whole is one path."""
    # os.path, since pathlib raises where a folder on the way may not be looked into.
    return (value,) if os.path.exists(value) else tuple(path for path in value.split() if path != "none")


def _jumps(value: str | None) -> tuple[Target, ...]:
    if value is None or value.lower() == "none":
        return ()
    return tuple(Target.parse(hop.strip()) for hop in value.split(","))


def _command(value: str | None, words: Mapping[str, str]) -> str | None:
    return None if value is None or value.lower() == "none" else expand(value, words)


def _agent(value: str | None, words: Mapping[str, str]) -> str | None:
    if value is None or value == "SSH_AUTH_SOCK":
        return None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:], "none")
    return value if value == "none" else expand(value, words)
