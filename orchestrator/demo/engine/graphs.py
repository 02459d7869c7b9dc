"""Batch sizes for which the release captures CUDA graphs of a decode step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)]
_SPECULATIVE = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 513, 16)]


def captured_sizes(args: Mapping[str, Any]) -> list[int]:
    """As the release lists them from its arguments (renamed in 0.5.14); none with --disable-cuda-graph."""
    if args.get("disable_cuda_graph"):
        return []
    listed = args.get("cuda_graph_bs") or args.get("cuda_graph_bs_decode")
    if listed:
        return sorted(listed)
    most = int(args.get("cuda_graph_max_bs") or args.get("cuda_graph_max_bs_decode") or 256)
    if args.get("disable_cuda_graph_padding"):
        return list(range(1, most + 1))
    sizes = _PLAIN if args.get("speculative_algorithm") is None else _SPECULATIVE
    return sorted({size for size in sizes if size <= most} | {most})
