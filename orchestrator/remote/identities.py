"""Which keys are offered to a host, in which order, and what became of each.

An IdentityFile that the user chose comes before the agent's other keys: an agent with many keys would otherwise use up
the server's MaxAuthTries before the right one. Nothing here asks: a key that needs a passphrase is left out, by name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from paramiko import PKey, SSHException, Transport
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob, UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType

from orchestrator.remote.ssh_config import HostConfig

# Long enough for a touch on a security key.
AGENT_TIMEOUT_S = 20.0
_UNREADABLE = (OSError, ValueError, TypeError, SSHException, UnknownKeyType, UnsupportedAlgorithm)


@dataclass(frozen=True)
class Candidate:
    """A key to offer; without a key, `problem` says why it cannot be offered."""

    label: str
    key: PKey | None = None
    problem: str = ""


class NoKeyAccepted(AuthenticationException):
    """`tried` has one line a key; `allowed` is what the server would take, where it said so."""

    def __init__(self, tried: tuple[str, ...], allowed: tuple[str, ...] = ()) -> None:
        super().__init__("no key was accepted")
        self.tried = tried
        self.allowed = allowed


class SocketAgent(AgentSSH):
    """The ssh agent behind a socket path, with a time limit (paramiko's own has none and knows $SSH_AUTH_SOCK only)."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_TIMEOUT_S)
        connection.connect(path)
        self._connect(connection)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def authenticate(transport: Transport, host: HostConfig) -> None:
    """Offer the keys one by one. Raises NoKeyAccepted with what was tried."""
    agent, agent_problem = _agent(host)
    tried: list[str] = [agent_problem] if agent_problem else []
    try:
        for candidate in candidates(host, agent.get_keys() if agent else ()):
            if candidate.key is None:
                tried.append(f"{candidate.label}: {candidate.problem}")
                continue
            outcome = _offer(transport, host.user, candidate.key)
            if outcome is None:
                return
            tried.append(f"{candidate.label} ({candidate.key.fingerprint}): {outcome}")
            if not transport.is_active():
                tried.append("the server ended the connection (its MaxAuthTries are used up?)")
                break
    except BadAuthenticationType as error:
        raise NoKeyAccepted(tuple(tried), tuple(error.allowed_types)) from error
    finally:
        if agent:
            agent.close()
    raise NoKeyAccepted(tuple(tried))


def candidates(host: HostConfig, agent_keys: tuple[AgentKey, ...]) -> Iterator[Candidate]:
    """Chosen files, then the agent's keys, then ssh's default files; each key once."""
    seen: set[bytes] = set()
    held = {key.asbytes(): key for key in agent_keys}
    files = [candidate for path in host.identities for candidate in _from_file(path, host, held)]
    agent = [Candidate(f"agent key {key.comment or key.get_name()}", key) for key in agent_keys]
    if host.identities_only:
        agent = []
    elif not host.identities_chosen:
        files, agent = agent, files
    for candidate in (*files, *agent):
        if candidate.key is None:
            yield candidate
            continue
        offered = candidate.key.public_blob.key_blob if candidate.key.public_blob else candidate.key.asbytes()
        if offered not in seen:
            seen.add(offered)
            yield candidate


def _offer(transport: Transport, user: str, key: PKey) -> str | None:
    """None: accepted. Raises BadAuthenticationType where the server takes no keys at all, TimeoutError for silence."""
    try:
        further = transport.auth_publickey(user, key)
    except BadAuthenticationType:
        raise
    except AuthenticationException as error:
        if "timeout" in str(error):  # paramiko's only way to say it
            raise TimeoutError(str(error)) from error
        return "refused"
    except (SSHException, OSError, EOFError) as error:
        return str(error) or type(error).__name__
    return f"accepted, but the server asks for {' or '.join(further)} as well" if further else None


def _from_file(path: str, host: HostConfig, held: dict[bytes, AgentKey]) -> Iterator[Candidate]:
    label = _short(path)
    public = _public_half(path)
    if public is not None and public in held:
        # The agent has it unlocked, and may have it alone (hardware keys, a .pub file as IdentityFile).
        yield Candidate(f"{label} (in the agent)", held[public])
        return
    try:
        key = PKey.from_path(path)
        yield from _with_certificates(path, label, key, host)
    except FileNotFoundError:
        if host.identities_chosen:
            yield Candidate(label, problem="no such file")
    except _UNREADABLE as error:
        yield Candidate(label, problem=_why(error))


def _with_certificates(path: str, label: str, key: PKey, host: HostConfig) -> Iterator[Candidate]:
    """Certificates for this key first (its own `-cert.pub`, then CertificateFile), then the bare key."""
    plain = key.asbytes()
    if key.public_blob:
        yield Candidate(f"{label} with its certificate", key)
    for certificate in host.certificates:
        certified = PKey.from_path(path)
        try:
            certified.load_certificate(certificate)
        except _UNREADABLE as error:
            yield Candidate(_short(certificate), problem=_why(error))
            continue
        # load_certificate checks the type only; another key's certificate would cost a try.
        if certified.public_blob and _is_certificate_of(certified.public_blob, plain):
            yield Candidate(f"{label} with {_short(certificate)}", certified)
    bare = PKey.from_path(path)
    bare.public_blob = None
    yield Candidate(label, bare)


def _is_certificate_of(certificate: PublicBlob, public: bytes) -> bool:
    """The certified key's fields follow the certificate's type and nonce, as they follow the type in a bare key."""
    kind_size = int.from_bytes(public[:4], "big")
    return public[4 + kind_size :] in certificate.key_blob


def _public_half(path: str) -> bytes | None:
    name = path if path.endswith(".pub") else path + ".pub"
    try:
        return PublicBlob.from_file(name).key_blob
    except (OSError, ValueError, IndexError):
        return None


def _agent(host: HostConfig) -> tuple[SocketAgent | None, str]:
    path = host.identity_agent or os.environ.get("SSH_AUTH_SOCK") or "none"
    if path == "none":
        return None, ""
    try:
        return SocketAgent(path), ""
    except (OSError, SSHException) as error:
        return None, f"agent at {path}: {error}"


def _why(error: Exception) -> str:
    if isinstance(error, TypeError) or "password" in str(error).lower():
        return "needs its passphrase; unlock it with ssh-add first"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"cannot be used ({error})"


def _short(path: str) -> str:
    home = str(Path.home())
    return "~" + path[len(home) :] if path.startswith(home + "/") else path
