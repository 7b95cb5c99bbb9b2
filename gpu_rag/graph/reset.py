"""Resets of a batch of queries: where their walks start, dense or sparse, and what may be wrong with one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import torch
from gpu_rag_kernels import ppr_reference

from gpu_rag.errors import InputError


class SeedFlag(IntFlag):
    """What is wrong with a query's row; 0 is a good row."""

    NO_SEED = ppr_reference.NO_SEED  # the reset has no mass; the row is all zero
    BAD_SEED = ppr_reference.BAD_SEED  # NaN, infinite or negative value in the reset; the row is all zero
    NOT_CONVERGED = 4  # the bound of the L1 error is above tol
    BAD_GATE = 8  # a gate that is not above 0 and finite; the row is all zero
    CUT = 16  # a stated limit stopped the search; what was found up to it stands


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


Reset = torch.Tensor | SparseReset


def check_reset(reset: Reset, num_nodes: int, device: torch.device) -> tuple[int, torch.dtype]:
    """Return the number of queries and the dtype, or raise InputError if the reset does not fit the graph."""
    if isinstance(reset, SparseReset):
        num_queries, width, values = reset.indptr.numel() - 1, reset.num_nodes, reset.values
    elif isinstance(reset, torch.Tensor) and reset.ndim == 2:
        num_queries, width, values = reset.shape[0], reset.shape[1], reset
    else:
        shape = tuple(getattr(reset, "shape", ()))
        raise InputError(f"reset is {type(reset).__name__} {shape}, expected a tensor (B, N) or SparseReset")
    if width != num_nodes:
        raise InputError(f"reset has {width} nodes, the graph has {num_nodes}")
    if values.dtype not in (torch.float32, torch.float64):
        raise InputError(f"reset is {values.dtype}, expected float32 or float64")
    if values.device != device:
        raise InputError(f"reset lies on {values.device}, the graph on {device}")
    return num_queries, values.dtype


def dense_rows(reset: Reset, start: int, stop: int) -> torch.Tensor:
    """Return the resets of queries [start, stop), (stop - start, N)."""
    return reset.dense_rows(start, stop) if isinstance(reset, SparseReset) else reset.detach()[start:stop]
