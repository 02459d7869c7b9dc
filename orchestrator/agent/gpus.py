"""GPUs as `nvidia-smi -q -x` tells them: one call, one consistent picture. What cannot be read is never "free"."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from types import MappingProxyType
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional

TOOL = "nvidia-smi"
TOOL_TIMEOUT_S = 15.0
DEVICES = "/dev/nvidia[0-9]*"
GRAPHICS = "G"  # a display server; it never computes, never blocks and is never touched
_DEVICE = re.compile(r"/dev/nvidia([0-9]{1,10})\Z")
_MIB = re.compile(r"([0-9]+)\s*MiB\Z")
_NUMBER = re.compile("[0-9]{1,10}\\Z")  # str.isdigit also takes digits that int does not
_FIELD_LIMIT = 200


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Memory is None where the tool does not say (`[N/A]`, `[Not Supported]`, a permission text)."""

    index: int
    uuid: str
    name: str
    memory_total_mib: Optional[int]
    memory_used_mib: Optional[int]
    driver: Optional[str]


class GpuProcess(NamedTuple):
    pid: int
    kind: str  # C, G, C+G, M+C as the tool prints it
    gpu: str  # uuid
    memory_mib: Optional[int]
    name: str


class Picture(NamedTuple):
    """`problem` says why nothing could be read; then the lists are empty and mean nothing.

    `minors`: the number in /dev/nvidiaN of a GPU, by uuid, where the tool tells it; it need not be the GPU's index.
    """

    gpus: List[Gpu]
    processes: List[GpuProcess]
    problem: Optional[str] = None
    minors: Mapping[str, int] = MappingProxyType({})

    def gpus_json(self) -> List[Dict[str, Any]]:
        return [dataclasses.asdict(gpu) for gpu in self.gpus]


class Unreadable(ValueError):
    pass


def parse(text: str) -> Picture:
    """The XML of `nvidia-smi -q -x`; lines before it (warnings) are skipped. Raises Unreadable."""
    start = min((at for at in (text.find("<?xml"), text.find("<nvidia_smi_log")) if at >= 0), default=-1)
    if start < 0:
        raise Unreadable("no XML in its output: {!r:.120}".format(text.strip()))
    try:
        root = ElementTree.fromstring(text[start:].strip())
    except (ElementTree.ParseError, ValueError) as error:
        raise Unreadable("its XML is damaged: {}".format(error)) from None
    if root.tag != "nvidia_smi_log":
        raise Unreadable("its XML is of an unknown kind: {:.60}".format(root.tag))
    driver = _word(root, "driver_version") or None
    gpus: List[Gpu] = []
    processes: List[GpuProcess] = []
    minors: Dict[str, int] = {}
    for index, node in enumerate(root.findall("gpu")):
        gpu = _gpu(index, node, driver)
        gpus.append(gpu)
        processes += _processes(node, gpu)
        minor = _word(node, "minor_number")
        if _NUMBER.match(minor):
            minors[gpu.uuid] = int(minor)
    attached = _word(root, "attached_gpus")
    if _NUMBER.match(attached) and int(attached) != len(gpus):
        raise Unreadable("it says {} GPUs and lists {}".format(attached, len(gpus)))
    return Picture(gpus, processes, minors=minors)


def _gpu(index: int, node: ElementTree.Element, driver: Optional[str]) -> Gpu:
    uuid = _word(node, "uuid")
    if not uuid:
        raise Unreadable("GPU {} has no uuid".format(index))
    total, used = (_mib(_word(node, "fb_memory_usage/" + name)) for name in ("total", "used"))
    return Gpu(index, uuid, _word(node, "product_name") or "unknown", total, used, driver)


def _processes(node: ElementTree.Element, gpu: Gpu) -> List[GpuProcess]:
    listing = node.find("processes")
    if listing is None:
        raise Unreadable("GPU {} has no process list".format(gpu.index))
    found = []
    for item in listing.findall("process_info"):
        pid = _word(item, "pid")
        if not _NUMBER.match(pid):
            raise Unreadable("a process of GPU {} has pid {!r:.40}".format(gpu.index, pid))
        kind = _word(item, "type") or "?"
        found.append(
            GpuProcess(
                int(pid), kind, gpu.uuid, _mib(_word(item, "used_memory")), _word(item, "process_name")
            )
        )
    if not found and (listing.text or "").strip() not in ("", "None"):
        raise Unreadable(
            "GPU {} does not list processes: {!r:.80}".format(gpu.index, (listing.text or "").strip())
        )
    return found


def _word(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()[:_FIELD_LIMIT]


def _mib(text: str) -> Optional[int]:
    found = _MIB.match(text)
    return int(found.group(1)) if found else None


Spawn = Callable[..., "subprocess.Popen[bytes]"]


def read(
    spawn: Spawn = subprocess.Popen, timeout_s: float = TOOL_TIMEOUT_S, devices: str = DEVICES
) -> Picture:
    """Runs the tool. A node without tool and without device has no GPUs, and that is no problem."""
    tool = shutil.which(TOOL)
    if tool is None:
        if glob.glob(devices):
            return Picture([], [], "there are GPU devices ({}) but no {} on PATH".format(devices, TOOL))
        return Picture([], [])
    try:
        text = run_tool([tool, "-q", "-x"], spawn, timeout_s)
        return parse(text)
    except Unreadable as error:
        return Picture([], [], "{}: {}".format(TOOL, error))


def run_tool(argv: List[str], spawn: Spawn, timeout_s: float) -> str:
    """Standard output of a command that may hang or fail. Raises Unreadable."""
    try:
        process = spawn(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise Unreadable("cannot be started: {}".format(error.strerror)) from None
    try:
        output, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _close_pipes(process)
        raise Unreadable("no answer within {:g} s".format(timeout_s)) from None
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        said = (complaint.decode("utf-8", "replace") or text).strip()
        raise Unreadable("exit status {}: {:.200}".format(process.returncode, said or "nothing said"))
    return text


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    """Not `communicate`: a grandchild may hold the pipe open for ever."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        pass  # stuck in the driver; it is reaped when it ends


class OpenDevices(NamedTuple):
    """`kind`: "fd" for a process that computes (it has nvidia-uvm open), "G" for one that only looks or draws."""

    kind: str
    minors: FrozenSet[int]


def device_holders(proc: str = "/proc") -> Dict[int, OpenDevices]:
    """Pids with an open GPU device. Processes of other users cannot be looked into without root; for those there is
    the tool."""
    found: Dict[int, OpenDevices] = {}
    for name in os.listdir(proc):
        if name.isdigit():
            devices = _open_devices(os.path.join(proc, name, "fd"))
            if devices is not None:
                found[int(name)] = devices
    return found


def _open_devices(folder: str) -> Optional[OpenDevices]:
    try:
        links = {os.readlink(entry.path) for entry in os.scandir(folder)}
    except OSError:
        return None
    return devices_of_links(links)


def devices_of_links(links: "set[str]") -> Optional[OpenDevices]:
    minors = frozenset(int(match[1]) for match in map(_DEVICE.match, links) if match)
    if not minors:
        return None
    return OpenDevices("fd" if "/dev/nvidia-uvm" in links else GRAPHICS, minors)
