"""The threshold that the boots of earlier runs speak for: the largest concurrency up to which static was never slower.

    python3 tests/gpu/best_threshold.py RUN_FOLDER...

Takes the first folder with a summary of the arms `none` and `static`; 0 where static was slower from the first one on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def best_threshold(summary: dict[str, Any]) -> int | None:
    """None without a summary of both arms."""
    arms = summary.get("arms", {})
    if not {"none", "static"} <= arms.keys():
        return None
    speeds = [
        {point["concurrency"]: point["metrics"]["output_tps"]["value"] for point in arms[name]["points"]}
        for name in ("none", "static")
    ]
    best = 0
    for concurrency in sorted(speeds[0].keys() & speeds[1].keys()):
        if speeds[1][concurrency] < speeds[0][concurrency]:
            break
        best = concurrency
    return best


def main(folders: list[str]) -> int:
    for folder in sorted(folders):
        path = Path(folder) / "summary.json"
        found = best_threshold(json.loads(path.read_text())) if path.is_file() else None
        if found is not None:
            print(found)
            return 0
    print("no run of none and static", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
