"""`nvidia-smi` of a simulated node: run as a script by the node's interpreter, standard library only.

`node.json` beside it says what the node has; the memory folder says what its engines hold. Answers `-L`,
`-q -x`, `--query-gpu=... --format=csv[,noheader][,nounits]`, `--query-compute-apps=...`, and a table; anything else
is an error, as from the real tool.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DRIVER = "000.00.simulated"


def main(words: list[str], node: dict[str, Any]) -> int:
    gpus = read_gpus(node)
    if words == ["-L"]:
        print("\n".join(f"GPU {g['index']}: {g['name']} (UUID: {g['uuid']})" for g in gpus))
        return 0
    if "-q" in words and "-x" in words:
        print(as_xml(gpus))
        return 0
    for word in words:
        for option, rows in (("--query-gpu=", gpu_rows), ("--query-compute-apps=", process_rows)):
            if word.startswith(option):
                return _csv(word[len(option) :].split(","), rows(gpus), words)
    if words:
        print(f"Simulated nvidia-smi: does not know {' '.join(words)}", file=sys.stderr)
        return 6
    print(as_table(gpus))
    return 0


def read_gpus(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The node's GPUs with the processes that hold their memory."""
    folder = Path(node["gpu_dir"])
    entries = [
        entry for entry in map(_entry, sorted(folder.glob("*.json"))) if entry and _charged(entry, node)
    ]
    gpus = []
    for index in range(int(node["gpus"])):
        held = [entry for entry in entries if entry["gpu"] == index]
        gpus.append(
            {
                "index": index,
                "uuid": f"GPU-51510000-0000-4000-8000-{index:012d}",
                "name": "Simulated H200",
                "total": int(node["gpu_memory_mib"]),
                "used": sum(entry["mib"] for entry in held),
                "processes": [entry for entry in held if entry["alive"]],
            }
        )
    return gpus


def _entry(file: Path) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    entry["file"] = file
    entry["alive"] = _start_ticks(entry["pid"]) == entry["start"]
    return entry


def _charged(entry: dict[str, Any], node: dict[str, Any]) -> bool:
    """Memory of an ended process stays charged for `gpu_release_s` after it was first seen gone."""
    if entry["alive"]:
        return True
    stamp = entry["file"].with_suffix(".gone")
    if not stamp.exists():
        stamp.touch()
    # A clock that was set back since makes it negative: then nobody can say, and the memory is free.
    if 0 <= time.time() - stamp.stat().st_mtime < float(node.get("gpu_release_s", 0)):
        return True
    entry["file"].unlink(missing_ok=True)
    stamp.unlink(missing_ok=True)
    return False


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "[Not Found]"
    return words[0].decode("utf-8", "replace")


def gpu_rows(gpus: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Field -> text with unit, one dict a GPU."""
    rows = []
    for gpu in gpus:
        busy = bool(gpu["processes"])
        rows.append(
            {
                "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
                "index": str(gpu["index"]),
                "uuid": gpu["uuid"],
                "name": gpu["name"],
                "gpu_name": gpu["name"],
                "driver_version": DRIVER,
                "memory.total": f"{gpu['total']} MiB",
                "memory.used": f"{gpu['used']} MiB",
                "memory.free": f"{gpu['total'] - gpu['used']} MiB",
                "utilization.gpu": f"{90 if busy else 0} %",
                "utilization.memory": f"{60 if busy else 0} %",
                "clocks.sm": f"{1980 if busy else 345} MHz",
                "clocks.current.sm": f"{1980 if busy else 345} MHz",
                "clocks.mem": "3201 MHz",
                "power.draw": f"{430.0 if busy else 75.0:.2f} W",
                "temperature.gpu": "55" if busy else "30",
                "pstate": "P0",
                "clocks_event_reasons.active": f"0x{0 if busy else 1:016x}",  # idle counts as a reason
                "compute_cap": "9.0",
            }
        )
    return rows


def process_rows(gpus: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "gpu_uuid": gpu["uuid"],
            "gpu_name": gpu["name"],
            "pid": str(entry["pid"]),
            "process_name": _command(entry["pid"]),
            "name": _command(entry["pid"]),
            "used_memory": f"{entry['mib']} MiB",
            "used_gpu_memory": f"{entry['mib']} MiB",
        }
        for gpu in gpus
        for entry in gpu["processes"]
    ]


def _csv(fields: list[str], rows: list[dict[str, str]], words: list[str]) -> int:
    known = set(gpu_rows([_EMPTY])[0]) | set(
        process_rows([{**_EMPTY, "processes": [{"pid": 0, "mib": 0}]}])[0]
    )
    for field in fields:
        if field.strip() not in known:
            print(f'Field "{field}" is not a valid field to query.\n', file=sys.stderr)
            return 2
    form = next((word[len("--format=") :] for word in words if word.startswith("--format=")), "csv").split(
        ","
    )
    shown: Callable[[str], str] = (
        (lambda text: text.partition(" ")[0]) if "nounits" in form else (lambda text: text)
    )
    if "noheader" not in form:
        print(", ".join(field.strip() for field in fields))
    for row in rows:
        texts = [row[field.strip()] for field in fields]
        print(", ".join(shown(text) if text.endswith(_UNITS) else text for text in texts))
    return 0


_UNITS = (" MiB", " %", " MHz", " W")
_EMPTY: dict[str, Any] = {"index": 0, "uuid": "", "name": "", "total": 0, "used": 0, "processes": []}


def as_xml(gpus: list[dict[str, Any]]) -> str:
    """The parts of `-q -x` that tools read."""
    lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>"]
    lines.append(f"<driver_version>{DRIVER}</driver_version>")
    lines.append(f"<attached_gpus>{len(gpus)}</attached_gpus>")
    for gpu, row in zip(gpus, gpu_rows(gpus)):  # noqa: B905 (runs under old interpreters)
        lines.append(f'<gpu id="00000000:0{gpu["index"] + 1}:00.0">')
        lines.append(f"<product_name>{gpu['name']}</product_name><uuid>{gpu['uuid']}</uuid>")
        lines.append(
            f"<fb_memory_usage><total>{row['memory.total']}</total><used>{row['memory.used']}</used>"
            f"<free>{row['memory.free']}</free></fb_memory_usage>"
        )
        lines.append(
            f"<utilization><gpu_util>{row['utilization.gpu']}</gpu_util></utilization>"
            f"<clocks><sm_clock>{row['clocks.sm']}</sm_clock></clocks>"
        )
        lines.append("<processes>")
        for entry in gpu["processes"]:
            lines.append(
                f"<process_info><pid>{entry['pid']}</pid><type>C</type>"
                f"<process_name>{escape(_command(entry['pid']))}</process_name>"
                f"<used_memory>{entry['mib']} MiB</used_memory></process_info>"
            )
        lines += ["</processes>", "</gpu>"]
    return "\n".join([*lines, "</nvidia_smi_log>"])


def as_table(gpus: list[dict[str, Any]]) -> str:
    lines = ["SIMULATED nvidia-smi: no GPU behind these figures", f"Driver Version: {DRIVER}"]
    for gpu in gpus:
        lines.append(f"| {gpu['index']}  {gpu['name']}  {gpu['used']}MiB / {gpu['total']}MiB |")
        lines += [f"|    pid {entry['pid']}  C  {entry['mib']}MiB |" for entry in gpu["processes"]]
    return "\n".join(lines)


if __name__ == "__main__":
    _node = json.loads(Path(os.path.abspath(__file__)).with_name("node.json").read_text(encoding="utf-8"))
    sys.exit(main(sys.argv[1:], _node))
