"""Batched personalized PageRank: many queries over one graph, each independent of the others in its batch.

x = damping * P^T x + (1 - damping) * r, with r = reset / sum(reset), P row-stochastic by weight, and the mass of nodes
without outgoing weight returned to r (igraph's convention).
Device: `numba` on the CPU, `torch` on both; `auto` goes by the device of the graph, never by the batch.
Source: Haveliwala 2002 (topic-sensitive PageRank); damping 0.5 as in HippoRAG 2, arXiv:2502.14802.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntFlag
from typing import Literal

import numpy as np
import torch
from gpu_rag_kernels import ppr_cpu

from gpu_rag.errors import InputError, MissingDependencyError
from gpu_rag.graph.csr import CsrGraph
from gpu_rag.graph.topk import topk_in_range

logger = logging.getLogger(__name__)

Backend = Literal["auto", "numba", "torch"]
MAX_BLOCK = 64  # queries that share one pass over the edges
WORKSPACE_BYTES = 4 << 30  # of all blocks in flight together; wide graphs get narrower blocks


class SeedFlag(IntFlag):
    """What is wrong with a query's row; 0 is a good row."""

    NO_SEED = ppr_cpu.NO_SEED  # the reset has no mass; the row is all zero
    BAD_SEED = ppr_cpu.BAD_SEED  # NaN, infinite or negative value in the reset; the row is all zero
    NOT_CONVERGED = 4  # residual / (1 - damping), the bound of the L1 error, is above tol


@dataclass(frozen=True, eq=False)
class SparseReset:
    """Resets of B queries in CSR form; several values of a query on one node are added.

    Attributes:
        indptr: int64 (B + 1,), offsets of the queries.
        indices: int32 or int64 (S,), seeded node of each value.
        values: float32 or float64 (S,).
        num_nodes: N.

    Raises:
        InputError: On a wrong shape or dtype, or a node that is not in the graph, naming the query.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    values: torch.Tensor
    num_nodes: int

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or self.indptr.dtype != torch.int64 or self.indptr.numel() == 0:
            raise InputError(f"reset indptr is {self.indptr.dtype} {tuple(self.indptr.shape)}, expected int64 (B + 1,)")
        if self.indices.dtype not in (torch.int32, torch.int64) or self.indices.ndim != 1:
            raise InputError(f"reset indices is {self.indices.dtype} {tuple(self.indices.shape)}, expected int (S,)")
        if self.values.shape != self.indices.shape:
            raise InputError(f"reset values {tuple(self.values.shape)} misfits indices {tuple(self.indices.shape)}")
        first, last, num_seeds = int(self.indptr[0]), int(self.indptr[-1]), self.indices.numel()
        if (first, last) != (0, num_seeds) or bool((self.indptr[1:] < self.indptr[:-1]).any()):
            raise InputError(f"reset indptr must rise from 0 to {num_seeds}, it runs from {first} to {last}")
        if len({self.indptr.device, self.indices.device, self.values.device}) != 1:
            raise InputError("reset indptr, indices and values lie on different devices")
        outside = torch.nonzero((self.indices < 0) | (self.indices >= self.num_nodes)).flatten()
        if outside.numel():
            query = int(torch.searchsorted(self.indptr, outside[0], right=True)) - 1
            node = int(self.indices[outside[0]])
            raise InputError(f"reset of query {query}: seed {node} is no node of [0, {self.num_nodes})")

    def dense_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return the resets of queries [start, stop) as (stop - start, N); a row with a bad value is NaN."""
        dense = self.values.new_zeros((stop - start, self.num_nodes))
        entries = slice(int(self.indptr[start]), int(self.indptr[stop]))
        counts = self.indptr[start + 1 : stop + 1] - self.indptr[start:stop]
        queries = torch.repeat_interleave(torch.arange(stop - start, device=self.values.device), counts)
        values, nodes = self.values.detach()[entries], self.indices[entries].long()
        if dense.device.type == "cpu":  # one after the other; index_put_ adds float32 in any order
            np.add.at(dense.numpy(), (queries.numpy(), nodes.numpy()), values.numpy())
        else:
            dense.index_put_((queries, nodes), values, accumulate=True)
        bad = queries[~torch.isfinite(values) | (values < 0)]
        dense[bad] = torch.nan  # a sum could hide a negative value
        return dense


@dataclass(frozen=True, eq=False)
class PageRankResult:
    """Scores of B queries, or their top-k where a range was asked for, and how far each can be trusted.

    Attributes:
        scores: (B, N) in the dtype of the reset; None if top_range and top_k were given.
        iterations: int32 (B,), sweeps done; 0 for rows without usable seed.
        residual: float64 (B,), L1 norm of damping * P^T x + (1 - damping) * r - x.
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


def personalized_pagerank(
    graph: CsrGraph,
    reset: torch.Tensor | SparseReset,
    *,
    damping: float = 0.5,
    tol: float = 1e-6,
    max_iter: int | None = None,
    backend: Backend = "auto",
    top_range: tuple[int, int] | None = None,
    top_k: int | None = None,
) -> PageRankResult:
    """Return the personalized PageRank of every query.

    The number of sweeps follows from damping and tol alone (`num_sweeps`), so a query's result does not depend on its
    batch: bit-equal by `numba`, to 1e-6 by `torch`. float32 resets carry rounding of about 1e-7 in L1; a tol below what
    the dtype holds comes back flagged NOT_CONVERGED.

    Args:
        graph: N nodes, on one device.
        reset: float32 or float64 (B, N), or sparse; on the graph's device. Rows need not sum to 1.
        damping: In [0, 1): the share of mass that walks on; 0 returns the normalised reset.
        tol: Bound of the L1 error of a row, > 0.
        max_iter: Upper bound of the sweeps, >= 1; None means as many as tol needs.
        backend: "numba" (CPU), "torch", or "auto": numba on the CPU if it is installed, else torch.
        top_range: Node range (lo, hi) of the top-k; with top_k, the (B, N) scores are never held at once.
        top_k: Number of nodes kept per query, clamped to the range.

    Raises:
        InputError: On a shape, dtype, device or parameter out of these bounds; bad values in a row are flagged instead.
        MissingDependencyError: If backend="numba" and numba is not installed.
    """
    num_queries, dtype = _check_reset(graph, reset)
    _check_parameters(damping, tol, max_iter)
    _check_top(graph, top_range, top_k)
    run_block = _choose(backend, graph.device)
    sweeps = num_sweeps(damping, tol)
    if max_iter is not None:
        sweeps = min(sweeps, max_iter)
    if top_range is None:
        _check_fits(num_queries, graph.num_nodes, dtype.itemsize, graph.device)
    num_threads = torch.get_num_threads() if graph.device.type == "cpu" and run_block is ppr_cpu.ppr_block else 1
    transition = graph.transition(torch.float64 if run_block is ppr_cpu.ppr_block_reference else dtype)

    def run(block: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        rows = reset.dense_rows(*block) if isinstance(reset, SparseReset) else reset[block[0] : block[1]]
        scores, residual, flags = run_block(*transition, rows, damping, sweeps)
        kept = (scores,) if top_range is None or top_k is None else _positive_top(scores, *top_range, top_k)
        return (residual, flags, *kept)

    blocks = plan_blocks(num_queries, graph.num_nodes, num_threads)
    if min(num_threads, len(blocks)) > 1:
        with ThreadPoolExecutor(num_threads) as pool:
            parts = list(pool.map(run, blocks))
    else:
        parts = [run(block) for block in blocks]
    residual, flags, *kept = (torch.cat(column) for column in zip(*parts, strict=True))
    iterations = torch.where(flags == 0, sweeps, 0).to(torch.int32)
    late = residual > tol * (1.0 - damping)
    flags = flags | (late.to(torch.uint8) * int(SeedFlag.NOT_CONVERGED))
    if top_range is None:
        return PageRankResult(kept[0], iterations, residual, flags)
    return PageRankResult(None, iterations, residual, flags, *kept)


def num_sweeps(damping: float, tol: float) -> int:
    """Return the fewest sweeps K after which the residual certifies an L1 error <= tol (21 for 0.5 and 1e-6).

    The sweep keeps mass, contracts L1 distances by damping and starts at r, where its first change is at most
    2 * damping; so the residual after K sweeps is at most 2 * damping^(K + 1), which has to be <= tol * (1 - damping).
    """
    if damping == 0.0:
        return 0
    return max(1, math.ceil((math.log(tol / 2.0) + math.log1p(-damping)) / math.log(damping)) - 1)


def plan_blocks(num_queries: int, num_nodes: int, num_threads: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each block: at most MAX_BLOCK queries, within WORKSPACE_BYTES, even over the threads.

    The widths decide speed and memory only, not a bit of the numba result. Zero queries give one empty block.
    """
    tile = ppr_cpu.COLUMN_TILE
    reset_and_scores = 2 * 8 * tile * num_nodes
    tile_bytes = ppr_cpu.workspace_bytes(num_nodes, tile, 8) + reset_and_scores
    width = min(MAX_BLOCK, tile * max(1, WORKSPACE_BYTES // max(1, tile_bytes * num_threads)))
    count = max(-(-num_queries // width), min(num_threads, -(-num_queries // (2 * tile))), 1)
    if count > num_threads:
        count = -(-count // num_threads) * num_threads
    bounds = [num_queries * position // count for position in range(count + 1)]
    return list(itertools.pairwise(bounds))


def _positive_top(scores: torch.Tensor, lo: int, hi: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return indices, scores and counts of the top-k; nodes the walk does not reach (score 0) are no candidates."""
    top = topk_in_range(scores, lo, hi, k)
    real = top.scores > 0
    return torch.where(real, top.indices, -1), torch.where(real, top.scores, 0.0), real.sum(dim=1)


def _choose(backend: str, device: torch.device) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    if backend not in ("auto", "numba", "torch"):
        raise InputError(f"backend={backend!r} is none of auto, numba, torch")
    if backend == "numba" and device.type != "cpu":
        raise InputError(f"backend='numba' runs on the CPU, the graph lies on {device}")
    if backend == "torch" or device.type != "cpu":
        return ppr_cpu.ppr_block_reference
    cause = _numba_missing()
    if cause is None:
        return ppr_cpu.ppr_block
    if backend == "numba":
        raise MissingDependencyError(f"backend='numba': numba does not load ({cause}); pip install 'gpu-rag[cpu]'")
    return ppr_cpu.ppr_block_reference


@functools.cache
def _numba_missing() -> str | None:
    """Return why numba does not import, or None if it does; logs once that torch takes its place."""
    try:
        import numba  # noqa: F401
    except ImportError as error:
        logger.warning("numba does not load (%s); personalized PageRank runs on torch, several times slower", error)
        return str(error)
    return None


def _check_reset(graph: CsrGraph, reset: torch.Tensor | SparseReset) -> tuple[int, torch.dtype]:
    if isinstance(reset, SparseReset):
        num_queries, num_nodes, values = reset.indptr.numel() - 1, reset.num_nodes, reset.values
    elif isinstance(reset, torch.Tensor) and reset.ndim == 2:
        num_queries, num_nodes, values = reset.shape[0], reset.shape[1], reset
    else:
        shape = tuple(getattr(reset, "shape", ()))
        raise InputError(f"reset is {type(reset).__name__} {shape}, expected a tensor (B, N) or SparseReset")
    if num_nodes != graph.num_nodes:
        raise InputError(f"reset has {num_nodes} nodes, the graph has {graph.num_nodes}")
    if values.dtype not in (torch.float32, torch.float64):
        raise InputError(f"reset is {values.dtype}, expected float32 or float64")
    if values.device != graph.device:
        raise InputError(f"reset lies on {values.device}, the graph on {graph.device}")
    return num_queries, values.dtype


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
