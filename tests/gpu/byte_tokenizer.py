"""A byte-level tokenizer for the small model, so that grammars and stop strings can be asked for.

    python3 tests/gpu/byte_tokenizer.py MODEL_DIR     # writes tokenizer.json and tokenizer_config.json there

Ids 0 to 15 are special, 16 to 271 are the 256 bytes, and each id from 272 on is a word of its own, `w272` to `w1023`.
The words are never merged from bytes: encoding a text gives its bytes. Written by hand, so that nothing is needed here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

VOCAB, FIRST_BYTE, FIRST_WORD = 1024, 16, 272
SPECIAL = ["<unk>", "<s>", "</s>", *(f"<reserved{i}>" for i in range(3, FIRST_BYTE))]


def byte_characters() -> list[str]:
    """How byte-level vocabularies write the bytes 0 to 255: printable ones as they are, the others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


def token_text(token: int) -> str:
    """What a token that is no special one decodes to; a byte above 127 alone is no text."""
    return f"w{token}" if token >= FIRST_WORD else chr(token - FIRST_BYTE)


def tokenizer() -> dict[str, object]:
    """The content of tokenizer.json."""
    words = [f"w{i}" for i in range(FIRST_WORD, VOCAB)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *byte_characters(), *words])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def write(folder: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    _put(folder / "tokenizer.json", json.dumps(tokenizer(), ensure_ascii=False))
    _put(folder / "tokenizer_config.json", json.dumps(config, indent=1))


def _put(path: Path, text: str) -> None:
    """All of it at once: servers of another probe may be reading the folder."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
