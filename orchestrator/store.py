"""The run folder `results/<run-id>/`: written atomically, file by file, never overwritten, redacted on the way in.
Folders are 0700 and files 0600, as on the node.

Layout (the contract's): experiment.lock.yaml, plan.json, facts.json, events.jsonl,
arms/<arm>/boot-<n>/{server.log, server_info.json, point-<nn>-c<k>.jsonl, point-<nn>-c<k>.meta.json},
summary.json, report files, outcome.json (last: without it the run is unfinished).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.plain_file import read_plain
from orchestrator.redact import Redactor

SCHEMA = 1
DIGEST = "records_sha256"  # of a point's records, in its meta file
META, RECORDS = ".meta.json", ".jsonl"  # the two files of a point
_POINT_NAME = re.compile(r"point-(\d+)-c(\d+)\.meta\.json$")
LOCK_FILE, PLAN, FACTS, EVENTS = "experiment.lock.yaml", "plan.json", "facts.json", "events.jsonl"
SUMMARY, GATE, OUTCOME = "summary.json", "gate.json", "outcome.json"
# Of one boot.
SERVER_LOG, PACKED_LOG, SERVER_INFO, GPU_SAMPLES = (
    "server.log",
    "server.log.gz",
    "server_info.json",
    "gpu.csv",
)


@dataclass(frozen=True)
class StoredPoint:
    """One finished point as found on disk: both files exist and the meta file parses."""

    arm: str
    boot: int
    index: int
    concurrency: int
    records: Path
    meta: dict[str, Any]

    @property
    def stem(self) -> str:
        """The name of its two files without their endings."""
        return f"point-{self.index:02d}-c{self.concurrency}"

    @property
    def damaged(self) -> bool:
        """The records are not the bytes that were stored. Without a digest, as of early versions: some are none."""
        wanted, raw = self.meta.get(DIGEST), self.records.read_bytes()
        if wanted is None:
            return not all(map(_is_record, raw.splitlines(keepends=True)))
        return bool(wanted != hashlib.sha256(raw).hexdigest())


_IDENTITY: dict[str, type] = {"arm": str, "boot": int, "index": int, "concurrency": int}
_COUNTS = ("boot", "index", "concurrency")
_REQUESTS: dict[str, type] = {"warmup_requests": int}
_LOAD: dict[str, type] = {"summary": dict, "client": dict, "chunk_gap_ns": dict}
_CLIENT: dict[str, type] = {"lag_ns": dict}
_SHARED: dict[str, type] = {"started_as": str, "boot": int}


def stored_point(meta_path: Path) -> StoredPoint | None:
    """The point that a meta file describes; None where a field that readers rely on is absent or no such thing."""
    meta = json_object(meta_path)
    if not (_typed(meta, _IDENTITY, absent=False) and _readable(meta)):
        return None
    if min(meta[key] for key in _COUNTS) < 0:
        return None
    records = meta_path.with_name(meta_path.name.removesuffix(META) + RECORDS)
    return StoredPoint(meta["arm"], meta["boot"], meta["index"], meta["concurrency"], records, meta)


def _readable(meta: Mapping[str, Any]) -> bool:
    """What may be absent and is not, is of its type."""
    looks = [meta.get(key) or [] for key in ("server_before", "server_after")]
    shared = meta.get("shared_boot")
    return (
        _typed(meta, _REQUESTS)
        and all(isinstance(look, list) and all(isinstance(rank, dict) for rank in look) for look in looks)
        and _readable_load(meta.get("load"))
        and (shared is None or (isinstance(shared, dict) and _typed(shared, _SHARED, absent=False)))
    )


def _readable_load(load: object) -> bool:
    """Some agents hand the load generator's summary on in the line that it stood in."""
    if load is None:
        return True
    if not isinstance(load, dict) or not _typed(load, _LOAD):
        return False
    inner = load.get("summary")
    client = load.get("client") or {}
    if not _typed(client, _CLIENT):
        return False
    spreads = (load.get("chunk_gap_ns") or {}, client.get("lag_ns") or {})
    values = (spread[key] for spread in spreads for key in spread if key == "mean" or key.startswith("p"))
    numbers = all(type(value) in (int, float, type(None)) for value in values)
    return numbers and (inner is None or _readable_load(inner))


def _typed(found: Mapping[str, Any], kinds: Mapping[str, type], *, absent: bool = True) -> bool:
    """Whether each value is of its type; JSON's true is no count. `absent`: one may be missing, or null."""
    return all(
        absent if (value := found.get(key)) is None else type(value) is kind for key, kind in kinds.items()
    )


def _is_record(line: bytes) -> bool:
    """Also of a last line that a power cut tore, which every reader leaves out."""
    if not line.endswith((b"\n", b"}")):
        return True
    try:
        return isinstance(json.loads(line.decode("ascii")), dict)
    except ValueError:
        return False


def new_run_id(name: str, now: float | None = None) -> str:
    """`YYYYMMDD-HHMMSS-<name>-<4 hex>`, UTC."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{stamp}-{safe_name(name)}-{secrets.token_hex(2)}"


def safe_name(name: str) -> str:
    """A name that is one path component on any file system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def replace_file(path: Path, raw: bytes) -> None:
    """Atomic: temp file beside it, fsync, rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _make_folder(folder: Path) -> None:
    """With those above it, each for this user alone, as the files in them."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def require_writable(folder: Path, help: str) -> None:
    """Made where it is absent, and proven by a file. Raises UsageError: what can't keep its records must not start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dynspec-") as file:
            file.write(b"x")  # a full disk takes an empty file
            file.flush()
    except OSError as error:
        raise UsageError(f"{folder} can't keep the results of a run: {error.strerror}", help=help) from None


def json_object(path: Path) -> dict[str, Any]:
    """Empty for whatever is no JSON object, for who says so (`records.damage`)."""
    try:
        value = json.loads(read_plain(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def from_here(path: Path) -> Path:
    """Relative to the working folder where it lies below: what is shown or passed on should not name more."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


class RunStore:
    """Writes and reads one run folder. Every text passes `redact` first."""

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self.folder = folder
        self.redact = redact or Redactor({})
        self._events = folder / EVENTS

    @property
    def run_id(self) -> str:
        return self.folder.name

    @classmethod
    def create(cls, results: Path, run_id: str, redact: Redactor) -> RunStore:
        results.mkdir(parents=True, exist_ok=True)
        folder = results / run_id
        folder.mkdir(mode=0o700)  # an existing one is an error: runs are never overwritten
        return cls(folder, redact)

    @classmethod
    def open(cls, results: Path, run: str, redact: Redactor | None = None) -> RunStore:
        """`run` is a run id under `results`, or the path of a run folder. Raises UsageError for anything else."""
        if not run.strip():
            raise UsageError("the name of the run is empty", help=_known_runs(results))
        for folder in (results / run, Path(run)):
            if any((folder / name).is_file() for name in (PLAN, LOCK_FILE)):  # one of them may be lost
                return cls(folder.resolve(), redact)
        for folder in (results / run, Path(run)):
            if folder.exists():
                raise UsageError(
                    f"{folder} is not a run folder: it has neither {PLAN} nor {LOCK_FILE}",
                    help=_known_runs(results),
                )
        raise UsageError(f"no run folder {run!r} under {results}", help=_known_runs(results))

    # -- writing -----------------------------------------------------------------------------------------
    def write(self, relative: str, text: str) -> Path:
        return self.write_bytes(relative, self.redact(text).encode())

    def write_json(self, relative: str, value: Mapping[str, Any]) -> Path:
        body = {"schema": SCHEMA, **plain(value)}
        return self.write(relative, json.dumps(self.redact.tree(body), indent=1, sort_keys=False) + "\n")

    def write_bytes(self, relative: str, raw: bytes) -> Path:
        path = self.folder / relative
        _make_folder(path.parent)
        replace_file(path, raw)
        return path

    def event(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Appends one line to events.jsonl and returns what was written."""
        record: dict[str, Any] = {"t": utc_now(), "event": kind, **plain(data)}
        safe = self.redact.tree(record)
        with open(self._events, "a", encoding="utf-8", opener=_for_us_alone) as file:
            file.write(json.dumps(safe) + "\n")
        assert isinstance(safe, dict)
        return safe

    def mend_events(self) -> None:
        """Ends a line that a killed run left half written, so that the next event stands on its own."""
        if self._events.is_file() and not self._events.read_bytes().endswith(b"\n"):
            with self._events.open("ab") as file:
                file.write(b"\n")

    def boot_path(self, arm: str, boot: int, name: str) -> str:
        return f"arms/{safe_name(arm)}/boot-{boot}/{name}"

    def write_point(
        self, arm: str, boot: int, index: int, concurrency: int, records: bytes, meta: Mapping[str, Any]
    ) -> None:
        """Records first: the meta file's presence is what makes the point count as finished."""
        stem = f"point-{index:02d}-c{concurrency}"
        kept = self.redact.data(records)
        self.write_bytes(self.boot_path(arm, boot, f"{stem}{RECORDS}"), kept)
        identity = {"arm": arm, "boot": boot, "index": index, "concurrency": concurrency}
        digest = {DIGEST: hashlib.sha256(kept).hexdigest()}
        self.write_json(
            self.boot_path(arm, boot, f"{stem}{META}"),
            {**identity, **meta, **digest},
        )

    # -- reading -----------------------------------------------------------------------------------------
    def read_json(self, relative: str) -> dict[str, Any]:
        path = self.folder / relative
        try:
            value = json.loads(read_plain(path).decode("utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{path} is missing: the run folder is incomplete") from None
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} is damaged: {error}") from None
        if not isinstance(value, dict):
            raise UsageError(f"{path} is damaged: not a JSON object")
        return value

    def section(self, relative: str, key: str) -> dict[str, Any]:
        """The mapping `key` of a file. Raises UsageError, which names the file, where there is none."""
        found = self.read_json(relative).get(key)
        if not isinstance(found, dict):
            raise UsageError(f"{self.folder / relative} is damaged: it has no {key}")
        return found

    def section_left(self, relative: str, key: str) -> dict[str, Any]:
        """The same, empty where it is lost, for who says so (`records.damage`)."""
        try:
            return self.section(relative, key)
        except UsageError:
            return {}

    def points(self) -> Iterator[StoredPoint]:
        """Finished points, in order of arm, boot and sweep position. Unreadable ones are left out."""
        found = []
        for path in self.folder.glob(f"arms/*/boot-*/point-*{META}"):
            if _POINT_NAME.search(path.name) is None:
                continue
            point = stored_point(path)
            if point is not None and point.records.is_file():
                found.append(point)
        yield from sorted(found, key=lambda point: (point.arm, point.boot, point.index))

    @property
    def finished(self) -> bool:
        return (self.folder / OUTCOME).is_file()


def _known_runs(results: Path) -> str:
    """What a person may do who named no run that is there."""
    known = sorted(path.parent.name for path in results.glob(f"*/{PLAN}"))[-3:]
    return f"latest runs: {', '.join(known)}" if known else "start one with: dynspec run EXPERIMENT.yaml"


def plain(value: Any) -> Any:
    """Dataclasses, tuples and paths to what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]  # whole file texts are not
        named = {name: getattr(value, name) for name in shown}
        return {"type": type(value).__name__, **{key: plain(item) for key, item in named.items()}}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
