"""Load offered from this machine, through a forward to the node's loopback: `sweep.load_from: controller`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.load.pack import build_zipapp
from orchestrator.remote.node import Node
from orchestrator.remote.replies import LoadReply


def load_from_here(
    node: Node,
    spec: Mapping[str, Any],
    timeout_s: float,
    on_progress: Callable[[Mapping[str, Any]], None],
) -> LoadReply:
    """The same load generator, as a process here. Raises RemoteError (`timeout`, `failed`) as the node's verb would."""
    with (
        node.forward(int(spec["port"])) as port,
        tempfile.TemporaryDirectory(prefix="dynspec-load-") as folder,
    ):
        program, spec_path, records = (
            Path(folder) / name for name in ("loadgen.pyz", "spec.json", "records.jsonl")
        )
        program.write_bytes(build_zipapp())
        spec_path.write_text(json.dumps({**spec, "host": "127.0.0.1", "port": port}))
        summary = _run([sys.executable, str(program), str(spec_path), str(records)], timeout_s, on_progress)
        return LoadReply(summary, records.read_bytes())


def _run(
    argv: list[str], timeout_s: float, on_progress: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.terminate()

    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            summary = _follow(process, on_progress)
            error = process.stderr.read() if process.stderr else ""
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if late.is_set():
        raise RemoteError(f"the load took longer than {timeout_s:.0f} s (limits.point)", code="timeout")
    if code != 0 or summary is None:
        raise RemoteError(
            f"the load generator ended with exit code {code}: {error.strip()[-500:]}", code="failed"
        )
    return summary


def _follow(
    process: subprocess.Popen[str], on_progress: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any] | None:
    summary = None
    for line in process.stdout or ():
        value = json.loads(line)
        if "summary" in value:
            summary = value["summary"]
        else:
            on_progress(value)
    return summary
