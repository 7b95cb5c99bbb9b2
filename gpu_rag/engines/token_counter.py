"""Token counts by the encoder's own tokenizer, without its weights: cheap to open in any worker.

A folder's `tokenizer.json` is read by the `tokenizers` library where the model is one that `encoder_bert_files` knows, else by
transformers, which is what the encoder itself would count with.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpu_rag.engines.encoder_files import ModelChoice, file_hash, model_folder
from gpu_rag.engines.require import require
from gpu_rag.errors import ConfigError

_TEXTS = 1024  # a call: bounds the memory of the encodings
_FILES = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "spiece", "sentencepiece")


class TokenCounter(Protocol):
    """What the chunk stage needs of a tokenizer."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, special tokens included."""
        ...

    def starts(self, text: str) -> np.ndarray:
        """Return the code points at which tokens start, ascending, without special tokens."""
        ...


class EncoderTokenCounter:
    """The tokenizer of an encoder."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a fast tokenizer that neither cuts nor pads."""
        self._tokenizer = tokenizer

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, special tokens included."""
        counts: list[int] = []
        for first in range(0, len(texts), _TEXTS):
            counts += map(len, self._tokenizer.encode_batch_fast(texts[first : first + _TEXTS]))
        return counts

    def starts(self, text: str) -> np.ndarray:
        """Return the code points at which tokens start, ascending, without special tokens."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return np.unique(np.array([start for start, _ in offsets], dtype=np.int64))


def open_token_counter(config: ModelChoice) -> TokenCounter:
    """Return the tokenizer of the encoder that the config names.

    Raises:
        MissingDependencyError: If a library, or the bundled model, is not installed.
        ConfigError: If the model has no fast tokenizer.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    require("tokenizers", extra="cpu")
    from gpu_rag.engines.encoder_bert_files import plain_tokenizer

    folder = model_folder(config.model)
    tokenizer = plain_tokenizer(folder)
    if tokenizer is None:
        tokenizer = _from_transformers(folder)
    return EncoderTokenCounter(tokenizer)


def tokenizer_identity(config: ModelChoice) -> str:
    """Return a hash over the files of the model that decide its tokens; other weights leave it as it is."""
    folder = model_folder(config.model)
    return file_hash(folder, lambda path: path.name.startswith(_FILES))


def _from_transformers(folder: Path) -> Any:
    transformers = require("transformers", extra="cpu")
    try:
        backend = getattr(transformers.AutoTokenizer.from_pretrained(str(folder), use_fast=True), "backend_tokenizer", None)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"encoder.model: the tokenizer in {folder} does not load: {error}") from error
    if backend is None:
        raise ConfigError("the encoder's model has no fast tokenizer (tokenizer.json), so its tokens cannot be counted")
    backend.no_truncation()
    backend.no_padding()
    return backend


__all__ = ["EncoderTokenCounter", "TokenCounter", "open_token_counter", "tokenizer_identity"]
