"""A boot that a resumed run starts again keeps the logs and samples by which its kept points are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.records.restarts import joined_log, joined_samples, restarted_boots
from orchestrator.redact import Redactor
from orchestrator.store import RunStore, StoredPoint

HEAD = b"utc_s,elapsed_s,foreign_pids,index\n"


def test_logs_follow_each_other_in_whole_lines():
    assert joined_log(b"one\ntwo", b"three\n") == b"one\ntwo\nthree\n"
    assert joined_log(b"", b"three\n") == b"three\n"


def test_samples_have_one_header_and_one_clock():
    earlier = HEAD + b"1000.000,0.000,,0\n1001.000,1.000,4242,0\n"
    later = HEAD + b"1060.500,0.000,,0\n1061.500,1.000,,0\n"
    assert joined_samples(earlier, later) == earlier + b"1060.500,60.500,,0\n1061.500,61.500,,0\n"


def test_what_the_node_appended_itself_is_not_taken_twice():
    first = HEAD + b"1000.000,0.000,,0\n"
    appended = first + HEAD + b"1060.500,0.000,,0\n"
    once = first + b"1060.500,60.500,,0\n"
    assert joined_log(b"one\n", b"one\ntwo\n") == b"one\ntwo\n"
    assert joined_samples(first, appended) == joined_samples(b"", appended) == once
    assert joined_samples(b"", first) == first


@pytest.mark.parametrize(
    ("earlier", "later"),
    [(HEAD, b"other,columns\n1,2\n"), (b"no,clocks\n1,2", b"no,clocks\n3,4\n"), (b"", b"")],
)
def test_samples_that_cannot_be_joined_lose_no_line(earlier, later):
    joined = joined_samples(earlier, later).splitlines()
    assert joined == [*earlier.splitlines(), *later.splitlines()]


def test_rows_that_are_torn_survive():
    earlier = HEAD + b"1000.000,0.000,,0\n1001.0"
    later = HEAD + b"1060.500,0.000,,0\nx\n"
    assert joined_samples(earlier, later).endswith(b"1001.0\n1060.500,60.500,,0\nx\n")


def test_a_shared_boot_that_was_started_again_is_one_of_every_arm_that_has_points_in_it(tmp_path):
    store = RunStore.create(tmp_path, "run", Redactor({}))
    starts = [("plain", 1, "10:00"), ("baseline", 1, "10:10"), ("plain", 1, "10:20"), ("plain", 2, "10:30")]
    texts = [
        json.dumps({"t": f"2026-01-01T{t}:00Z", "event": "started", "arm": arm, "boot": boot})
        for arm, boot, t in starts
    ]
    (store.folder / "events.jsonl").write_text("\n".join(texts))
    points = [
        (("plain", 1), _point("two", 1, "10:05")),  # the only one of the first start
        (("plain", 1), _point("plain", 1, "10:25")),
        (("plain", 2), _point("plain", 2, "10:35")),
        (("baseline", 1), _point("baseline", 1, "10:15")),
    ]
    assert restarted_boots(store, points) == {"plain": 1, "two": 1}


def _point(arm: str, boot: int, begun: str) -> StoredPoint:
    load = {"wall_start_utc": f"2026-01-01T{begun}:00Z", "client": {"wall_s": 30.0}}
    return StoredPoint(arm, boot, 0, 1, Path("point-00-c1.jsonl"), {"load": load})
