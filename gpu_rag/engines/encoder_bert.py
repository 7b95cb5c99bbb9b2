"""BERT with mean pooling on the CPU: texts packed without padding into tiles of a fixed number of rows.

A tile holds whole texts, one token a row, up to its height. The products of a layer run on the whole tile, so their
shape never depends on the batch, and attention runs per text. One Python thread per core works on a tile of its own
with single-threaded torch operations: there is no barrier inside a tile, and a vector does not depend on the number of
threads. A row of a product does not depend on its place in the tile (tested), so neither does a text's vector.

Shape suffixes: M rows of a tile, D hidden size, F intermediate size, H heads, T texts of one length L.
Reference: `SentenceTransformer.encode(normalize_embeddings=True)`; the tests compare to 1e-4.
Source: Devlin et al. 2019, arXiv:1810.04805.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpu_rag.engines.encoder import Encoded, TokenVectors, bare_tokenizer
from gpu_rag.engines.encoder_tokens import Tokenised, check_texts, distinct, tokenise
from gpu_rag.errors import EngineError

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

TILE_ROWS = 512
_SMALL_TILES = (64, 128, 256)  # used for what is left over, where their products are bit-equal to the full tile's


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer, transposed to (in, out)."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    attention_norm: tuple[torch.Tensor, torch.Tensor]
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    output_norm: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Weights:
    """Everything the forward pass reads; `positions` (P, D) has the type embedding added in."""

    words: torch.Tensor
    positions: torch.Tensor
    embedding_norm: tuple[torch.Tensor, torch.Tensor]
    layers: tuple[_Layer, ...]
    num_heads: int
    eps: float


@dataclass(frozen=True)
class _Tile:
    """Texts that share one tile: their numbers, longest first, and the height of the tile."""

    texts: np.ndarray
    rows: int


class BertEncoder:
    """Encoder for BERT models with mean pooling, on the CPU, in float32.

    Attributes:
        identity: See `Encoder`.
        dim: Hidden size.
        max_tokens: Tokens of a text that are seen, special tokens included.
    """

    def __init__(self, model: SentenceTransformer, *, identity: str, query_instruction: str = "") -> None:
        """Read the weights of a model that `takes` accepts, and find the tile heights that are bit-equal here."""
        self.identity = identity
        self.max_tokens = int(model.max_seq_length)
        self._instruction = query_instruction
        self._tokenizer = bare_tokenizer(model)
        self._weights = _read_weights(model)
        self.dim = int(self._weights.words.shape[1])
        self._tile_rows = max(TILE_ROWS, -(-self.max_tokens // 64) * 64)
        self._heights = _equal_heights(self._weights, self._tile_rows)

    @staticmethod
    def takes(model: SentenceTransformer) -> bool:
        """Return whether the model is BERT, mean pooling and at most a normalisation, without a default prompt."""
        names = [type(module).__name__ for module in model]
        if names not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
            return False
        bert: Any = getattr(model[0], "auto_model", None)
        if type(bert).__name__ != "BertModel":
            return False
        config = bert.config
        return (
            getattr(model[1], "pooling_mode", None) == "mean"
            and config.hidden_act == "gelu"
            and getattr(config, "position_embedding_type", "absolute") == "absolute"
            and not config.is_decoder
            and config.hidden_size % config.num_attention_heads == 0
            and not (model.prompts or {}).get(model.default_prompt_name or "", "")
            and model.truncate_dim is None
            and bare_tokenizer(model).encode("").tokens == [model.tokenizer.cls_token, model.tokenizer.sep_token]
        )

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

        def pool(tile: _Tile, hidden_MD: np.ndarray) -> None:
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

        def keep(tile: _Tile, hidden_MD: np.ndarray) -> None:
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

    def _run(self, tokens: Tokenised, take: Callable[[_Tile, np.ndarray], None]) -> None:
        """Call `take` with every tile and its last-layer rows; tiles run on as many threads as torch has.

        `take` is called from several threads, for disjoint texts.
        """
        import torch

        tiles = _pack(tokens.lengths, self._tile_rows, self._heights)
        num_threads = min(torch.get_num_threads(), max(1, len(tiles)))
        local = threading.local()

        def work(tile: _Tile) -> None:
            if not hasattr(local, "forward"):
                local.forward = _Forward(self._weights, self._tile_rows)
            with torch.inference_mode():
                take(tile, local.forward(tile, tokens))

        _map_single_threaded(work, tiles, num_threads)


def _map_single_threaded(work: Callable[[_Tile], None], tiles: list[_Tile], num_threads: int) -> None:
    """Run `work` over `tiles` on threads whose torch operations are single-threaded, and wait for all.

    torch keeps the thread count per thread and, for threads that have not asked yet, in one global that
    `set_num_threads` also writes; the caller's own value is written back.
    """
    import torch

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, tiles):
                pass
    finally:
        torch.set_num_threads(before)


class _Forward:
    """The forward pass of one thread, with its own work space."""

    def __init__(self, weights: _Weights, tile_rows: int) -> None:
        import torch

        dim, wide = weights.layers[0].up.shape if weights.layers else (weights.words.shape[1], 0)
        self._weights = weights
        self._x = torch.zeros(tile_rows, dim)
        self._qkv = torch.zeros(tile_rows, 3 * dim)
        self._context = torch.zeros(tile_rows, dim)
        self._wide = torch.zeros(tile_rows, wide)

    def __call__(self, tile: _Tile, tokens: Tokenised) -> np.ndarray:
        """Return the last layer's float32 (M, D) rows of a tile, texts one after another, then unused rows."""
        import torch

        weights = self._weights
        lengths = tokens.lengths[tile.texts]
        used = int(lengths.sum())
        ids = np.concatenate([tokens.ids[tokens.indptr[text] : tokens.indptr[text + 1]] for text in tile.texts])
        positions = np.arange(used) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        x = self._x[: tile.rows].zero_()
        x[:used] = weights.words.index_select(0, torch.from_numpy(ids.astype(np.int64)))
        x[:used] += weights.positions.index_select(0, torch.from_numpy(positions))
        x.copy_(_layer_norm(x, weights.embedding_norm, weights.eps))
        return self.layers(x, _groups(lengths)).numpy()

    def layers(self, x: torch.Tensor, groups: list[tuple[int, int]]) -> torch.Tensor:
        """Return x (M, D) after all layers, computed in place; `groups` are (L, T) in row order."""
        import torch

        weights = self._weights
        rows = x.shape[0]
        qkv, wide = self._qkv[:rows], self._wide[:rows]
        context = self._context[:rows].zero_()
        for layer in weights.layers:
            torch.addmm(layer.qkv_bias, x, layer.qkv, out=qkv)
            _attend(qkv, groups, weights.num_heads, context)
            x.add_(layer.out_bias).addmm_(context, layer.out)
            x.copy_(_layer_norm(x, layer.attention_norm, weights.eps))
            torch.addmm(layer.up_bias, x, layer.up, out=wide)
            torch.ops.aten.gelu_(wide)
            x.add_(layer.down_bias).addmm_(wide, layer.down)
            x.copy_(_layer_norm(x, layer.output_norm, weights.eps))
        return x


def _attend(qkv: torch.Tensor, groups: list[tuple[int, int]], num_heads: int, context: torch.Tensor) -> None:
    """Write the attention of every text into `context` (M, D); texts of one length go together.

    The kernel works text by text and head by head, so what a text gets does not depend on how many go together.
    """
    import torch.nn.functional as functional

    first = 0
    head_dim = context.shape[1] // num_heads
    for length, count in groups:
        last = first + length * count
        q, k, v = qkv[first:last].view(count, length, 3, num_heads, head_dim).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        context[first:last].view(count, length, num_heads, head_dim).copy_(mixed.transpose(1, 2))
        first = last


def _layer_norm(x: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor], eps: float) -> torch.Tensor:
    import torch

    return torch.layer_norm(x, (x.shape[1],), norm[0], norm[1], eps)


def _groups(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Return (length, how many) for lengths sorted in falling order."""
    values, counts = np.unique(lengths, return_counts=True)
    return [(int(value), int(count)) for value, count in zip(values[::-1], counts[::-1], strict=True)]


def _pack(lengths: np.ndarray, tile_rows: int, heights: Sequence[int]) -> list[_Tile]:
    """Return tiles of whole texts: the longest text left that fits, again and again (best fit, falling).

    Args:
        lengths: int64 (n,), each at most `tile_rows`.
        tile_rows: Rows of a full tile.
        heights: Allowed heights in rising order; the lowest that holds the texts is taken.
    """
    order = np.argsort(lengths, kind="stable")
    waiting: dict[int, list[int]] = {}
    for text in order.tolist():
        waiting.setdefault(int(lengths[text]), []).append(text)
    sizes = sorted(waiting)
    tiles = []
    while sizes:
        room, texts = tile_rows, []
        while room and (place := bisect_right(sizes, room)):
            size = sizes[place - 1]
            line = waiting[size]
            take = min(len(line), room // size)
            texts += line[-take:]
            del line[-take:]
            room -= take * size
            if not line:
                del sizes[place - 1]
        rows = next(height for height in heights if height >= tile_rows - room)
        tiles.append(_Tile(np.array(texts, dtype=np.int64), rows))
    return tiles


def _equal_heights(weights: _Weights, tile_rows: int) -> tuple[int, ...]:
    """Return the tile heights whose rows are bit-equal to the full tile's on this machine, the full one last.

    A product at another height may add in another order, and which heights do so depends on the library and the CPU.
    """
    import torch

    if not weights.layers:
        return (tile_rows,)
    probe = replace(weights, layers=weights.layers[:1])
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(tile_rows, weights.words.shape[1], generator=generator)
    equal: list[int] = []

    def compare(_: _Tile) -> None:
        with torch.inference_mode():
            forward = _Forward(probe, tile_rows)
            full = forward.layers(start.clone(), [(16, tile_rows // 16)])
            for rows in _SMALL_TILES:
                small = forward.layers(start[:rows].clone(), [(16, rows // 16)])
                if rows < tile_rows and torch.equal(small, full[:rows]):
                    equal.append(rows)

    _map_single_threaded(compare, [_Tile(np.zeros(0, np.int64), tile_rows)], 1)
    return (*equal, tile_rows)


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


def _read_weights(model: SentenceTransformer) -> _Weights:
    """Return the weights of a BERT model, q, k and v side by side, matrices transposed to (in, out)."""
    import torch

    bert: Any = model[0].auto_model
    state = {name: tensor.detach().float() for name, tensor in bert.state_dict().items()}

    def norm(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return state[f"{name}.weight"], state[f"{name}.bias"]

    def layer(number: int) -> _Layer:
        base = f"encoder.layer.{number}"
        three = [f"{base}.attention.self.{part}" for part in ("query", "key", "value")]
        return _Layer(
            qkv=torch.cat([state[f"{name}.weight"] for name in three]).t().contiguous(),
            qkv_bias=torch.cat([state[f"{name}.bias"] for name in three]),
            out=state[f"{base}.attention.output.dense.weight"].t().contiguous(),
            out_bias=state[f"{base}.attention.output.dense.bias"],
            attention_norm=norm(f"{base}.attention.output.LayerNorm"),
            up=state[f"{base}.intermediate.dense.weight"].t().contiguous(),
            up_bias=state[f"{base}.intermediate.dense.bias"],
            down=state[f"{base}.output.dense.weight"].t().contiguous(),
            down_bias=state[f"{base}.output.dense.bias"],
            output_norm=norm(f"{base}.output.LayerNorm"),
        )

    token_type = state["embeddings.token_type_embeddings.weight"][0]
    return _Weights(
        words=state["embeddings.word_embeddings.weight"],
        positions=state["embeddings.position_embeddings.weight"] + token_type,
        embedding_norm=norm("embeddings.LayerNorm"),
        layers=tuple(layer(number) for number in range(bert.config.num_hidden_layers)),
        num_heads=int(bert.config.num_attention_heads),
        eps=float(bert.config.layer_norm_eps),
    )
