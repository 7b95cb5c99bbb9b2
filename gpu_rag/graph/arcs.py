"""The arc table for spreading activation: one row per relation, parallel relations apart, each with a weight of its own.

Rules: parallel arcs stay apart; an arc from a node to itself stays in the table and carries nothing; nodes without arcs stay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph.arrays import read_arrays, save_arrays

FORMAT = {"source": ("int32",), "target": ("int32",)}


class Incidence(NamedTuple):
    """The arcs at each node, in arc order; an arc stands at both its ends, one from a node to itself at none."""

    indptr: np.ndarray  # int64 (N + 1,)
    arcs: np.ndarray  # int32 (I,)
    neighbours: np.ndarray  # int32 (I,), the arc's other end
    outgoing: np.ndarray  # bool (I,), the arc leads from here to the neighbour


@dataclass(frozen=True, eq=False)
class ArcGraph:
    """Directed arcs between N nodes; arc i is row i, in the order of the caller (ids ascending, say).

    Attributes:
        num_nodes: N, at most 2^31 - 1.
        source: int32 (A,), in [0, N); on the CPU.
        target: int32 (A,), in [0, N).

    Raises:
        InputError: On a wrong shape or dtype, or an end that is no node, naming the first bad arc.
    """

    num_nodes: int
    source: torch.Tensor
    target: torch.Tensor
    _incidence: list[Incidence] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.num_nodes < 2**31:
            raise InputError(f"num_nodes={self.num_nodes} is not in [0, 2^31)")
        for name in FORMAT:
            ends = getattr(self, name)
            if ends.dtype != torch.int32 or ends.ndim != 1 or ends.device.type != "cpu":
                raise InputError(f"{name} is {ends.dtype} {tuple(ends.shape)} on {ends.device}, expected int32 (A,) on the CPU")
        if self.source.shape != self.target.shape:
            raise InputError(f"target has {self.target.numel()} arcs, source has {self.source.numel()}")
        for name in FORMAT:
            ends = getattr(self, name)
            outside = torch.nonzero((ends < 0) | (ends >= self.num_nodes)).flatten()
            if outside.numel():
                arc = int(outside[0])
                raise InputError(f"arc {arc}: {name} {int(ends[arc])} is no node of [0, {self.num_nodes})")

    @property
    def num_arcs(self) -> int:
        """Number of rows."""
        return int(self.source.numel())

    @property
    def incidence(self) -> Incidence:
        """The arcs at each node, computed once."""
        if not self._incidence:
            self._incidence.append(_incidence(self))
        return self._incidence[0]


def save_arcs(graph: ArcGraph, folder: str | os.PathLike[str]) -> None:
    """Write source.npy, target.npy and, last and by rename, header.json; a torn save cannot be read."""
    arrays = {name: getattr(graph, name).numpy() for name in FORMAT}
    save_arrays(Path(folder), arrays, {"num_nodes": graph.num_nodes, "num_arcs": graph.num_arcs})


def read_arcs(folder: str | os.PathLike[str], mmap: bool = True) -> ArcGraph:
    """Return the arcs that `save_arcs` wrote; all rules of `ArcGraph` are checked again.

    Raises:
        InputError: If a file is missing or unreadable, or header and arrays do not fit, naming file and field.
    """
    path = Path(folder)
    header, arrays = read_arrays(path, FORMAT, {"num_nodes": int, "num_arcs": int}, mmap)
    if header["num_arcs"] != arrays["source"].size:
        raise InputError(f"{path}: header.json says num_arcs={header['num_arcs']}, the arrays have {arrays['source'].size}")
    try:
        return ArcGraph(header["num_nodes"], torch.from_numpy(arrays["source"]), torch.from_numpy(arrays["target"]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _incidence(graph: ArcGraph) -> Incidence:
    source, target = graph.source.numpy(), graph.target.numpy()
    arcs = np.flatnonzero(source != target).astype(np.int32)
    here = np.concatenate([source[arcs], target[arcs]])
    neighbours = np.concatenate([target[arcs], source[arcs]])
    outgoing = np.arange(here.size) < arcs.size
    both = np.concatenate([arcs, arcs])
    order = np.lexsort((both, here))
    indptr = np.zeros(graph.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(here, minlength=graph.num_nodes), out=indptr[1:])
    return Incidence(indptr, both[order], neighbours[order], outgoing[order])
