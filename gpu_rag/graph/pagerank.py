"""Batched personalized PageRank: many queries over one graph, each independent of the others in its batch.

x = damping * P^T x + (1 - damping) * r, with r = reset / sum(reset), P row-stochastic by weight, and the mass of nodes
without outgoing weight returned to r (igraph's convention).
Device: `numba` on the CPU, `triton` on CUDA, `torch` on both; `auto` goes by the device of the graph, never by the batch.
Source: Haveliwala 2002 (topic-sensitive PageRank); damping 0.5 as in HippoRAG 2, arXiv:2502.14802.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from gpu_rag_kernels import ppr_cpu, ppr_reference

from gpu_rag.errors import InputError
from gpu_rag.graph.blocks import Backend, choose_backend, plan_blocks
from gpu_rag.graph.csr import CsrGraph
from gpu_rag.graph.gate import Gate, check_gate
from gpu_rag.graph.reset import Reset, SeedFlag, SparseReset, check_reset, dense_rows
from gpu_rag.graph.topk import topk_in_range
from gpu_rag.graph.walk import ordered_walk

TORCH_BLOCK = 64  # queries of one sparse product
WORKSPACE_BYTES = 4 << 30  # of all blocks in flight together; on wide graphs fewer of them run at once
_BLOCKS_PER_THREAD = 4  # so that threads end together


@dataclass(frozen=True, eq=False)
class PageRankResult:
    """Scores of B queries, or their top-k where a range was asked for, and how far each can be trusted.

    Attributes:
        scores: (B, N) in the dtype of the reset; None if top_range and top_k were given.
        iterations: int32 (B,), sweeps done; 0 for rows without usable seed.
        residual: float64 (B,), at least the L1 norm of damping * P^T x + (1 - damping) * r - x, rounding aside: divided by
            1 - damping it bounds the L1 error.
        flags: uint8 (B,), bits of `SeedFlag`.
        top_indices: int64 (B, k), nodes with a score above 0, best first, equal scores by lower number; padded with -1.
        top_scores: (B, k), padded with 0.
        top_counts: int64 (B,), how many of the k are real.
    """

    scores: torch.Tensor | None
    iterations: torch.Tensor
    residual: torch.Tensor
    flags: torch.Tensor
    top_indices: torch.Tensor | None = None
    top_scores: torch.Tensor | None = None
    top_counts: torch.Tensor | None = None


class _Task(NamedTuple):
    """What was asked for, checked."""

    graph: CsrGraph
    reset: Reset
    num_queries: int
    dtype: torch.dtype
    damping: float
    tol: float
    max_iter: int | None
    node_range: tuple[int, int]
    top_k: int | None
    gate: Gate | None


def personalized_pagerank(
    graph: CsrGraph,
    reset: Reset,
    *,
    damping: float = 0.5,
    tol: float = 1e-6,
    max_iter: int | None = None,
    backend: Backend = "auto",
    top_range: tuple[int, int] | None = None,
    top_k: int | None = None,
    gate: Gate | None = None,
) -> PageRankResult:
    """Return the personalized PageRank of every query.

    A query's result does not depend on its batch: bit-equal by `numba`, where each query sweeps until its own certificate
    holds, and by `triton`; to 1e-6 by `torch`, where all take the sweeps that suffice for any (`num_sweeps`). float32
    carries rounding of about 1e-7 in L1; a tol below what the dtype holds comes back flagged NOT_CONVERGED.

    Args:
        graph: N nodes, on one device.
        reset: float32 or float64 (B, N), or sparse; on the graph's device. Rows need not sum to 1.
        damping: In [0, 1): the share of mass that walks on; 0 returns the normalised reset.
        tol: Bound of the L1 error of a row, > 0.
        max_iter: Upper bound of the sweeps, >= 1; None means as many as tol needs.
        backend: "numba" (CPU), "triton" (CUDA; on a CPU in its interpreter), "torch", or "auto": the fast one of the device
            if it is installed, else torch.
        top_range: Node range (lo, hi) of the top-k; with top_k, the (B, N) scores are never held at once.
        top_k: Number of nodes kept per query, clamped to the range.
        gate: Makes each query's steps weigh differently (see `gate`); None: all walk the same matrix.

    Raises:
        InputError: On a shape, dtype, device or parameter out of these bounds; bad values in a row are flagged instead.
        MissingDependencyError: If a backend is asked for by name and does not load.
    """
    num_queries, dtype = check_reset(reset, graph.num_nodes, graph.device)
    _check_parameters(damping, tol, max_iter)
    _check_top(graph, top_range, top_k)
    if gate is not None:
        check_gate(gate, graph, num_queries)
    chosen = choose_backend(backend, graph.device)
    if top_range is None:
        _check_fits(num_queries, graph.num_nodes, dtype.itemsize, graph.device)
    lo, hi = top_range or (0, graph.num_nodes)
    width = None if top_k is None else min(top_k, hi - lo)
    task = _Task(graph, reset, num_queries, dtype, damping, tol, max_iter, (lo, hi), width, gate)
    solve = {"numba": _solve_numba, "triton": _solve_triton, "torch": _solve_torch}[chosen]
    result = solve(task)
    late = result.residual > tol * (1.0 - damping)
    result.flags.bitwise_or_(late.to(torch.uint8) * int(SeedFlag.NOT_CONVERGED))
    return result


def num_sweeps(damping: float, tol: float) -> int:
    """Return the fewest plain sweeps K after which the residual certifies an L1 error <= tol (21 for 0.5 and 1e-6).

    The sweep keeps mass, contracts L1 distances by damping and starts at r, where its first change is at most
    2 * damping; so the residual after K sweeps is at most 2 * damping^(K + 1), which has to be <= tol * (1 - damping).
    """
    if damping == 0.0:
        return 0
    return max(1, math.ceil((math.log(tol / 2.0) + math.log1p(-damping)) / math.log(damping)) - 1)


def _solve_numba(task: _Task) -> PageRankResult:
    """Solve blocks of queries side by side; each thread goes through the graph on its own."""
    graph, gate = task.graph, task.gate
    num_gates = 0 if gate is None else gate.num_gates
    needed = ppr_cpu.workspace_bytes(graph.num_nodes, num_gates, task.dtype.itemsize, gated=gate is not None)
    num_threads = max(1, min(torch.get_num_threads(), WORKSPACE_BYTES // needed))
    ordered = ordered_walk(graph, task.dtype, gated=gate is not None)
    gate_of_edge = None if gate is None else gate.gate_of_edge.numpy()[ordered.edges] + np.int32(1)
    num_relaxed = num_sweeps(task.damping, task.tol) if graph.undirected else 0
    most = num_relaxed + num_sweeps(task.damping, task.tol * (1.0 - task.damping) / 4.0) + 2  # plain sweeps alone suffice

    def solve(block: tuple[int, int]) -> ppr_cpu.Solution:
        gates, bad = None, None
        if gate is not None and gate_of_edge is not None:
            rows = [part.to(task.dtype) for part in gate.rows(*block)]
            bad = ~torch.stack([(torch.isfinite(part) & (part > 0)).all(dim=1) for part in rows]).all(dim=0)
            clean = [torch.where(bad[:, None], 1.0, part).numpy() for part in rows]
            gates = ppr_cpu.Gates(gate_of_edge, *clean)
        solution = ppr_cpu.solve_queries(
            ordered.walk, _seeds(task.reset, *block), undirected=graph.undirected, damping=task.damping, tol=task.tol,
            max_sweeps=task.max_iter or most, num_relaxed=num_relaxed, node_range=task.node_range, top_k=task.top_k,
            gates=gates,
        )  # fmt: skip
        return solution if bad is None else _blank(solution, bad.numpy())

    per_thread = _BLOCKS_PER_THREAD if num_threads > 1 else 1
    blocks = plan_blocks(task.num_queries, ppr_cpu.LANES, num_threads * per_thread)
    if num_threads > 1 and len(blocks) > 1:
        with ThreadPoolExecutor(num_threads) as pool:
            parts = list(pool.map(solve, blocks))
    else:
        parts = [solve(block) for block in blocks]
    whole = ppr_cpu.Solution(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    scores, nodes, best, counts, bounds, sweeps, flags = map(torch.from_numpy, whole)
    residual = bounds * (1.0 - task.damping)
    if task.top_k is None:
        return PageRankResult(scores, sweeps, residual, flags)
    return PageRankResult(None, sweeps, residual, flags, nodes, best, counts)


def _blank(solution: ppr_cpu.Solution, bad: np.ndarray) -> ppr_cpu.Solution:
    """Return the solution without what was found for queries whose gates are bad, which are flagged."""
    for name, array in solution._asdict().items():
        array[bad] = {"top_nodes": -1, "flags": int(SeedFlag.BAD_GATE)}.get(name, 0)
    return solution


def _seeds(reset: Reset, start: int, stop: int) -> ppr_cpu.Seeds:
    if not isinstance(reset, SparseReset):
        return ppr_cpu.seeds_of_rows(reset.detach()[start:stop].numpy())
    indptr = reset.indptr[start : stop + 1].numpy()
    part = slice(int(indptr[0]), int(indptr[-1]))
    return ppr_cpu.Seeds(indptr - indptr[0], reset.indices[part].numpy(), reset.values.detach()[part].numpy())


def _solve_torch(task: _Task) -> PageRankResult:
    sweeps = num_sweeps(task.damping, task.tol)
    if task.max_iter is not None:
        sweeps = min(sweeps, task.max_iter)
    residuals, flags, kept = [], [], []
    for start, stop in plan_blocks(task.num_queries, TORCH_BLOCK, task.num_queries):
        scores, residual, flag = _torch_block(task, start, stop, sweeps)
        residuals.append(residual)
        flags.append(flag)
        kept.append((scores,) if task.top_k is None else _positive_top(scores, *task.node_range, task.top_k))
    whole = [torch.cat(column) for column in zip(*kept, strict=True)]
    flag = torch.cat(flags)
    iterations = torch.where(flag == 0, sweeps, 0).to(torch.int32)
    if task.top_k is None:
        return PageRankResult(whole[0], iterations, torch.cat(residuals), flag)
    return PageRankResult(None, iterations, torch.cat(residuals), flag, *whole)


def _solve_triton(task: _Task) -> PageRankResult:
    from gpu_rag.graph.pagerank_cuda import solve_on_device

    parts = solve_on_device(
        task.graph, task.reset, task.num_queries, task.dtype, damping=task.damping, tol=task.tol,
        sweeps=max(1, num_sweeps(task.damping, task.tol * (1.0 - task.damping) / 4.0)), max_iter=task.max_iter,
        node_range=task.node_range, gate=task.gate,
    )  # fmt: skip
    bounds, sweeps, flags = (torch.cat([part[column] for part in parts]) for column in (1, 2, 3))
    residual = bounds * (1.0 - task.damping)
    if task.top_k is None:
        return PageRankResult(torch.cat([part[0] for part in parts]), sweeps, residual, flags)
    lo, hi = task.node_range
    tops = [_positive_top(part[0], 0, hi - lo, task.top_k) for part in parts]
    nodes, best, counts = (torch.cat(column) for column in zip(*tops, strict=True))
    return PageRankResult(None, sweeps, residual, flags, torch.where(nodes >= 0, nodes + lo, -1), best, counts)


def _torch_block(task: _Task, start: int, stop: int, sweeps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    graph, gate = task.graph, task.gate
    rows = dense_rows(task.reset, start, stop)
    transition = graph.transition(torch.float64)
    if gate is None or start == stop:
        return ppr_reference.ppr_block_reference(*transition, rows, task.damping, sweeps)
    order = graph.derived("by_target", lambda: torch.argsort(graph.indices, stable=True))
    edge_gates, node_gates = gate.rows(start, stop)
    bad = ~(
        (torch.isfinite(edge_gates) & (edge_gates > 0)).all(dim=1) & (torch.isfinite(node_gates) & (node_gates > 0)).all(dim=1)
    )
    scores, residual, flags = ppr_reference.gated_ppr_reference(
        transition.indptr, transition.indices, graph.weights[order], gate.gate_of_edge[order],
        torch.where(bad[:, None], 1.0, edge_gates), torch.where(bad[:, None], 1.0, node_gates), rows, task.damping, sweeps,
    )  # fmt: skip
    scores[bad], residual[bad], flags[bad] = 0.0, 0.0, int(SeedFlag.BAD_GATE)
    return scores, residual, flags


def _positive_top(scores: torch.Tensor, lo: int, hi: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return indices, scores and counts of the top-k; nodes the walk does not reach (score 0) are no candidates."""
    top = topk_in_range(scores, lo, hi, k)
    real = top.scores > 0
    return torch.where(real, top.indices, -1), torch.where(real, top.scores, 0.0), real.sum(dim=1)


def _check_parameters(damping: float, tol: float, max_iter: int | None) -> None:
    if not 0.0 <= damping < 1.0:
        raise InputError(f"damping={damping} must be in [0, 1)")
    if not (tol > 0.0 and math.isfinite(tol)):
        raise InputError(f"tol={tol} must be finite and > 0")
    if max_iter is not None and max_iter < 1:
        raise InputError(f"max_iter={max_iter} must be >= 1 or None")


def _check_top(graph: CsrGraph, top_range: tuple[int, int] | None, top_k: int | None) -> None:
    if (top_range is None) != (top_k is None):
        raise InputError(f"top_range={top_range} and top_k={top_k} go together")
    if top_range is not None and not 0 <= top_range[0] <= top_range[1] <= graph.num_nodes:
        raise InputError(f"top_range={top_range} is not within [0, {graph.num_nodes})")
    if top_k is not None and top_k < 0:
        raise InputError(f"top_k={top_k} must be >= 0")


def _check_fits(num_queries: int, num_nodes: int, itemsize: int, device: torch.device) -> None:
    """Raise InputError before anything is allocated if the (B, N) scores exceed the memory of the machine or card."""
    needed = num_queries * num_nodes * itemsize
    if device.type == "cuda":
        available = torch.cuda.get_device_properties(device).total_memory
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"scores of {num_queries} queries x {num_nodes} nodes take {needed} bytes, {device} has {available}: "
            "give top_range and top_k, or fewer queries a call"
        )
