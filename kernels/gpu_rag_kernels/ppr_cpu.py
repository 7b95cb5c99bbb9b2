"""Power iteration of personalized PageRank over a block of queries: numba kernel and torch reference.

Both iterate, from x = r, `x <- d * (P^T x + m(x) * r) + (1 - d) * r`, where r is the reset divided by its sum and m(x)
the mass on nodes without outgoing weight (igraph's convention). The map keeps mass and contracts L1 distances by d.

Shape suffixes: N nodes, E edges, B queries of the block, W columns of the work space (B rounded up to `COLUMN_TILE`).
Reference: `ppr_block_reference`, plain torch in float64, CPU or CUDA; the kernel is tested against it.
Source: Page et al. 1999; conventions of igraph `personalized_pagerank(implementation="prpack")`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["BAD_SEED", "COLUMN_TILE", "NO_SEED", "ppr_block", "ppr_block_reference", "workspace_bytes"]

NO_SEED = 1
BAD_SEED = 2
COLUMN_TILE = 8
_ROW_TILE = 64  # nodes moved together when (B, N) is transposed to (N, W) and back
_SUM_TILE = 16  # edges summed in the working dtype before they enter the float64 sum of a row


def workspace_bytes(num_nodes: int, num_queries: int, itemsize: int) -> int:
    """Return the bytes `ppr_block` allocates for a block of that many queries (three (N, W) arrays)."""
    width = -(-num_queries // COLUMN_TILE) * COLUMN_TILE
    return 3 * num_nodes * width * itemsize


def ppr_block(
    indptr_N1: torch.Tensor,
    indices_E: torch.Tensor,
    probabilities_E: torch.Tensor,
    dangling_N: torch.Tensor,
    reset_BN: torch.Tensor,
    damping: float,
    num_sweeps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores (B, N), L1 residual float64 (B,) and flags uint8 (B,) of one block of queries, by numba on the CPU.

    A query's bits do not depend on the block it runs in: columns never mix, no sum is reassociated, no multiply-add
    is fused. A row without mass, or with a negative or non-finite value, is flagged and comes back all zero.
    Releases the GIL.

    Args:
        indptr_N1: int64 (N + 1,), offsets of the incoming edges of each node.
        indices_E: int32 or int64 (E,), source of each incoming edge.
        probabilities_E: float32 or float64 (E,), probability of the step; its dtype is that of reset_BN.
        dangling_N: bool (N,), nodes without outgoing weight.
        reset_BN: float32 or float64 (B, N), not normalised.
        damping: In [0, 1).
        num_sweeps: Sweeps to do, at least 0; one more is spent on the residual.

    Raises:
        ValueError: On a dtype, shape or device the kernel does not take.
        ImportError: If numba is not installed.
    """
    num_queries, num_nodes = _check_block(indptr_N1, indices_E, probabilities_E, dangling_N, reset_BN)
    scores = torch.zeros((num_queries, num_nodes), dtype=reset_BN.dtype)
    residual = torch.zeros(num_queries, dtype=torch.float64)
    flags = torch.zeros(num_queries, dtype=torch.uint8)
    inputs = (indptr_N1, indices_E, probabilities_E, dangling_N, reset_BN)
    arrays = [tensor.detach().contiguous().numpy() for tensor in inputs]
    _compiled()(*arrays, float(damping), int(num_sweeps), scores.numpy(), residual.numpy(), flags.numpy())
    return scores, residual, flags


def ppr_block_reference(
    indptr_N1: torch.Tensor,
    indices_E: torch.Tensor,
    probabilities_E: torch.Tensor,
    dangling_N: torch.Tensor,
    reset_BN: torch.Tensor,
    damping: float,
    num_sweeps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `ppr_block` returns, by torch sparse products in float64, on the device of the arguments.

    Args and errors as `ppr_block`; scores are rounded to the dtype of reset_BN at the end.
    """
    num_queries, num_nodes = _check_block(indptr_N1, indices_E, probabilities_E, dangling_N, reset_BN, cpu_only=False)
    reset = reset_BN.detach().to(torch.float64)
    bad = (~torch.isfinite(reset) | (reset < 0)).any(dim=1)
    reset = torch.where(bad[:, None], 0.0, reset)
    largest = reset.amax(dim=1, keepdim=True) if num_nodes else reset.new_zeros((num_queries, 1))
    empty = largest[:, 0] == 0
    scaled = torch.where(largest > 0, reset / largest, 0.0)
    r = torch.where(largest > 0, scaled / scaled.sum(dim=1, keepdim=True), 0.0).T.contiguous()  # (N, B)
    flags = torch.where(bad, BAD_SEED, torch.where(empty, NO_SEED, 0)).to(torch.uint8)
    with warnings.catch_warnings():  # torch says once that sparse CSR is beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        matrix = torch.sparse_csr_tensor(
            indptr_N1, indices_E.long(), probabilities_E.double(), size=(num_nodes, num_nodes), check_invariants=False
        )

    def sweep(x: torch.Tensor) -> torch.Tensor:
        returned = damping * x[dangling_N].sum(dim=0) + (1.0 - damping)
        walked = matrix @ x if indices_E.numel() else torch.zeros_like(x)
        return damping * walked + returned * r

    x = r
    for _ in range(num_sweeps):
        x = sweep(x)
    residual = (sweep(x) - x).abs().sum(dim=0)
    return x.T.to(reset_BN.dtype).contiguous(), residual, flags


def _check_block(
    indptr_N1: torch.Tensor,
    indices_E: torch.Tensor,
    probabilities_E: torch.Tensor,
    dangling_N: torch.Tensor,
    reset_BN: torch.Tensor,
    *,
    cpu_only: bool = True,
) -> tuple[int, int]:
    """Return (B, N), or raise ValueError if shapes, dtypes or devices do not fit each other."""
    if reset_BN.ndim != 2:
        raise ValueError(f"reset_BN has shape {tuple(reset_BN.shape)}, expected (B, N)")
    num_queries, num_nodes = reset_BN.shape
    if indptr_N1.shape != (num_nodes + 1,) or dangling_N.shape != (num_nodes,):
        shapes = f"indptr_N1 {tuple(indptr_N1.shape)}, dangling_N {tuple(dangling_N.shape)}"
        raise ValueError(f"{shapes} misfit N={num_nodes}")
    if indices_E.ndim != 1 or indices_E.shape != probabilities_E.shape:
        raise ValueError(f"indices_E {tuple(indices_E.shape)} misfits probabilities_E {tuple(probabilities_E.shape)}")
    if indptr_N1.dtype != torch.int64 or indices_E.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indptr_N1 is {indptr_N1.dtype}, indices_E {indices_E.dtype}, expected int64, int32 or int64")
    if reset_BN.dtype not in (torch.float32, torch.float64) or dangling_N.dtype != torch.bool:
        raise ValueError(f"reset_BN is {reset_BN.dtype}, dangling_N {dangling_N.dtype}, expected float32/64, bool")
    if cpu_only and probabilities_E.dtype != reset_BN.dtype:
        raise ValueError(f"probabilities_E is {probabilities_E.dtype}, reset_BN {reset_BN.dtype}, expected the same")
    devices = {tensor.device for tensor in (indptr_N1, indices_E, probabilities_E, dangling_N, reset_BN)}
    if len(devices) != 1 or (cpu_only and next(iter(devices)).type != "cpu"):
        expected = "the CPU" if cpu_only else "one device"
        raise ValueError(f"tensors lie on {sorted(map(str, devices))}, expected {expected}")
    return num_queries, num_nodes


@functools.cache
def _compiled() -> Callable[..., None]:
    """Return `_ppr_block_loops` compiled; imports numba, and keeps the machine code on disk where it can."""
    import numba

    compiled: Callable[..., None]
    try:
        compiled = numba.njit(nogil=True, cache=True)(_ppr_block_loops)
    except RuntimeError:  # numba finds no writable cache folder (read-only install)
        compiled = numba.njit(nogil=True)(_ppr_block_loops)
    return compiled


def _ppr_block_loops(
    indptr: Any,
    indices: Any,
    probabilities: Any,
    dangling: Any,
    reset: Any,
    damping: float,
    num_sweeps: int,
    scores: Any,
    residual: Any,
    flags: Any,
) -> None:
    """Fill scores, residual and flags; the plain-Python body of the numba kernel (no fastmath, so no reassociation)."""
    num_queries, num_nodes = reset.shape
    width = (num_queries + COLUMN_TILE - 1) // COLUMN_TILE * COLUMN_TILE
    r = np.zeros((num_nodes, width), reset.dtype)
    inverse = np.zeros(num_queries, np.float64)
    largest = np.zeros(num_queries, np.float64)
    for b in range(num_queries):
        bad = False
        top = 0.0
        for i in range(num_nodes):
            value = np.float64(reset[b, i])
            if value != 0.0:
                bad = bad or not (value > 0.0 and value < np.inf)
                top = max(top, value)
        if bad:
            flags[b] = BAD_SEED
        elif top == 0.0:
            flags[b] = NO_SEED
        else:  # scaled by the largest value first, so that no sum overflows
            total = 0.0
            for i in range(num_nodes):
                if reset[b, i] > 0.0:
                    total += np.float64(reset[b, i]) / top
            largest[b] = top
            inverse[b] = 1.0 / total
    for first in range(0, num_nodes, _ROW_TILE):
        for b in range(num_queries):
            if inverse[b] > 0.0:
                for i in range(first, min(first + _ROW_TILE, num_nodes)):
                    if reset[b, i] > 0.0:
                        r[i, b] = np.float64(reset[b, i]) / largest[b] * inverse[b]

    x = r.copy()
    y = np.empty_like(r)
    part = np.zeros(width, reset.dtype)
    total_row = np.zeros(width, np.float64)
    mass = np.zeros(width, np.float64)
    returned = np.zeros(width, reset.dtype)
    factor = np.zeros(1, reset.dtype)
    factor[0] = damping
    change = np.zeros(width, np.float64)
    for i in range(num_nodes):
        if dangling[i]:
            for b in range(width):
                mass[b] += x[i, b]
    for sweep in range(num_sweeps + 1):
        for b in range(width):
            returned[b] = damping * mass[b] + (1.0 - damping)
            mass[b] = 0.0
        for i in range(num_nodes):
            start = indptr[i]
            end = indptr[i + 1]
            many = end - start > _SUM_TILE
            for b in range(width):
                part[b] = 0.0
            if many:
                for b in range(width):
                    total_row[b] = 0.0
            for tile in range(start, end, _SUM_TILE):
                for e in range(tile, min(tile + _SUM_TILE, end)):
                    source = np.uint64(indices[e])  # unsigned: no negative index to wrap
                    probability = probabilities[e]
                    for b in range(width):
                        part[b] += probability * x[source, b]
                if many:
                    for b in range(width):
                        total_row[b] += part[b]
                        part[b] = 0.0
            if many:
                for b in range(width):
                    part[b] = total_row[b]
            for b in range(width):
                y[i, b] = factor[0] * part[b] + returned[b] * r[i, b]
            if dangling[i]:
                for b in range(width):
                    mass[b] += y[i, b]
            if sweep == num_sweeps:
                for b in range(width):
                    change[b] += abs(np.float64(y[i, b]) - np.float64(x[i, b]))
        if sweep < num_sweeps:
            x, y = y, x
    for first in range(0, num_nodes, _ROW_TILE):
        for b in range(num_queries):
            for i in range(first, min(first + _ROW_TILE, num_nodes)):
                scores[b, i] = x[i, b]
    for b in range(num_queries):
        residual[b] = change[b]
