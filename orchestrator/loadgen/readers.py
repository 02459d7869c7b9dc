"""What the events of one endpoint say: generated output, token counts, the reason to finish.

The shapes are those of SGLang 0.5.8 to 0.5.23: chat and completions as in the OpenAI API with `usage` on every event
(`continuous_usage_stats`) or on the last; `/generate` with `meta_info`, and text and ids that repeat all
output so far, unless the server runs with incremental streaming output.
"""

from __future__ import annotations

import hashlib
from typing import Any, Optional

from .bodies import CHAT, COMPLETIONS

_MOST_TOKENS = 10**12  # a count beyond is no count
_WORD_LENGTH = 40  # of a reason to finish; a record has room for words, not for texts


class Reader:
    """Folds events. `take` returns true when the event carried generated output; `told` is its own count of tokens."""

    def __init__(self) -> None:
        self.prompt_tokens: Optional[int] = None
        self.cached_tokens: Optional[int] = None
        self.output_tokens: Optional[int] = None
        self.told: Optional[int] = None
        self.finish: Optional[str] = None
        self.error: Optional[str] = None
        self.verify_steps: Optional[int] = None
        self.accepted: Optional[int] = None
        self.drafted: Optional[int] = None

    def take(self, event: "dict[str, Any]") -> bool:
        """May raise AttributeError, IndexError, KeyError or TypeError when the event has another shape."""
        raise NotImplementedError

    def digest(self) -> Optional[str]:
        raise NotImplementedError

    def _is_error(self, event: "dict[str, Any]") -> bool:
        """Keep the text of an error event. SGLang sends them inside a stream that began with 200."""
        error = event if event.get("object") == "error" else event.get("error")
        if error is None:
            return False
        text = error
        if isinstance(error, dict):
            text = error.get("message")
            text = f"{text} ({error['code']})" if error.get("code") else text
        self.error = self.error or f"error event: {text}"
        return True

    def _usage(self, usage: "dict[str, Any]") -> None:
        self.told = _count(usage, "completion_tokens", None)
        if self.told is not None:
            self.output_tokens = self.told
        self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if details:
            self.cached_tokens = _count(details, "cached_tokens", self.cached_tokens)


class ChatReader(Reader):
    def __init__(self) -> None:
        super().__init__()
        self._text: "list[str]" = []

    def take(self, event: "dict[str, Any]") -> bool:
        if ("error" in event or event.get("object") == "error") and self._is_error(event):
            return False
        self.told = None
        usage = event.get("usage")
        if usage:
            self._usage(usage)
        choices = event.get("choices")
        if not choices:
            return False
        choice = choices[0]
        finish = choice.get("finish_reason")
        if finish is not None:
            self.finish = _word(finish)
        pieces = [_text(piece) for piece in self._pieces(choice)]
        self._text += pieces
        return bool(pieces)

    def _pieces(self, choice: "dict[str, Any]") -> "list[str]":
        delta = choice.get("delta") or {}
        pieces = [delta[key] for key in ("reasoning_content", "reasoning", "content") if delta.get(key)]
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            pieces.extend(function[key] for key in ("name", "arguments") if function.get(key))
        return pieces

    def digest(self) -> Optional[str]:
        return _sha256("".join(self._text)) if self._text else None


class CompletionsReader(ChatReader):
    def _pieces(self, choice: "dict[str, Any]") -> "list[str]":
        text = choice.get("text")
        return [text] if text else []


class GenerateReader(Reader):
    def __init__(self) -> None:
        super().__init__()
        self._texts: "list[str]" = []
        self._ids: "list[list[int]]" = []

    def take(self, event: "dict[str, Any]") -> bool:
        if ("error" in event or event.get("object") == "error") and self._is_error(event):
            return False
        text, ids = event.get("text"), event.get("output_ids")
        more = self._meta(event.get("meta_info") or {})
        if text:
            self._texts.append(_text(text))
        if ids:
            if type(ids) is not list:
                raise TypeError("output_ids is no list")
            self._ids.append(ids)
        # The token count tells growth, since text and ids repeat; without one, any content is output.
        return bool(text or ids) if more is None else more and bool(text or ids)

    def _meta(self, meta: "dict[str, Any]") -> Optional[bool]:
        """Whether the count of output tokens grew, or None if it is not told."""
        before = self.output_tokens or 0
        self._usage(meta)
        self.cached_tokens = _count(meta, "cached_tokens", self.cached_tokens)
        finish = meta.get("finish_reason")
        if finish is not None:
            self.finish = _word(finish["type"] if isinstance(finish, dict) else finish)
            if self.finish == "abort" and isinstance(finish, dict) and finish.get("message"):
                self.error = f"aborted: {finish['message']}"
        self._speculation(meta)
        return None if self.told is None else self.told > before

    def _speculation(self, meta: "dict[str, Any]") -> None:
        self.verify_steps = _count(meta, "spec_verify_ct", self.verify_steps)
        for key in ("spec_accept_token_num", "spec_accepted_drafts", "spec_num_correct_drafts"):
            self.accepted = _count(meta, key, self.accepted)
        for key in ("spec_draft_token_num", "spec_proposed_drafts", "spec_num_proposed_drafts"):
            self.drafted = _count(meta, key, self.drafted)

    def digest(self) -> Optional[str]:
        if self._texts:
            repeats = self._repeats()
            return _sha256(self._texts[-1] if repeats else "".join(self._texts))
        if self._ids:
            ids = self._ids[-1] if self._repeats() else [token for part in self._ids for token in part]
            return _sha256(",".join(map(str, ids)))
        return None

    def _repeats(self) -> bool:
        """Whether each event repeats all output so far (the default) or brings only what is new."""
        if self._ids and self.output_tokens is not None:
            if len(self._ids[-1]) == self.output_tokens:
                return True
            if sum(map(len, self._ids)) == self.output_tokens:
                return False
        texts = self._texts
        return all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))  # noqa: RUF007


def reader_for(endpoint: str) -> Reader:
    if endpoint == CHAT:
        return ChatReader()
    return CompletionsReader() if endpoint == COMPLETIONS else GenerateReader()


def _count(source: "dict[str, Any]", key: str, known: Optional[int]) -> Optional[int]:
    value = source.get(key)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else known


def _word(value: Any) -> str:
    """A reason to finish: one that is no plain word must not fill a record with the escapes of its letters."""
    return "".join(char if " " <= char <= "~" else "?" for char in _text(value)[:_WORD_LENGTH])


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not text")
    return str(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
