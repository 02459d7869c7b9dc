"""Server flags whose values name files of the node. Pure readings of `Arm.args`."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.experiment import Arm

# Flags of SGLang that read what lies there; others write to their path, or mean no file by it.
READ = (
    "model-path",
    "model",
    "tokenizer-path",
    "speculative-draft-model-path",
    "speculative-draft-model",
    "speculative-token-map",
    "speculative-adaptive-config",
    "lora-paths",
    "chat-template",
    "completion-template",
    "quantization-param-path",
    "config",
)


def read_by(arm: Arm) -> Iterator[tuple[str, str]]:
    """(flag, value) of each file, folder or repository that a server of this arm would read, as it is written."""
    for flag in READ:
        value = arm.args.get(flag)
        for item in value if isinstance(value, tuple) else (value,):
            path = str(item).rpartition("=")[2] if flag == "lora-paths" else item  # `name=/path`
            if isinstance(path, str):
                yield flag, path
