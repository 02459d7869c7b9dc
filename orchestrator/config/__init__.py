"""The experiment file: YAML text -> a checked `Experiment`. Pure; reading the file is the caller's.

`load_experiment` either returns an experiment that every later phase may trust, or raises one `ExperimentError`
that names every problem of the file: file, line, key path, the value as read, and how to write it. `load_begun` reads
what a run folder keeps: rules of today are told of it, and refuse nothing.
"""

from __future__ import annotations

from orchestrator.config.loader import Checked, load_begun, load_experiment

__all__ = ["Checked", "load_begun", "load_experiment"]
