"""What the node's tools and /proc say: a picture, or "cannot be read"; never a guess and never an exception."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent import gpus, holders, ports, procs
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, damaged, texts

CAPTURED = Path(__file__).resolve().parents[1] / "agent" / "nvidia_smi"
XML = [path.read_text() for path in sorted(CAPTURED.glob("*.xml"))]
XML += [case["output"] for case in yaml.safe_load((CAPTURED / "unreadable.yaml").read_text())]
CELLS = [
    "[N/A]",
    "[Not Supported]",
    "[Insufficient Permissions]",
    "70000 MiB",
    "-1 MiB",
    "\u0663 MiB",
    "\u00b2",
    "None",
    "N/A",
]
TAGS = [
    "<pid>", "</pid>", "<process_info>", "<gpu>", "</gpu>", "<uuid></uuid>", "<processes>", "]]>", "<!--",
    "&x;", "&#0;", '<!DOCTYPE a [<!ENTITY x "y">]>', "<attached_gpus>\u00b2</attached_gpus>",
    "<pid>\u00b2</pid>", "<pid>4294967296</pid>",
]  # fmt: skip
PIECES = [*CELLS, *TAGS, *ODD_TEXTS]
STAT = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1 18446744073709551615"
TCP = "  sl  local_address rem_address   st\n   0: 0100007F:7530 00000000:0000 0A 0:0 0:0 0 0 0 4711 1 0\n"


def look(text: str) -> None:
    try:
        picture = gpus.parse(text)
    except gpus.Unreadable as error:
        assert len(str(error)) < 500
        return
    assert picture.problem is None
    assert all(0 <= process.pid <= 9_999_999_999 for process in picture.processes)
    assert {process.gpu for process in picture.processes} <= {gpu.uuid for gpu in picture.gpus}
    for gpu in picture.gpus:
        assert gpu.memory_used_mib is None or gpu.memory_used_mib >= 0
    holders.unexplained_mib(picture, None)
    holders.facts(picture._replace(processes=picture.processes[:3]), {}, [0])


@fuzzed(0.7)
@given(damaged(XML, PIECES))
def test_a_damaged_picture_of_the_gpus_is_read_or_unreadable(text: str) -> None:
    look(text)


@fuzzed(0.3)
@given(texts().map(lambda text: f"<nvidia_smi_log>{text}</nvidia_smi_log>") | texts())
def test_any_text_of_the_tool_is_read_or_unreadable(text: str) -> None:
    look(text)


@fuzzed()
@given(damaged([STAT], [*ODD_TEXTS, ")", "(", " 1", "\u00b2", "-"]) | texts())
def test_a_line_of_proc_stat_is_read_or_a_value_error(text: str) -> None:
    try:
        stat = procs.parse_stat(text)
    except ValueError:
        return
    assert type(stat.pid) is type(stat.start_time) is int
    assert procs.descendants({stat.pid: stat}, [stat.parent]) <= {stat.pid}


@fuzzed()
@given(damaged([TCP, TCP * 3], [*ODD_TEXTS, ":", " 0A ", "\u00b2", "\n"]) | texts(), st.integers(-1, 70000))
def test_a_table_of_sockets_is_read_and_odd_lines_are_skipped(text: str, port: int) -> None:
    assert all(type(inode) is int for inode in ports.listening_inodes(text.splitlines(), port))


@fuzzed()
@given(
    st.sets(
        st.one_of(
            texts(),
            st.sampled_from(["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia0 (deleted)", "/dev/nvidiactl"]),
        )
    )
)
def test_open_devices_are_told_apart_by_their_whole_name(links: set[str]) -> None:
    assert (gpus.devices_of_links(links) is None) is ("/dev/nvidia0" not in links)
