"""Forward pass of BERT over one packed tile, on one thread.

The products of a layer run on the whole tile, so their shape never depends on the batch; attention runs per text (long
ones) or per group of texts of one length (short ones). What a text gets depends neither on its place in the tile nor on
the texts beside it (tested); tile heights for which that fails on this CPU are found by `equal_heights` and not used.

Shape suffixes: M rows of a tile, D hidden size, F intermediate size, H heads, T texts of one length L.
Source: Devlin et al. 2019, arXiv:1810.04805.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_rag.engines.encoder_tiles import Tile, length_groups
from gpu_rag.engines.encoder_tokens import Tokenised
from gpu_rag.engines.encoder_weights import BertWeights

if TYPE_CHECKING:
    import torch

Groups = Sequence[tuple[int, int]]

# From this length on the scores of one text fill the cache and its heads a batched product, so texts go one by one,
# straight from the rows of the QKV product; shorter ones are copied together first (measured: docs/log.md).
_LONG_TEXT = 48


class Forward:
    """The forward pass of one thread, with its own work space."""

    def __init__(self, weights: BertWeights, tile_rows: int) -> None:
        """Allocate the work space for tiles of up to `tile_rows` rows."""
        import torch

        dim, wide = weights.words.shape[1], weights.layers[0].up.shape[1]
        self._weights = weights
        self._x = torch.zeros(tile_rows, dim)
        self._qkv = torch.zeros(tile_rows, 3 * dim)
        self._context = torch.zeros(tile_rows, dim)
        self._wide = torch.zeros(tile_rows, wide)
        self._scores = torch.zeros(weights.num_heads * tile_rows * tile_rows)

    def __call__(self, tile: Tile, tokens: Tokenised) -> np.ndarray:
        """Return the last layer's float32 (M, D) rows of a tile, texts one after another, then unused rows."""
        import torch

        weights = self._weights
        lengths = tokens.lengths[tile.texts]
        used = int(lengths.sum())
        ids = np.concatenate([tokens.ids[tokens.indptr[text] : tokens.indptr[text + 1]] for text in tile.texts])
        positions = np.arange(used) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        x = self._x[: tile.rows]
        x[used:].zero_()
        torch.index_select(weights.words, 0, torch.from_numpy(ids), out=x[:used])
        x[:used] += weights.positions.index_select(0, torch.from_numpy(positions))
        x = _layer_norm(x, weights.embedding_norm, weights.eps)
        rows: np.ndarray = self.layers(x, length_groups(lengths)).numpy()
        return rows

    def layers(self, x: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Return x (M, D) after all layers; `groups` are (L, T) in row order; x itself is overwritten."""
        import torch

        weights = self._weights
        rows = x.shape[0]
        qkv, wide = self._qkv[:rows], self._wide[:rows]
        context = self._context[:rows].zero_()
        for layer in weights.layers:
            torch.addmm(layer.qkv_bias, x, layer.qkv, out=qkv)
            self._attend(qkv, groups, context)
            x.add_(layer.out_bias).addmm_(context, layer.out)
            x = _layer_norm(x, layer.attention_norm, weights.eps)
            torch.addmm(layer.up_bias, x, layer.up, out=wide)
            torch.ops.aten.gelu_(wide)
            x.add_(layer.down_bias).addmm_(wide, layer.down)
            x = _layer_norm(x, layer.output_norm, weights.eps)
        return x

    def _attend(self, qkv: torch.Tensor, groups: Groups, context: torch.Tensor) -> None:
        """Write the attention of every text into `context` (M, D)."""
        heads = self._weights.num_heads
        width = context.shape[1] // heads
        first = 0
        for length, count in groups:
            last = first + length * count
            if length >= _LONG_TEXT:
                for start in range(first, last, length):
                    q, k, v = qkv[start : start + length].view(length, 3, heads, width).permute(1, 2, 0, 3)
                    self._mix(q, k, v, context[start : start + length].view(length, heads, width).transpose(0, 1))
            else:
                parts = qkv[first:last].view(count, length, 3, heads, width).permute(2, 0, 3, 1, 4).contiguous()
                q, k, v = parts.view(3, count * heads, length, width)
                self._mix(q, k, v, context[first:last].view(count, length, heads, width).transpose(1, 2))
            first = last

    def _mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
        """Write softmax(q k^T) v, scaled already, into `out`, whose leading axes may be T and H apart.

        Softmax is written out because torch.softmax takes twice as long as its parts, and the division by the sum is
        cheaper after the second product, where it also does the copy into `out`.
        """
        import torch

        batch, length = q.shape[:2]
        scores = self._scores[: batch * length * length].view(batch, length, length)
        torch.bmm(q, k.transpose(1, 2), out=scores)
        scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        sums = scores.sum(-1, keepdim=True)
        mixed = torch.bmm(scores, v)
        torch.div(mixed.view(out.shape), sums.view(*out.shape[:-1], 1), out=out)


def equal_heights(weights: BertWeights, tile_rows: int, smaller: Sequence[int]) -> tuple[int, ...]:
    """Return those of `smaller` whose rows are bit-equal to the full tile's on this machine, then `tile_rows`.

    A product at another height may add in another order, and which heights do so depends on the library and the CPU.
    Call it with torch on one thread, as tiles run.
    """
    import torch

    probe = replace(weights, layers=weights.layers[:1])
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(tile_rows, weights.words.shape[1], generator=generator)
    with torch.inference_mode():
        forward = Forward(probe, tile_rows)
        full = forward.layers(start.clone(), [(16, tile_rows // 16)])
        equal = [
            rows
            for rows in smaller
            if rows < tile_rows and torch.equal(forward.layers(start[:rows].clone(), [(16, rows // 16)]), full[:rows])
        ]
    return (*equal, tile_rows)


def _layer_norm(x: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor], eps: float) -> torch.Tensor:
    import torch

    return torch.layer_norm(x, (x.shape[1],), norm[0], norm[1], eps)
