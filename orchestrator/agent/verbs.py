"""The verbs that the agent itself answers. Each takes the channel and the request's args and returns JSON data."""

from __future__ import annotations

import os
import platform
import sys
from typing import Callable, Dict, List

from . import (
    args,
    facts,
    files,
    guardlink,
    hand,
    holders,
    httpget,
    journal,
    lock,
    outrank,
    places,
    procs,
    smoke,
    story,
    taking,
    tidy,
)
from .guardlink import GuardianLink
from .loadrun import LoadRunner
from .wire import AgentError, Message, as_agent_error, pack

_READ_LIMIT_BYTES = 16 * 1024 * 1024
_TAIL_LIMIT_BYTES = 4 * 1024 * 1024
FORWARDED = frozenset(
    ["apply", "lay", "verify", "origins", "free", "put", "start", "server", "stop", "sample", "restore"]
)


class Context:
    """What verbs of one channel share: the guardian they speak to, the load children, the way to send events."""

    def __init__(self, send_event: Callable[[str, Message], None], ended: Callable[[], bool]) -> None:
        self.send_event = send_event
        self.ended = ended
        self.load = LoadRunner()
        self.guardian: "GuardianLink | None" = None
        self.server_ended = False
        self.run: Message = {}  # run_id and workdir of the guardian attached last

    def link(self) -> GuardianLink:
        if self.guardian is not None:
            return self.guardian
        if self.run:
            raise AgentError(
                "lost", "this channel has lost the guardian of run {}".format(self.run["run_id"])
            )
        raise AgentError("bad_request", "this channel has no guardian: guard or attach first")

    def connect(self, run_id: str, holder: str, force: bool) -> Message:
        link = GuardianLink(run_id, self._on_event, self._on_lost)
        try:
            state = link.ask("attach", {"holder": holder, "force": force}, 10.0)
        except AgentError:
            link.close()
            raise
        self.guardian, self.server_ended = link, False
        self.run = {"run_id": state["run_id"], "workdir": state["workdir"]}
        return state

    def _on_event(self, message: Message) -> None:
        if message["event"] == "server_exit":
            self.server_ended = True
            self.load.interrupt()
        self.send_event(message["event"], message.get("data", {}))

    def _on_lost(self, link: GuardianLink) -> None:
        self.forget(link)
        if not link.expected_to_end:
            self.send_event("guardian_lost", {})

    def forget(self, link: GuardianLink) -> None:
        """Unless another one was attached since."""
        if self.guardian is link:
            self.guardian = None


Verb = Callable[[Context, Message], Message]


def hello(context: Context, given: Message) -> Message:
    return {
        "pid": os.getpid(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "home": os.path.expanduser("~"),
        "user": procs.user_name(os.geteuid()),
        "uid": os.geteuid(),
        "host": platform.node(),
        "boot_id": procs.boot_id(),
    }


def beat(context: Context, given: Message) -> Message:
    if context.guardian is None:
        return {"lease_left_s": None, "server": None}
    return context.guardian.ask("beat", {}, 10.0)


def read(context: Context, given: Message) -> Message:
    limit = args.integer(given, "max_bytes", _READ_LIMIT_BYTES)
    answers: List[Message] = []
    for word in args.words(given, "paths"):
        path = places.expand(word)
        found = files.look(os.path.realpath(path))
        if found is None:
            answers.append({"path": path, "z": None, "sha256": None, "size": 0})
            continue
        if len(found.data) > limit:
            raise AgentError("failed", "{} is larger than {} bytes".format(path, limit), path=path)
        answers.append(dict(pack(found.data), path=path, sha256=found.sha256, size=len(found.data)))
    return {"files": answers}


def guard(context: Context, given: Message) -> Message:
    if context.guardian is not None:
        raise AgentError(
            "bad_request", "this channel has a guardian already (run {})".format(context.guardian.run_id)
        )
    run_id = args.path_name(given, "run_id")
    answer = taking.take(given, context.ended)
    context.connect(run_id, args.text(given, "holder", "unknown"), False)
    return answer


def attach(context: Context, given: Message) -> Message:
    if context.guardian is not None:
        raise AgentError(
            "bad_request", "this channel has a guardian already (run {})".format(context.guardian.run_id)
        )
    held = lock.holder()
    run_id = args.optional_text(given, "run_id")
    if held is None:
        raise AgentError("not_found", "nobody holds the node")
    if held["user"] != procs.user_name(os.geteuid()) or (run_id is not None and run_id != held["run_id"]):
        raise lock.busy_error(held)
    return context.connect(
        str(held["run_id"]), args.text(given, "holder", "unknown"), args.flag(given, "force")
    )


def forward(verb: str) -> Verb:
    def ask(context: Context, given: Message) -> Message:
        link = context.link()
        if verb == "start":
            context.server_ended = False
        return link.ask(verb, given)

    return ask


def unwind(context: Context, given: Message) -> Message:
    link = context.link()
    link.expected_to_end = True
    context.load.interrupt()
    try:
        return link.ask("unwind", given)
    except AgentError as error:
        link.expected_to_end = error.code == "dirty"
        raise
    finally:
        if link.expected_to_end:  # it gave the node up, clean or not, and ends
            context.forget(link)


def goodbye(context: Context, given: Message) -> Message:
    link = context.guardian
    if link is not None:
        link.expected_to_end = True
        link.ask("goodbye", {"detach": args.flag(given, "detach")}, 10.0)
        context.forget(link)
        link.close()
    return {}


def holding(context: Context, given: Message) -> Message:
    found = holders.read(args.gpu_indices(given))
    return {"holders": found.holders, "gpus": found.picture.gpus_json(), "problem": found.picture.problem}


def http(context: Context, given: Message) -> Message:
    return httpget.request(given, lambda: not context.server_ended)


def load(context: Context, given: Message) -> Message:
    """Where `workdir` and `run_id` are not given, those of the attached run hold."""
    return context.load.run(
        dict(context.run, **given), lambda line: context.send_event("load_progress", line)
    )


def tail(context: Context, given: Message) -> Message:
    path = places.expand(args.text(given, "path"))
    offset, limit = args.integer(given, "offset", 0), args.integer(given, "max_bytes", 65536)
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = offset if 0 <= offset <= size else max(0, size + offset) if offset < 0 else size
            stream.seek(start)
            data = stream.read(max(0, min(limit, _TAIL_LIMIT_BYTES)))
    except OSError as error:
        raise AgentError("not_found", "cannot read {}: {}".format(path, error.strerror), path=path) from None
    return dict(pack(data), offset=start + len(data), size=size)


def status(context: Context, given: Message) -> Message:
    return facts.status(guardlink.server_of(lock.holder()))


def clean(context: Context, given: Message) -> Message:
    """Removes the folders of a run, once its journal is closed; without a journal that tells of it, nothing."""
    run_id, workdir = args.path_name(given, "run_id"), places.expand(args.text(given, "workdir"))
    path = os.path.join(places.run_folder(run_id), journal.FILE_NAME)
    if not os.path.lexists(path):
        return {}
    told = story.read(path)
    if told.closed is None:
        raise AgentError("dirty", "run {} has an open journal; restore it first".format(run_id), files=[path])
    if told.opened is None or told.opened["workdir"] != workdir:
        raise AgentError("bad_request", "run {} did not work in {}".format(run_id, workdir), path=workdir)
    tidy.remove(run_id, workdir)
    return {}


def recover(context: Context, given: Message) -> Message:
    """Stops or restores without a guardian of one's own, as a person would: see `hand.py`."""
    what = args.text(given, "what", "restore")
    if what not in ("stop", "restore"):
        raise args.bad("what", "stop or restore", what)
    if context.guardian is not None:
        context.guardian.expected_to_end = True
    return hand.recover(
        what, args.flag(given, "force"), args.flag(given, "keep_foreign"), args.text(given, "by", "")
    )


VERBS: Dict[str, Verb] = {
    "hello": hello,
    "beat": beat,
    "facts": lambda context, given: facts.read(given),
    "read": read,
    "smoke": lambda context, given: smoke.check(given),
    "overlay": lambda context, given: outrank.check(given),
    "guard": guard,
    "attach": attach,
    "goodbye": goodbye,
    "unwind": unwind,
    "holders": holding,
    "http": http,
    "load": load,
    "tail": tail,
    "status": status,
    "clean": clean,
    "recover": recover,
}
VERBS.update({verb: forward(verb) for verb in FORWARDED})


def answer(context: Context, message: Message) -> Message:
    """The reply to one request; never raises."""
    number = args.request_id(message)
    verb, given = message.get("verb"), message.get("args", {})
    try:
        if not isinstance(verb, str) or not isinstance(given, dict):
            raise AgentError("bad_request", "a request has an id, a verb and args")
        known = VERBS.get(verb)
        if known is None:
            raise AgentError("unknown_verb", "no verb {!r:.40}".format(verb))
        return {"id": number, "ok": known(context, given)}
    except Exception as error:  # noqa: BLE001 - a request must never end the channel
        return {"id": number, "error": as_agent_error(error, str(verb)).as_json()}
