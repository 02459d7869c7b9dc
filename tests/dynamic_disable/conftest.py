"""The worlds of these tests import each other by name, and their assertions speak."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("models", "fake_sglang", "world_v1", "world_v2")
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
