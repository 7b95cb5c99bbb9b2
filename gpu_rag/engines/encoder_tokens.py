"""Tokens of texts, counted in full and cut at the encoder's limit.

Input:  texts, a fast tokenizer (the `tokenizers` library) that neither cuts nor pads.
Output: `Tokenised`: flat ids with offsets, how many tokens each text has and how many were cut.
Device: CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from gpu_rag.errors import InputError

_CHUNK = 1024  # texts per call: bounds the memory of the encodings, each of which holds strings and offsets


@dataclass(frozen=True)
class Tokenised:
    """Tokens of n texts, cut at the limit.

    Attributes:
        ids: int32 (sum of lengths,), the texts' token ids one after another, special tokens included.
        indptr: int64 (n + 1,), where each text's ids start in `ids`.
        num_tokens: int32 (n,), before the cut.
        spans: int32 (sum of lengths, 2), code-point start and end of each token; None where not asked for.
    """

    ids: np.ndarray
    indptr: np.ndarray
    num_tokens: np.ndarray
    spans: np.ndarray | None

    @property
    def lengths(self) -> np.ndarray:
        """Tokens seen of each text, int64 (n,)."""
        lengths: np.ndarray = np.diff(self.indptr)
        return lengths

    @property
    def cut_tokens(self) -> np.ndarray:
        """Tokens not seen of each text, int32 (n,)."""
        cut: np.ndarray = (self.num_tokens - self.lengths).astype(np.int32)
        return cut


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return `texts` as a list.

    Raises:
        InputError: `texts` is one string, or an item is no string, or holds a lone surrogate.
    """
    if isinstance(texts, str):
        raise InputError("texts must be a sequence of strings, not one string")
    items = list(texts)
    for index, text in enumerate(items):
        if not isinstance(text, str):
            raise InputError(f"texts[{index}] is {type(text).__name__}, not a string")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                code = ord(text[error.start])
                raise InputError(f"texts[{index}] has a lone surrogate U+{code:04X} at {error.start}") from error
    return items


def tokenise(tokenizer: Any, texts: list[str], *, limit: int, spans: bool = False) -> Tokenised:
    """Return the tokens of `texts`; one text longer than `limit` keeps its first ones and its last special token."""
    flat: list[np.ndarray] = []
    flat_spans: list[np.ndarray] = []
    counts = np.zeros(len(texts), dtype=np.int32)
    encode_batch = tokenizer.encode_batch if spans else getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    for first in range(0, len(texts), _CHUNK):
        encodings = encode_batch(texts[first : first + _CHUNK])
        lengths = [len(encoding) for encoding in encodings]
        counts[first : first + len(lengths)] = lengths
        total = sum(lengths)
        flat.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total))
        if spans:
            ends = chain.from_iterable(chain.from_iterable(encoding.offsets) for encoding in encodings)
            flat_spans.append(np.fromiter(ends, np.int32, 2 * total).reshape(total, 2))
    ids = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    all_spans = (np.concatenate(flat_spans) if flat_spans else np.zeros((0, 2), np.int32)) if spans else None
    return _cut(ids, all_spans, counts, limit)


def _cut(ids: np.ndarray, spans: np.ndarray | None, counts: np.ndarray, limit: int) -> Tokenised:
    """Drop the tokens between the first `limit` - 1 and the last of every text that has more than `limit`."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if len(counts) and int(counts.max()) > limit:
        keep = np.ones(len(ids), dtype=bool)
        for row in np.flatnonzero(counts > limit):
            keep[starts[row] + limit - 1 : starts[row + 1] - 1] = False
        ids = ids[keep]
        spans = spans[keep] if spans is not None else None
    indptr = np.concatenate([[0], np.cumsum(np.minimum(counts, limit), dtype=np.int64)])
    return Tokenised(ids=ids, indptr=indptr, num_tokens=counts, spans=spans)


def distinct(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts in order of first appearance, and int64 (n,) the place of each text among them."""
    places: dict[str, int] = {}
    inverse = np.fromiter((places.setdefault(text, len(places)) for text in texts), np.int64, len(texts))
    return list(places), inverse
