"""Lists of nodes, one per query, in an order that counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph.reset import SeedFlag


@dataclass(frozen=True, eq=False)
class SeedLists:
    """The seeds of B queries, in CSR form; a seed that is named twice counts at its first place.

    Attributes:
        indptr: int64 (B + 1,), on the CPU.
        nodes: int32 or int64 (S,). A node outside the graph is no error here: its query is flagged.

    Raises:
        InputError: On a wrong shape or dtype, or offsets that do not rise from 0 to S.
    """

    indptr: torch.Tensor
    nodes: torch.Tensor

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or self.indptr.dtype != torch.int64 or self.indptr.numel() == 0:
            raise InputError(f"seeds indptr is {self.indptr.dtype} {tuple(self.indptr.shape)}, expected int64 (B + 1,)")
        if self.nodes.dtype not in (torch.int32, torch.int64) or self.nodes.ndim != 1:
            raise InputError(f"seeds nodes is {self.nodes.dtype} {tuple(self.nodes.shape)}, expected int32 or int64 (S,)")
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if (first, last) != (0, self.nodes.numel()) or bool((self.indptr[1:] < self.indptr[:-1]).any()):
            raise InputError(f"seeds indptr must rise from 0 to {self.nodes.numel()}, it runs from {first} to {last}")

    @property
    def num_queries(self) -> int:
        """B."""
        return int(self.indptr.numel()) - 1

    def usable(self, num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return indptr int64 (B + 1,), nodes int32 and flags uint8 (B,): a query with a node outside has no seed left."""
        indptr, nodes = self.indptr.numpy(), self.nodes.numpy()
        counts = np.diff(indptr)
        queries = np.repeat(np.arange(counts.size), counts)
        bad = np.zeros(counts.size, np.bool_)
        bad[queries[(nodes < 0) | (nodes >= num_nodes)]] = True
        flags = np.where(bad, int(SeedFlag.BAD_SEED), np.where(counts == 0, int(SeedFlag.NO_SEED), 0)).astype(np.uint8)
        kept = np.concatenate([[0], np.cumsum(np.where(bad, 0, counts))]).astype(np.int64)
        return kept, nodes[~bad[queries]].astype(np.int32), flags
