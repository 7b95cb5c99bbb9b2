"""BERT with mean pooling on the CPU: texts packed without padding into tiles of a fixed number of rows.

One Python thread per core works on a tile of its own with single-threaded torch operations: there is no barrier inside
a tile, and a vector does not depend on the number of threads.

Reference: `SentenceTransformer.encode(normalize_embeddings=True)`; the tests compare to 1e-4.
Source: Devlin et al. 2019, arXiv:1810.04805.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import numpy as np

from gpu_rag.engines import heartbeat
from gpu_rag.engines.encoder import Encoded, TokenVectors
from gpu_rag.engines.encoder_bert_files import BertFiles
from gpu_rag.engines.encoder_forward import Forward, equal_heights
from gpu_rag.engines.encoder_tiles import Tile, pack_tiles
from gpu_rag.engines.encoder_tokens import Tokenised, check_texts, distinct, tokenise
from gpu_rag.errors import EngineError

TILE_ROWS = 512
_SMALL_TILES = (64, 128, 256)  # used for what is left over, where their products are bit-equal to the full tile's

Item = TypeVar("Item")
Result = TypeVar("Result")


class BertEncoder:
    """Encoder for BERT models with mean pooling, on the CPU, in float32.

    Attributes:
        identity: See `Encoder`.
        dim: Hidden size.
        max_tokens: Tokens of a text that are seen, special tokens included.
    """

    def __init__(self, files: BertFiles, *, identity: str, max_tokens: int, query_instruction: str = "") -> None:
        """Keep the weights, and find the tile heights that are bit-equal on this machine."""
        self.identity = identity
        self.max_tokens = max_tokens
        self.dim = int(files.weights.words.shape[1])
        self._instruction = query_instruction
        self._tokenizer = files.tokenizer
        self._weights = files.weights
        self._tile_rows = max(TILE_ROWS, -(-max_tokens // 64) * 64)
        probe = _map_single_threaded(lambda rows: equal_heights(self._weights, rows, _SMALL_TILES), [self._tile_rows], 1)
        self._heights = probe[0]

    def encode(self, texts: Sequence[str], *, kind: Literal["passage", "query"] = "passage") -> Encoded:
        """Return one vector per text, bit-equal alone, in any batch and in any order.

        Raises:
            InputError: An item is no string or holds a lone surrogate.
            EngineError: A vector is not finite.
        """
        items = check_texts(texts)
        if kind == "query" and self._instruction:
            items = [self._instruction + text for text in items]
        items, inverse = distinct(items)
        tokens = tokenise(self._tokenizer, items, limit=self.max_tokens)
        vectors = np.empty((len(items), self.dim), dtype=np.float32)

        def pool(tile: Tile, hidden_MD: np.ndarray) -> None:
            lengths = tokens.lengths[tile.texts]
            starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            end = int(lengths.sum())
            sums = np.add.reduceat(hidden_MD[:end], starts, axis=0)
            vectors[tile.texts] = _normalise(sums / lengths[:, None].astype(np.float32))

        self._run(tokens, pool)
        return Encoded(vectors[inverse], tokens.num_tokens[inverse], tokens.cut_tokens[inverse])

    def encode_tokens(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the vectors and offsets of each text's tokens, up to the limit; equal texts share one result.

        Raises:
            InputError: An item is no string or holds a lone surrogate.
            EngineError: A vector is not finite.
        """
        items, inverse = distinct(check_texts(texts))
        tokens = tokenise(self._tokenizer, items, limit=self.max_tokens, spans=True)
        assert tokens.spans is not None
        vectors = np.empty((len(tokens.ids), self.dim), dtype=np.float32)

        def keep(tile: Tile, hidden_MD: np.ndarray) -> None:
            row = 0
            for text in tile.texts:
                first, last = int(tokens.indptr[text]), int(tokens.indptr[text + 1])
                vectors[first:last] = _normalise(hidden_MD[row : row + last - first])
                row += last - first

        self._run(tokens, keep)
        found = []
        for first, last in zip(tokens.indptr[:-1] + 1, tokens.indptr[1:] - 1, strict=True):
            spans = tokens.spans[first:last]
            found.append(TokenVectors(vectors[first:last], spans[:, 0].copy(), spans[:, 1].copy()))
        return [found[place] for place in inverse]

    def _run(self, tokens: Tokenised, take: Callable[[Tile, np.ndarray], None]) -> None:
        """Call `take` with every tile and its last-layer rows; tiles run on as many threads as torch has.

        `take` is called from several threads, for disjoint texts.
        """
        import torch

        tiles = pack_tiles(tokens.lengths, self._heights)
        num_threads = min(torch.get_num_threads(), max(1, len(tiles)))
        local = threading.local()

        def work(tile: Tile) -> None:
            if not hasattr(local, "forward"):
                local.forward = Forward(self._weights, self._tile_rows)
            with torch.inference_mode():
                take(tile, local.forward(tile, tokens))
            heartbeat.beat()

        _map_single_threaded(work, tiles, num_threads)


def _map_single_threaded(work: Callable[[Item], Result], items: Iterable[Item], num_threads: int) -> list[Result]:
    """Return `work` of every item, run on threads whose torch operations are single-threaded.

    torch keeps the thread count per thread and, for threads that have not asked yet, in one global that
    `set_num_threads` also writes; the caller's own value is written back.
    """
    import torch

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(before)


def _normalise(vectors: np.ndarray) -> np.ndarray:
    """Return rows of unit length, each computed by itself.

    Raises:
        EngineError: A value is not finite.
    """
    norms = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    if not np.isfinite(norms).all():
        raise EngineError("the encoder gave a vector that is not finite: the model's weights or the CPU build are bad")
    unit: np.ndarray = vectors / np.maximum(norms, np.float32(1e-12))
    return unit
