"""Any sentence-transformers model, on CPU or CUDA, through the library's own `encode`.

Texts go in buckets of like length with a fixed number of rows each, padded to the longest of a batch under the attention
mask, so a vector depends on its neighbours in the last bits only (1e-6, tested on the CPU; on CUDA this was not run here).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpu_rag.engines import heartbeat
from gpu_rag.engines.encoder import EXTRA_HINT, Encoded, EncoderConfig, TokenVectors, check_limit
from gpu_rag.engines.encoder_files import model_folder
from gpu_rag.engines.encoder_tokens import Tokenised, check_texts, distinct, tokenise
from gpu_rag.errors import ConfigError, EngineError, MissingDependencyError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_SHORTEST_BUCKET = 16  # tokens; each further bucket is twice as long
_BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}
_MAX_ROWS = {"cpu": 32, "cuda": 256}


def load_model(config: EncoderConfig, device: str) -> SentenceTransformer:
    """Return the sentence-transformers model that `config` names, in evaluation mode, float32, on `device`, cut at its limit.

    Raises:
        MissingDependencyError: A library or the bundled model is not installed.
        ConfigError: The model does not load, or cannot take `max_tokens`.
    """
    folder = model_folder(config.model)
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingDependencyError(f"the encoder needs sentence-transformers: {EXTRA_HINT} ({error})") from error
    try:
        with _quiet():
            model = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(f"encoder.model={config.model!r} does not load: {error}") from error
    positions = getattr(getattr(getattr(model[0], "auto_model", None), "config", None), "max_position_embeddings", None)
    model.max_seq_length = check_limit(config.max_tokens, model.max_seq_length or positions, positions)
    model.eval()
    return model


class SentenceTransformerEncoder:
    """Encoder over `SentenceTransformer.encode` itself.

    Attributes:
        identity: See `Encoder`.
        dim: Length of a vector.
        max_tokens: Tokens of a text that are seen, special tokens included.
    """

    def __init__(self, model: SentenceTransformer, *, identity: str, query_instruction: str = "") -> None:
        """Wrap a model of `load_model`."""
        self.identity = identity
        self.dim = _embedding_dim(model)
        self.max_tokens = int(model.max_seq_length or 0)
        self._model = model
        self._tokenizer = _bare_tokenizer(model)
        self._prompt = (model.prompts or {}).get(model.default_prompt_name or "", "") or ""
        self._instruction = query_instruction or self._prompt

    def encode(self, texts: Sequence[str], *, kind: Literal["passage", "query"] = "passage") -> Encoded:
        """Return one vector per text; a model's own default prompt stands before it, as its `encode` does.

        Raises:
            InputError: An item is no string or holds a lone surrogate.
            EngineError: A vector is not finite.
        """
        items, inverse = distinct(check_texts(texts))
        prompt = self._instruction if kind == "query" else self._prompt
        tokens = tokenise(self._tokenizer, [prompt + text for text in items], limit=self.max_tokens)
        vectors = np.empty((len(items), self.dim), dtype=np.float32)
        for batch, rows in self._batches(tokens):
            chosen = [items[place] for place in batch]
            vectors[batch] = self._model.encode(
                chosen, prompt=prompt, batch_size=rows, normalize_embeddings=True, show_progress_bar=False
            )
        if not np.isfinite(vectors).all():
            raise EngineError("the encoder gave a vector that is not finite")
        return Encoded(vectors[inverse], tokens.num_tokens[inverse], tokens.cut_tokens[inverse])

    def encode_tokens(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the vectors and offsets of each text's tokens, up to the limit; equal texts share one result.

        Raises:
            InputError: An item is no string or holds a lone surrogate.
            EngineError: A vector is not finite, or the model returns another number of tokens than its tokenizer.
        """
        items, inverse = distinct(check_texts(texts))
        tokens = tokenise(self._tokenizer, items, limit=self.max_tokens, spans=True)
        assert tokens.spans is not None
        special = np.array(sorted(self._model.tokenizer.all_special_ids), dtype=np.int32)
        found: list[TokenVectors | None] = [None] * len(items)
        for batch, rows in self._batches(tokens):
            chosen = [items[place] for place in batch]
            outputs = self._model.encode(
                chosen, prompt="", batch_size=rows, output_value="token_embeddings", show_progress_bar=False
            )
            for place, output in zip(batch, outputs, strict=True):
                first, last = tokens.indptr[place], tokens.indptr[place + 1]
                hidden = np.asarray(output.float().cpu().numpy())
                if len(hidden) != last - first:
                    raise EngineError(f"the model returned {len(hidden)} token vectors for {last - first} tokens")
                content = ~np.isin(tokens.ids[first:last], special)
                found[place] = _token_vectors(hidden[content], tokens.spans[first:last][content])
        return [vectors for vectors in (found[place] for place in inverse) if vectors is not None]

    def _batches(self, tokens: Tokenised) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (texts of one bucket of lengths, rows of a batch in that bucket), longest first."""
        device = "cuda" if self._model.device.type == "cuda" else "cpu"
        lengths = tokens.lengths
        longest = int(lengths.max(initial=0))
        edges = [0, _SHORTEST_BUCKET]
        while edges[-1] < longest:
            edges.append(2 * edges[-1])
        for low, high in reversed(list(pairwise(edges))):
            heartbeat.beat()
            members = np.flatnonzero((lengths > low) & (lengths <= high))
            if len(members):
                yield members, max(1, min(_MAX_ROWS[device], _BATCH_TOKENS[device] // high))


def _token_vectors(hidden: np.ndarray, spans: np.ndarray) -> TokenVectors:
    """Return unit vectors with their offsets.

    Raises:
        EngineError: A value is not finite.
    """
    norms = np.sqrt((hidden * hidden).sum(axis=1, keepdims=True))
    if not np.isfinite(norms).all():
        raise EngineError("the encoder gave a token vector that is not finite")
    vectors = (hidden / np.maximum(norms, np.float32(1e-12))).astype(np.float32)
    return TokenVectors(vectors, spans[:, 0].copy(), spans[:, 1].copy())


def _bare_tokenizer(model: SentenceTransformer) -> Any:
    """Return a copy of the model's fast tokenizer that neither cuts nor pads.

    Raises:
        ConfigError: The model has no fast tokenizer.
    """
    from tokenizers import Tokenizer

    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError("the encoder's model has no fast tokenizer (tokenizer.json), so its tokens cannot be counted")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _embedding_dim(model: SentenceTransformer) -> int:
    for name in ("get_embedding_dimension", "get_sentence_embedding_dimension"):
        dim = getattr(model, name, lambda: None)()
        if dim is not None:
            return int(dim)
    raise ConfigError("the encoder's model does not say how long its vectors are")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the weight-loading progress bar; it is put back as it was."""
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
