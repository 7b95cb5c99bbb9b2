"""Any sentence-transformers model, on CPU or CUDA, in batches whose shape depends on the texts' own length only.

A batch holds texts of one token count, filled up to a fixed number of rows by repeating its first text, so nothing is
padded and no result depends on the neighbours as far as the libraries allow: on CUDA this was not run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpu_rag.engines.encoder import Encoded, TokenVectors, bare_tokenizer, embedding_dim
from gpu_rag.engines.encoder_tokens import Tokenised, check_texts, distinct, tokenise
from gpu_rag.errors import EngineError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
_MAX_ROWS = {"cpu": 32, "cuda": 256}


class SentenceTransformerEncoder:
    """Encoder over `SentenceTransformer.encode` itself.

    Attributes:
        identity: See `Encoder`.
        dim: Length of a vector.
        max_tokens: Tokens of a text that are seen, special tokens included.
    """

    def __init__(self, model: SentenceTransformer, *, identity: str, query_instruction: str = "") -> None:
        """Wrap a loaded model."""
        self.identity = identity
        self.dim = embedding_dim(model)
        self.max_tokens = int(model.max_seq_length or model[0].auto_model.config.max_position_embeddings)
        self._model = model
        self._tokenizer = bare_tokenizer(model)
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
            filled = [items[place] for place in batch] + [items[batch[0]]] * (rows - len(batch))
            vectors[batch] = self._model.encode(
                filled, prompt=prompt, batch_size=rows, normalize_embeddings=True, show_progress_bar=False
            )[: len(batch)]
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
            filled = [items[place] for place in batch] + [items[batch[0]]] * (rows - len(batch))
            outputs = self._model.encode(
                filled, prompt="", batch_size=rows, output_value="token_embeddings", show_progress_bar=False
            )
            for place, output in zip(batch, outputs, strict=False):
                first, last = tokens.indptr[place], tokens.indptr[place + 1]
                hidden = np.asarray(output.float().cpu().numpy())
                if len(hidden) != last - first:
                    raise EngineError(f"the model returned {len(hidden)} token vectors for {last - first} tokens")
                content = ~np.isin(tokens.ids[first:last], special)
                found[place] = _token_vectors(hidden[content], tokens.spans[first:last][content])
        return [vectors for vectors in (found[place] for place in inverse) if vectors is not None]

    def _batches(self, tokens: Tokenised) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (texts of one length, fixed number of rows for that length), longest first."""
        device = "cuda" if self._model.device.type == "cuda" else "cpu"
        lengths = tokens.lengths
        for length in np.unique(lengths)[::-1]:
            rows = max(1, min(_MAX_ROWS[device], _BATCH_TOKENS[device] // max(1, int(length))))
            same = np.flatnonzero(lengths == length)
            for first in range(0, len(same), rows):
                yield same[first : first + rows], rows


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
