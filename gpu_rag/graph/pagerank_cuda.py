"""Personalized PageRank by the Triton kernels: blocks of queries one after the other on the graph's device."""

from __future__ import annotations

import torch

from gpu_rag.graph.blocks import plan_blocks
from gpu_rag.graph.csr import CsrGraph
from gpu_rag.graph.gate import Gate
from gpu_rag.graph.reset import Reset, SeedFlag, dense_rows

BLOCK_BYTES = 8 << 30  # of a block's scores, resets and gates
MAX_BLOCK = 256  # queries of a block


def solve_on_device(
    graph: CsrGraph, reset: Reset, num_queries: int, dtype: torch.dtype, *, damping: float, tol: float, sweeps: int,
    max_iter: int | None, node_range: tuple[int, int], gate: Gate | None,
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:  # fmt: skip
    """Return scores (b, hi - lo), bounds float64 (b,), sweeps int32 (b,) and flags uint8 (b,) of each block, in order.

    An undirected graph is solved by Chebyshev iteration; a query whose certificate then misses tol, by as many plain sweeps
    as suffice for any, by itself: so its bits do not depend on its batch.

    Args:
        graph: On the device; a directed one by plain sweeps.
        reset: Likewise.
        num_queries: B.
        dtype: Of the reset.
        damping: In [0, 1).
        tol: Bound of the L1 error.
        sweeps: Plain sweeps that suffice for any query.
        max_iter: Upper bound of the sweeps, or None.
        node_range: Nodes whose scores are wanted.
        gate: None: all walk the same matrix.
    """
    from gpu_rag_kernels import ppr_triton

    plain = [1.0] * min(sweeps, max_iter or sweeps)
    fast = plain
    if graph.undirected:
        count = ppr_triton.num_chebyshev_sweeps(damping, tol)
        fast = ppr_triton.chebyshev_omegas(damping, min(count, max_iter or count))
    num_gates = 0 if gate is None else gate.num_gates
    query_bytes = graph.num_nodes * (3 * dtype.itemsize + 16) + (3 * graph.num_nodes + num_gates) * dtype.itemsize
    width = max(1, min(MAX_BLOCK, BLOCK_BYTES // max(1, query_bytes)))
    parts = []
    for start, stop in plan_blocks(num_queries, width, num_queries):
        scores, bounds, flags = _solve(graph, reset, start, stop, dtype, damping, fast, node_range, gate)
        used = torch.where(flags == 0, len(fast), 0).to(torch.int32)
        if graph.undirected and (max_iter is None or max_iter > len(fast)):
            for late in torch.nonzero((flags == 0) & (bounds > tol)).flatten().tolist():
                query = start + late
                again = _solve(graph, reset, query, query + 1, dtype, damping, plain, node_range, gate)
                scores[late], bounds[late], used[late] = again[0][0], again[1][0], len(plain)
        parts.append((scores, bounds, used, flags))
    return parts


def _solve(
    graph: CsrGraph, reset: Reset, start: int, stop: int, dtype: torch.dtype, damping: float, omegas: list[float],
    node_range: tuple[int, int], gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    from gpu_rag_kernels import ppr_triton

    rows = dense_rows(reset, start, stop)
    transition = graph.transition(dtype)
    gates, bad = None, None
    if gate is None:
        matrix = graph.derived(
            ("triton", dtype), lambda: ppr_triton.rows_of(transition.indptr, transition.indices, transition.probabilities)
        )
    else:
        order = graph.derived("by_target", lambda: torch.argsort(graph.indices, stable=True))
        weights = graph.weights.to(dtype)
        matrix = graph.derived(
            ("triton gated", dtype), lambda: ppr_triton.rows_of(transition.indptr, transition.indices, weights[order])
        )
        leaving = graph.derived(("triton leaving", dtype), lambda: ppr_triton.rows_of(graph.indptr, graph.indices, weights))
        parts = [part.to(dtype) for part in gate.rows(start, stop)]
        bad = ~torch.stack([(torch.isfinite(part) & (part > 0)).all(dim=1) for part in parts]).all(dim=0)
        clean = [torch.where(bad[:, None], 1.0, part) for part in parts]
        gates = ppr_triton.gates_of(leaving, gate.gate_of_edge, gate.gate_of_edge[order], *clean)
    scores, bounds, flags = ppr_triton.solve_block(
        matrix, graph.dangling, rows, undirected=graph.undirected, damping=damping, omegas=omegas, node_range=node_range,
        gates=gates,
    )  # fmt: skip
    if bad is not None:
        scores[bad], bounds[bad], flags[bad] = 0.0, 0.0, int(SeedFlag.BAD_GATE)
    return scores, bounds, flags
