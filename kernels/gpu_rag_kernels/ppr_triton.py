"""Personalized PageRank of a block of queries on a CUDA device: Chebyshev iteration, one fused kernel a sweep.

With r the reset divided by its sum and P the row-stochastic walk, z = d P^T z + (1 - d) r is solved from z_0 = 0 and
z_1 = (1 - d) r by `z_{k+1} = w_{k+1} (d P^T z_k + (1 - d) r - z_{k-1}) + z_{k-1}`; the last sweep is plain (w = 1), so that its
change s bounds the error, ||z - z*||_1 <= d / (1 - d) ||s||_1. Scores are z divided by what the dangling nodes leave of the
mass, negative ones set to 0. A sweep writes z_{k+1} over z_{k-1}, so two (N, W) arrays are all besides the resets.

A program sums the edges of one row for `_QUERIES` queries that lie side by side. Rows of more than `SEGMENT` edges are summed
piece by piece and put together in order by a second kernel, so there are no atomics: a query's bits depend on its column alone.
Sums over nodes have a kernel of their own for the same reason: torch's add up in an order that goes by the shape of the block.

Imports triton; import it at use. On a CPU it runs in triton's interpreter (TRITON_INTERPRET=1 before triton is imported).

Shape suffixes: N nodes, E edges, B queries, W columns of a block (B rounded up), R rows of the resets with a seed, G gates.
Reference: `ppr_reference`. Source: Golub and Varga 1961 (Chebyshev semi-iteration).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from gpu_rag_kernels.ppr_reference import BAD_SEED, NO_SEED

__all__ = ["SEGMENT", "Gates", "Rows", "chebyshev_omegas", "column_sums", "num_chebyshev_sweeps", "rows_of", "solve_block"]

SEGMENT = 512  # edges of a row that one program sums
_EDGES = 8  # edges whose rows are on their way at once
_QUERIES = 64  # columns of a program: 256 bytes of float32
_SUM_ROWS = 256  # rows of a block that one program adds up
_SUM_STEP = 8  # rows on their way at once


class Rows(NamedTuple):
    """A CSR matrix, and which of its rows are summed in pieces."""

    indptr: torch.Tensor  # int64 (N + 1,)
    indices: torch.Tensor  # int32 or int64 (E,)
    weights: torch.Tensor  # float32 or float64 (E,)
    short: torch.Tensor  # int64, rows of at most SEGMENT edges
    long: torch.Tensor  # int64 (M,), the others
    piece_start: torch.Tensor  # int64, edge at which each piece of a long row starts, row after row
    piece_end: torch.Tensor  # int64
    long_pieces: torch.Tensor  # int64 (M + 1,), pieces of each long row


class Gates(NamedTuple):
    """Factors on the weights of each query's steps."""

    of_edge: torch.Tensor  # int32 (E,), row of edge_gates; 0: none
    edge_gates: torch.Tensor  # (G + 1, W), row 0 all 1
    node_gates: torch.Tensor  # (N, W)
    inverse: torch.Tensor  # (N, W), 1 / sum of the gated weights that leave the node; 1 where none does


def rows_of(indptr: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> Rows:
    """Return the matrix with its rows sorted into short and long ones; on the device of the arguments."""
    counts = indptr[1:] - indptr[:-1]
    long = torch.nonzero(counts > SEGMENT).flatten()
    pieces = (counts[long] + SEGMENT - 1) // SEGMENT
    long_pieces = torch.cat([pieces.new_zeros(1), torch.cumsum(pieces, 0)])
    owner = torch.repeat_interleave(torch.arange(long.numel(), device=indptr.device), pieces)
    number = torch.arange(int(long_pieces[-1]), device=indptr.device) - long_pieces[owner]
    start = indptr[long][owner] + number * SEGMENT
    end = torch.minimum(start + SEGMENT, indptr[long + 1][owner])
    return Rows(indptr, indices, weights, torch.nonzero(counts <= SEGMENT).flatten(), long, start, end, long_pieces)


def num_chebyshev_sweeps(damping: float, tol: float) -> int:
    """Return the sweeps after which the error of an undirected walk is about tol / 8, by the rate of the iteration.

    The rate holds in the norm in which the walk is symmetric; the certificate says what was reached in L1.
    """
    if damping == 0.0:
        return 1
    rate = damping / (1.0 + math.sqrt(1.0 - damping * damping))
    return 1 + max(1, math.ceil(math.log(tol * (1.0 - damping) / 16.0) / math.log(rate)))


def chebyshev_omegas(damping: float, num_sweeps: int) -> list[float]:
    """Return the factor w of each sweep, the last one 1."""
    omegas = [2.0 / (2.0 - damping * damping)]
    while len(omegas) < num_sweeps:
        omegas.append(1.0 / (1.0 - damping * damping * omegas[-1] / 4.0))
    return [*omegas[: num_sweeps - 1], 1.0]


@triton.jit
def _row_sum(
    indices, weights, z, of_edge, edge_gates, start, end, columns, WIDTH, GATED: tl.constexpr, EDGES: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    """Return the sum over edges [start, end) of weight * gate * z[source], for QUERIES columns."""
    total = tl.zeros((QUERIES,), z.dtype.element_ty)
    for first in range(start, end, EDGES):
        edges = first + tl.arange(0, EDGES)
        inside = edges < end
        source = tl.load(indices + edges, mask=inside, other=0).to(tl.int64)
        weight = tl.load(weights + edges, mask=inside, other=0.0)
        rows = tl.load(z + source[:, None] * WIDTH + columns[None, :], mask=inside[:, None], other=0.0)
        if GATED:
            gate = tl.load(of_edge + edges, mask=inside, other=0).to(tl.int64)
            rows *= tl.load(edge_gates + gate[:, None] * WIDTH + columns[None, :], mask=inside[:, None], other=0.0)
        total += tl.sum(weight[:, None] * rows, axis=0)
    return total


@triton.jit
def _update(z_next, row, columns, total, slots, resets, node_gates, inverse, damping, omega, WIDTH, GATED: tl.constexpr):
    """Write omega * (damping * total + reset - old) + old over old, the iterate before the last."""
    at = row * WIDTH + columns
    slot = tl.load(slots + row).to(tl.int64)
    reset = tl.load(resets + slot * WIDTH + columns)
    if GATED:
        total = (damping * total * tl.load(node_gates + at) + reset) * tl.load(inverse + at)
    else:
        total = damping * total + reset
    old = tl.load(z_next + at)
    tl.store(z_next + at, omega * (total - old) + old)


@triton.jit
def _short_rows(
    short, indptr, indices, weights, z, z_next, slots, resets, of_edge, edge_gates, node_gates, inverse, factors,
    WIDTH, GATED: tl.constexpr, PLAIN_SUM: tl.constexpr, EDGES: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    row = tl.load(short + tl.program_id(0))
    columns = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    start, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    total = _row_sum(indices, weights, z, of_edge, edge_gates, start, end, columns, WIDTH, GATED, EDGES, QUERIES)
    if PLAIN_SUM:
        tl.store(z_next + row * WIDTH + columns, total)
    else:
        damping, omega = tl.load(factors), tl.load(factors + 1)
        _update(z_next, row, columns, total, slots, resets, node_gates, inverse, damping, omega, WIDTH, GATED)


@triton.jit
def _pieces(
    piece_start, piece_end, indices, weights, z, parts, of_edge, edge_gates, WIDTH, GATED: tl.constexpr, EDGES: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    start, end = tl.load(piece_start + piece), tl.load(piece_end + piece)
    total = _row_sum(indices, weights, z, of_edge, edge_gates, start, end, columns, WIDTH, GATED, EDGES, QUERIES)
    tl.store(parts + piece * WIDTH + columns, total)


@triton.jit
def _long_rows(
    long, long_pieces, parts, z_next, slots, resets, node_gates, inverse, factors, WIDTH, GATED: tl.constexpr,
    PLAIN_SUM: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row = tl.load(long + number)
    columns = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    total = tl.zeros((QUERIES,), z_next.dtype.element_ty)
    for piece in range(tl.load(long_pieces + number), tl.load(long_pieces + number + 1)):
        total += tl.load(parts + piece * WIDTH + columns)
    if PLAIN_SUM:
        tl.store(z_next + row * WIDTH + columns, total)
    else:
        damping, omega = tl.load(factors), tl.load(factors + 1)
        _update(z_next, row, columns, total, slots, resets, node_gates, inverse, damping, omega, WIDTH, GATED)


@triton.jit
def _sum_rows(
    z, other, inverse, sums, num_rows, WIDTH, ROWS, CHANGE: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr,
    QUERIES: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    total = tl.zeros((QUERIES,), tl.float64)
    start = part * ROWS
    end = tl.minimum(start + ROWS, num_rows)
    for first in range(start, end, STEP):
        rows = first + tl.arange(0, STEP)
        at, inside = rows[:, None] * WIDTH + columns[None, :], (rows < end)[:, None]
        value = tl.load(z + at, mask=inside, other=0.0)
        if CHANGE:
            value = tl.abs(value - tl.load(other + at, mask=inside, other=0.0))
        else:
            value = tl.where(value < 0.0, 0.0, value)  # keeps NaN
        if GATED:
            value = value / tl.load(inverse + at, mask=inside, other=1.0)
        total += tl.sum(value.to(tl.float64), axis=0)
    tl.store(sums + part * WIDTH + columns, total)


def column_sums(
    z_NW: torch.Tensor, other_NW: torch.Tensor | None = None, inverse_NW: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """Return float64 (W,): sums of |z - other|, or of max(z, 0) without other, each value divided by inverse if given.

    The order of addition depends on N alone, so a column's bits do not depend on the others.

    Args:
        z_NW: float32 or float64 (N, W), contiguous, W a multiple of `block_width(1)`.
        other_NW: Likewise.
        inverse_NW: Likewise, > 0.
    """
    width, values, change, gated = z_NW.shape[1], z_NW, other_NW is not None, inverse_NW is not None
    other = z_NW if other_NW is None else other_NW
    inverse = z_NW if inverse_NW is None else inverse_NW
    while True:
        num_rows = values.shape[0]
        sums = torch.empty((max(1, -(-num_rows // _SUM_ROWS)), width), dtype=torch.float64, device=z_NW.device)
        _sum_rows[(sums.shape[0], width // _QUERIES)](
            values, other, inverse, sums, num_rows, width, _SUM_ROWS, CHANGE=change, GATED=gated, STEP=_SUM_STEP,
            QUERIES=_QUERIES, num_warps=1,
        )  # fmt: skip
        if sums.shape[0] == 1:
            return sums[0]
        values, other, inverse, change, gated = sums, sums, sums, False, False


def sweep(
    rows: Rows, z_NW: torch.Tensor, next_NW: torch.Tensor, *, slots_N: torch.Tensor | None, resets_RW: torch.Tensor | None,
    factors: torch.Tensor, gates: Gates | None = None,
) -> None:  # fmt: skip
    """Write the next iterate over the one before the last; without resets, plain sums over z.

    Args:
        rows: Steps by target; their probabilities, or weights if there are gates.
        z_NW: (N, W), contiguous, W a multiple of `block_width(1)`.
        next_NW: (N, W), the iterate before z; overwritten.
        slots_N: int32 (N,), row of the resets of each node.
        resets_RW: (R + 1, W), (1 - damping) * r; row 0 all zero.
        factors: Damping and the omega of this sweep, in the dtype of z, see `sweep_factors`; plain sums look at none.
        gates: None: all queries walk the same matrix.
    """
    width, plain = z_NW.shape[1], slots_N is None
    columns = width // _QUERIES
    dummy = z_NW if slots_N is None else slots_N
    resets = z_NW if resets_RW is None else resets_RW
    of_edge, edge_gates, node_gates, inverse = gates if gates is not None else (rows.indices, z_NW, z_NW, z_NW)
    gated = gates is not None
    launch: dict[str, Any] = {"num_warps": 1}
    if rows.short.numel():
        _short_rows[(rows.short.numel(), columns)](
            rows.short, rows.indptr, rows.indices, rows.weights, z_NW, next_NW, dummy, resets, of_edge, edge_gates, node_gates,
            inverse, factors, width, GATED=gated, PLAIN_SUM=plain, EDGES=_EDGES, QUERIES=_QUERIES, **launch,
        )  # fmt: skip
    if rows.long.numel():
        parts = torch.empty((rows.piece_start.numel(), width), dtype=z_NW.dtype, device=z_NW.device)
        _pieces[(rows.piece_start.numel(), columns)](
            rows.piece_start, rows.piece_end, rows.indices, rows.weights, z_NW, parts, of_edge, edge_gates, width,
            GATED=gated, EDGES=_EDGES, QUERIES=_QUERIES, **launch,
        )  # fmt: skip
        _long_rows[(rows.long.numel(), columns)](
            rows.long, rows.long_pieces, parts, next_NW, dummy, resets, node_gates, inverse, factors, width, GATED=gated,
            PLAIN_SUM=plain, QUERIES=_QUERIES, **launch,
        )  # fmt: skip


def sweep_factors(damping: float, omegas: list[float], like: torch.Tensor) -> torch.Tensor:
    """Return damping and omega of each sweep, (K, 4) with the dtype and device of `like`.

    On the device once for all sweeps, since each copy to it waits; four to a row, so that all rows are aligned alike and one
    compiled kernel serves them.
    """
    return torch.tensor([[damping, omega, 0.0, 0.0] for omega in omegas], dtype=like.dtype, device=like.device)


def block_width(num_queries: int) -> int:
    """Return the columns of a block of that many queries."""
    return -(-max(1, num_queries) // _QUERIES) * _QUERIES


def gates_of(
    leaving: Rows,
    leaving_gate: torch.Tensor,
    incoming_gate: torch.Tensor,
    edge_gates_BG: torch.Tensor,
    node_gates_BN: torch.Tensor,
) -> Gates:
    """Return a block's gates, with the sums of the gated weights that leave each node.

    Args:
        leaving: The graph by source, with weights.
        leaving_gate: int32 (E,), gate of its edges, -1: none.
        incoming_gate: The same by the edges of the walk by target.
        edge_gates_BG: (B, G), > 0.
        node_gates_BN: (B, N), > 0.
    """
    num_queries, num_gates = edge_gates_BG.shape
    width = block_width(num_queries)
    edge_gates = edge_gates_BG.new_ones((num_gates + 1, width))
    edge_gates[1:, :num_queries] = edge_gates_BG.T
    node_gates = node_gates_BN.new_ones((node_gates_BN.shape[1], width))
    node_gates[:, :num_queries] = node_gates_BN.T
    sums = torch.zeros_like(node_gates)
    half = Gates(leaving_gate + 1, edge_gates, node_gates, node_gates)
    sweep(leaving, node_gates, sums, slots_N=None, resets_RW=None, factors=node_gates, gates=half)
    return Gates(incoming_gate + 1, edge_gates, node_gates, torch.where(sums > 0, 1.0 / sums, 1.0))


def solve_block(
    rows: Rows, dangling_N: torch.Tensor, reset_BN: torch.Tensor, *, undirected: bool, damping: float, omegas: list[float],
    node_range: tuple[int, int], gates: Gates | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return scores (B, hi - lo), bounds of the L1 error float64 (B,) and flags uint8 (B,) of one block of queries.

    Args:
        rows: Steps by target; their probabilities, or weights if there are gates.
        dangling_N: bool (N,), nodes that no weight leaves.
        reset_BN: float32 or float64 (B, N), not normalised; a query without mass, or with a bad value, is flagged.
        undirected: The matrix is that of an undirected graph.
        damping: In [0, 1).
        omegas: Of each sweep, the last 1; all 1 on a directed graph.
        node_range: Which scores are wanted.
        gates: See `gates_of`.
    """
    num_queries, num_nodes = reset_BN.shape
    (lo, hi), dtype = node_range, reset_BN.dtype
    z, flags = _padded_columns(reset_BN)
    seeded = torch.nonzero((z != 0).any(dim=1)).flatten()
    slots = torch.zeros(num_nodes, dtype=torch.int32, device=z.device)
    slots[seeded] = torch.arange(1, seeded.numel() + 1, dtype=torch.int32, device=z.device)
    mass = column_sums(z)
    resets = z.new_zeros((seeded.numel() + 1, z.shape[1]))
    resets[1:] = ((1.0 - damping) * (z[seeded].double() / torch.where(mass > 0, mass, 1.0))).to(dtype)
    z[seeded] = resets[1:] if gates is None else resets[1:] * gates.inverse[seeded]
    other = torch.zeros_like(z)
    for factors in sweep_factors(damping, omegas, z):
        sweep(rows, z, other, slots_N=slots, resets_RW=resets, factors=factors, gates=gates)
        z, other = other, z
    # The sweeps before the last overwrote what they started from, but the last left its own start in `other`.
    inverse = None if gates is None else gates.inverse
    change = column_sums(z, other, inverse)[:num_queries]
    dangling = torch.nonzero(dangling_N).flatten()
    remaining, factor = torch.ones_like(change), 1.0
    if dangling.numel() and undirected:
        remaining = 1.0 - damping / (1.0 - damping) * column_sums(resets[slots[dangling].long()])[:num_queries]
    elif dangling.numel():
        remaining, factor = column_sums(z, None, inverse)[:num_queries], 2.0
    remaining = torch.where(remaining > 0, remaining, 1.0)
    rounding = torch.finfo(dtype).eps / 2.0 * damping / (1.0 - damping)
    bounds = factor * damping / (1.0 - damping) * change / remaining + rounding
    wanted = z[lo:hi, :num_queries]
    if inverse is not None:
        wanted = wanted / inverse[lo:hi, :num_queries]
    scores = (wanted.clamp(min=0.0) / remaining.to(dtype)).T.contiguous()
    good = flags == 0
    return torch.where(good[:, None], scores, 0.0), torch.where(good, bounds, 0.0), flags


def _padded_columns(reset_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the resets by node, (N, W), unusable ones all zero, and flags uint8 (B,)."""
    reset = reset_BN.detach()
    bad = (~torch.isfinite(reset) | (reset < 0)).any(dim=1)
    reset = torch.where(bad[:, None], 0.0, reset)
    largest = reset.amax(dim=1, keepdim=True) if reset.shape[1] else reset.new_zeros((reset.shape[0], 1))
    if reset.dtype == torch.float64:  # so that no sum overflows; those of float32 cannot in float64
        reset = reset / torch.where(largest > 0, largest, 1.0)
    columns = reset.new_zeros((reset.shape[1], block_width(reset.shape[0])))
    columns[:, : reset.shape[0]] = reset.T
    return columns, torch.where(bad, BAD_SEED, torch.where(largest[:, 0] == 0, NO_SEED, 0)).to(torch.uint8)
