"""Personalized PageRank of many queries on a CPU, by numba; the arithmetic is in `ppr_numba`.

With r the reset divided by its sum, P the row-stochastic walk and d the damping, z = d P^T z + (1 - d) r is solved by
successive over-relaxation in place, from z = 0; the scores are z divided by its sum, which is the walk whose dangling nodes
return their mass to r (igraph's convention). A sweep with relaxation w changes z by a step s; the residual of the new z is
U s + (1/w - 1) s, U being the part of d P^T above the diagonal, so

    ||z - z*||_1 <= (d + |1 - 1/w|) / (1 - d) * ||s||_1,

to which one rounding of every walked sum is added, u d / (1 - d). Each query stops at its first sweep whose bound is within
its tolerance, or within the rounding. Relaxed sweeps converge on undirected graphs for
0 < w < 2 (the system is symmetric and positive definite after scaling); plain ones (w = 1) contract the L1 error by d on any.

Shape suffixes: N nodes, E edges, B queries, S seeds, G gates, K of top-k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LANES", "Gates", "Seeds", "Solution", "Walk", "relaxation", "seeds_of_rows", "solve_queries", "workspace_bytes"]

LANES = 16  # queries that go through the graph in step
_CACHE_LINE = 64
_ABOVE_OPTIMUM = 1.2  # measured on entity graphs: one sweep fewer than the optimum of bipartite graphs, never one more


class Walk(NamedTuple):
    """A random walk by target, nodes renumbered into the order of the sweep."""

    indptr: npt.NDArray[np.int64]  # (N + 1,)
    indices: npt.NDArray[Any]  # int32 or int64 (E,), source of each incoming edge, ascending in a row
    weights: npt.NDArray[Any]  # float32 or float64 (E,), probability of the step; its weight if there are gates
    place: npt.NDArray[np.int32]  # (N,), where each node stands in the order
    dangling: npt.NDArray[np.bool_]  # (N,), by place: no weight leaves the node


class Seeds(NamedTuple):
    """Resets of B queries in CSR form; values of one node are added."""

    indptr: npt.NDArray[np.int64]  # (B + 1,)
    nodes: npt.NDArray[Any]  # int32 or int64 (S,)
    values: npt.NDArray[Any]  # dtype of the walk's weights (S,)


class Gates(NamedTuple):
    """Factors on the weights of each query's steps: that of the edge's gate, times that of the node it leads to."""

    gate_of_edge: npt.NDArray[np.int32]  # (E,), by the walk's edges; 0: none, else a column of edge_gates + 1
    edge_gates: npt.NDArray[Any]  # (B, G), > 0, dtype of the walk's weights
    node_gates: npt.NDArray[Any]  # (B, N), > 0


class Solution(NamedTuple):
    """What `solve_queries` finds."""

    scores: npt.NDArray[Any]  # (B, hi - lo); (B, 0) if only the top was asked for
    top_nodes: npt.NDArray[np.int64]  # (B, K), best first, equal scores by lower node; -1 where there are fewer
    top_scores: npt.NDArray[Any]  # (B, K)
    top_counts: npt.NDArray[np.int64]  # (B,), nodes of the range with a score above 0, at most K
    bounds: npt.NDArray[np.float64]  # (B,), of the L1 error
    sweeps: npt.NDArray[np.int32]  # (B,)
    flags: npt.NDArray[np.uint8]  # (B,), NO_SEED or BAD_SEED: the row is all zero


def relaxation(damping: float) -> float:
    """Return the relaxation of an undirected walk's sweeps: a little above 2 / (1 + sqrt(1 - d^2)).

    That is the optimum where the graph is bipartite (Young 1950).
    """
    return 1.0 + _ABOVE_OPTIMUM * (2.0 / (1.0 + math.sqrt(1.0 - damping * damping)) - 1.0)


def workspace_bytes(num_nodes: int, num_gates: int, itemsize: int, *, gated: bool) -> int:
    """Return the bytes that `solve_queries` allocates beside its outputs, at most."""
    rows = 2 * num_nodes + 1 + ((num_gates + 1) + 2 * num_nodes if gated else 0)  # scores, resets; gates, node gates, inverse
    return rows * LANES * itemsize + 8 * num_nodes + (8 * LANES * num_nodes if gated else 0)


def seeds_of_rows(reset: npt.NDArray[Any]) -> Seeds:
    """Return what is not zero in reset, float32 or float64 (B, N); NaN is not zero."""
    from gpu_rag_kernels import ppr_numba

    rows = np.ascontiguousarray(reset)
    return Seeds(*ppr_numba.seeds_of_rows(rows.view(f"u{rows.itemsize}"), rows))


def solve_queries(
    walk: Walk, seeds: Seeds, *, undirected: bool, damping: float, tol: float, max_sweeps: int, num_relaxed: int,
    node_range: tuple[int, int], top_k: int | None = None, gates: Gates | None = None,
) -> Solution:  # fmt: skip
    """Return scores of a node range, or the best of it, for every query. Releases the GIL.

    Args:
        walk: The graph.
        seeds: Not normalised; a query without a positive value, or with a negative or non-finite one, is flagged.
        undirected: The walk is that of an undirected graph: its sweeps are relaxed.
        damping: In [0, 1).
        tol: Bound of the L1 error at which a query stops.
        max_sweeps: Upper bound of the sweeps, at least 1.
        num_relaxed: Sweeps after which those that are left go on without relaxation.
        node_range: (lo, hi).
        top_k: K; None: return the scores.
        gates: Symmetric on an undirected graph.
    """
    from gpu_rag_kernels import ppr_numba

    num_queries, (lo, hi) = seeds.indptr.size - 1, node_range
    dtype = walk.weights.dtype
    width = 0 if top_k is None else top_k
    solution = Solution(
        scores=np.zeros((num_queries, hi - lo if top_k is None else 0), dtype),
        top_nodes=np.full((num_queries, width), -1, np.int64),
        top_scores=np.zeros((num_queries, width), dtype),
        top_counts=np.zeros(num_queries, np.int64),
        bounds=np.zeros(num_queries, np.float64),
        sweeps=np.zeros(num_queries, np.int32),
        flags=np.zeros(num_queries, np.uint8),
    )
    mass = ppr_numba.CLOSED
    if walk.dangling.any():
        mass = ppr_numba.ISOLATED if undirected else ppr_numba.LEAKING
    workspace = tuple(_aligned(rows, dtype) for rows in (walk.place.size, walk.place.size + 1))
    ppr_numba.solve(
        tuple(walk), mass, tuple(seeds), float(damping), relaxation(damping) if undirected else 1.0, float(tol),
        float(np.finfo(dtype).eps) / 2.0 * damping / (1.0 - damping), int(max_sweeps), int(num_relaxed),
        None if gates is None else tuple(gates), int(lo), int(hi), workspace, solution.scores, solution[1:4], solution[4:],
    )  # fmt: skip
    return solution


def _aligned(rows: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return (rows, LANES), not initialised, whose rows do not straddle cache lines."""
    size = rows * LANES * dtype.itemsize
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(rows, LANES)
