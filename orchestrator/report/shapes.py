"""What the parts of a report hand to each other."""

from __future__ import annotations

from typing import Any

Summary = dict[str, Any]  # summary.json as it is read
Parts = tuple[str, str]  # an answer for a title and a line below it; the second may be empty
