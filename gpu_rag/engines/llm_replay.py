"""Engine `replay`: the answers that an earlier run's work cache keeps, and no others.

Every request is looked up by the hash of its content. Prompts are cut to the context by their tokens, so a run replays in
full only if it counts as the recorded one did: name the same model, or its tokenizer.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gpu_rag.engines.generation import Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import BUNDLED_LLM, LlmConfig
from gpu_rag.engines.llm_files import model_folder
from gpu_rag.engines.llm_prompt import ChatTokenizer, EstimatedTokens, TokenCounter
from gpu_rag.engines.usage import recorded_completion
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json, content_hash

_COLUMN = "calls"
_FINAL = "stop"


class ReplayEngine(CompletionEngine):
    """Completions out of the work cache of an INDEX or RUN folder."""

    def __init__(self, config: LlmConfig) -> None:
        """Read every recorded call.

        Raises:
            ConfigError: If no folder is named, or it has no work cache.
        """
        self.max_context_tokens = config.max_context_tokens
        self._calls = recorded_calls(config.folder)
        self._counter = _counter(config)

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation: by `llm.tokenizer` or `llm.model`, else estimated."""
        return self._counter.count(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield each request's recorded completion; one that was not recorded is an error."""
        for request in requests:
            call = self._calls.get(request.key)
            if call is None:
                yield Completion(request.id, finish_reason="error", reason="not in the recorded run")
            else:
                yield recorded_completion(request.id, call)


def recorded_calls(folder: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the calls in a folder's work cache by request key.

    Of several calls under one key (a row that was tried again) one that is complete counts, else the last by file name and
    row.

    Raises:
        ConfigError: If no folder is named, or it has no work cache.
    """
    if folder is None:
        raise ConfigError("llm.engine=replay needs llm.folder, the INDEX or RUN folder of the recorded run")
    work = Path(folder) / "work"
    if not work.is_dir():
        raise ConfigError(f"llm.folder={folder!r} is no INDEX or RUN folder: it has no work cache")
    calls: dict[str, Mapping[str, Any]] = {}
    for path in sorted(work.glob("*/*/[!.]*.parquet")):
        file = pq.ParquetFile(path)
        if _COLUMN not in file.schema_arrow.names:
            continue
        for row in file.read([_COLUMN]).column(_COLUMN).to_pylist():
            for call in row:
                known = calls.get(call["request"])
                if known is None or known["finish_reason"] != _FINAL:
                    calls[call["request"]] = call
    return calls


def recording_identity(folder: str | None) -> str:
    """Return a hash over the recorded calls: which requests, and how each was answered."""
    calls = recorded_calls(folder)
    said = ([key, calls[key]["text"], calls[key]["finish_reason"]] for key in sorted(calls))
    return content_hash("recording", *map(canonical_json, said))


def _counter(config: LlmConfig) -> TokenCounter:
    if config.tokenizer is not None:
        return ChatTokenizer(model_folder(config.tokenizer))
    if config.model == BUNDLED_LLM or Path(config.model).is_dir():
        return ChatTokenizer(model_folder(config.model))
    return EstimatedTokens()


__all__ = ["ReplayEngine", "recorded_calls", "recording_identity"]
