"""What went wrong on the way to a node, in words: which hop, why, and what helps."""

from __future__ import annotations

import socket

import paramiko

from orchestrator.errors import ConnectionFailed
from orchestrator.remote.identities import NoKeyAccepted
from orchestrator.remote.ssh_config import HostConfig

_PROHIBITED = 1


def explain(
    error: Exception, hop: HostConfig, timeout_s: float, elapsed_s: float, said: tuple[str, ...] = ()
) -> ConnectionFailed:
    """The one message for an exception from dialling, the key exchange or authentication; `said`: by a ProxyCommand."""
    reason = _reason(error, hop, timeout_s, elapsed_s)
    return ConnectionFailed(reason.message, help=reason.help, details=(*reason.details, *said))


def _reason(error: Exception, hop: HostConfig, timeout_s: float, elapsed_s: float) -> ConnectionFailed:
    where = f"{hop.alias} ({hop.user}@{hop.hostname} port {hop.port})"
    if isinstance(error, NoKeyAccepted):
        return _no_key(error, where)
    if isinstance(error, paramiko.ChannelException):
        return _not_through(error, where)
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"{hop.hostname} does not resolve ({error.strerror})",
            help="check the name, or the VPN",
        )
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFailed(f"{where} refused the connection", help="is sshd running, and on this port?")
    if isinstance(error, TimeoutError) or elapsed_s >= timeout_s:
        return ConnectionFailed(
            f"{where} did not answer within {timeout_s:g} s", help="check the network, or set limits.connect"
        )
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return ConnectionFailed(
            f"{where}: no algorithm in common ({error})",
            help="let its sshd offer an AES cipher beside chacha20-poly1305, and curve25519 or ecdh-sha2 beside "
            f"sntrup761 (`ssh -vv {hop.alias}` lists what it offers)",
        )
    if isinstance(error, EOFError) or (isinstance(error, OSError) and not error.strerror):
        return ConnectionFailed(
            f"{where} closed the connection during the handshake", help="look into its sshd log"
        )
    if "banner" in str(error) or "Indecipherable" in str(error):
        return ConnectionFailed(
            f"{where} does not answer as an SSH server ({error})", help="is this the right port?"
        )
    return ConnectionFailed(f"{where}: {error}")


def session_refused(label: str, error: Exception) -> ConnectionFailed:
    """A channel for a command could not be opened on a connection that stands."""
    if isinstance(error, paramiko.ChannelException):
        return ConnectionFailed(
            f"{label} refused one more session on this connection ({error.text})",
            help="dynspec needs two at once; raise MaxSessions in the node's sshd_config to 2 or more",
        )
    return ConnectionFailed(f"{label} did not start the command ({error})")


def _no_key(error: NoKeyAccepted, where: str) -> ConnectionFailed:
    allowed = (f"the server takes: {', '.join(error.allowed)}",) if error.allowed else ()
    tried = error.tried or ("there is no key to try: no IdentityFile, no agent, no default key",)
    return ConnectionFailed(
        f"{where} accepted no key",
        details=(*tried, *allowed),
        help="set IdentityFile for this Host, or ssh-add the key; dynspec never asks for passwords",
    )


def _not_through(error: paramiko.ChannelException, where: str) -> ConnectionFailed:
    if error.code == _PROHIBITED:
        return ConnectionFailed(
            f"the jump host does not let connections through to {where}",
            help="it needs AllowTcpForwarding yes",
        )
    return ConnectionFailed(f"the jump host cannot reach {where} ({error.text})")
