"""Graphs in CSR form: build from edge arrays, check, save and read without pickle.

Conventions are igraph's, as personalized PageRank sees them: parallel edges are summed, a self-loop of an undirected
graph counts twice in the degree of its node (so it is stored with twice its weight), a weight of 0 is no edge, isolated
nodes stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph.arrays import read_arrays, save_arrays

_MAX_INT32_NODES = 2**31
_DTYPES = {"indptr": ("int64",), "indices": ("int32", "int64"), "weights": ("float32",)}

T = TypeVar("T")
EdgeArray = torch.Tensor | npt.NDArray[Any]


class Transition(NamedTuple):
    """Incoming view of the random walk: row i lists the steps that lead to node i."""

    indptr: torch.Tensor  # int64 (N + 1,)
    indices: torch.Tensor  # int32 | int64 (E,), source of each step
    probabilities: torch.Tensor  # float32 | float64 (E,), weight / outgoing weight of the source
    dangling: torch.Tensor  # bool (N,), nodes without outgoing weight


@dataclass(frozen=True, eq=False)
class CsrGraph:
    """A weighted graph of N nodes; row i holds the edges that leave node i, columns ascending, each once.

    Attributes:
        indptr: int64 (N + 1,), row offsets.
        indices: int32 (if N < 2^31) or int64 (E,), column of each stored edge.
        weights: float32 (E,), finite and >= 0.
        undirected: The arrays are symmetric: an edge stands in both its rows, a self-loop once with twice its weight.

    Raises:
        InputError: On the first row that breaks one of these rules.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor
    undirected: bool
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_layout(self)
        _check_rows(self)
        if self.undirected:
            _check_symmetric(self)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, isolated ones included."""
        return int(self.indptr.numel()) - 1

    @property
    def num_edges(self) -> int:
        """Number of stored entries: an undirected edge between two nodes counts twice."""
        return int(self.indices.numel())

    @property
    def device(self) -> torch.device:
        """Device of all three arrays."""
        return self.indptr.device

    def to(self, device: torch.device | str) -> CsrGraph:
        """Return the graph on that device."""
        return CsrGraph(self.indptr.to(device), self.indices.to(device), self.weights.to(device), self.undirected)

    def derived(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what compute() gives, computed once per key and kept with the graph."""
        if key not in self._derived:
            self._derived[key] = compute()
        kept: T = self._derived[key]
        return kept

    @property
    def dangling(self) -> torch.Tensor:
        """Which nodes no weight leaves, bool (N,)."""
        return self.derived("dangling", lambda: (_strength(self) == 0).to(self.device))

    def shares(self, dtype: torch.dtype) -> torch.Tensor:
        """Return (E,), weight of each stored edge over the weight that leaves its row; 0 for an edge of weight 0."""
        return self.derived(("shares", dtype), lambda: _shares(self, dtype))

    def transition(self, dtype: torch.dtype) -> Transition:
        """Return the walk's step probabilities by target, computed once per dtype (float32 or float64) and kept."""
        return self.derived(("transition", dtype), lambda: _transition(self, dtype))


def build_csr(
    num_nodes: int, source: EdgeArray, target: EdgeArray, weights: EdgeArray | None = None, *, undirected: bool
) -> CsrGraph:
    """Return the CSR graph of an edge list; the same bits for every order of the edges.

    Parallel edges are summed once, in float64 in the order (source, target, weight), then rounded to float32; in an
    undirected graph (a, b) and (b, a) are parallel. An edge whose weight is 0 (or rounds to 0) is dropped.

    Args:
        num_nodes: Number of nodes N >= 0.
        source: Integers (E,), in [0, N).
        target: Integers (E,), in [0, N).
        weights: Real (E,), finite and >= 0; None means 1 for every edge.
        undirected: Store each edge in both rows; a self-loop once, with twice its weight (as igraph counts it).

    Raises:
        InputError: On a wrong length, dtype, node number or weight, naming the first bad edge.
    """
    if num_nodes < 0:
        raise InputError(f"num_nodes={num_nodes} must be >= 0")
    row, column = _endpoints("source", source, num_nodes), _endpoints("target", target, num_nodes)
    value = np.ones(row.size, np.float64) if weights is None else _edge_weights(weights)
    for name, array in (("target", column), ("weights", value)):
        if array.size != row.size:
            raise InputError(f"{name} has {array.size} edges, source has {row.size}")
    if undirected:
        row, column = np.minimum(row, column), np.maximum(row, column)
    row, column, value = _sum_parallel(row, column, value)
    if undirected:
        loop = row == column
        value = np.where(loop, 2.0 * value, value)
        row, column, value = (
            np.concatenate([row, column[~loop]]),
            np.concatenate([column, row[~loop]]),
            np.concatenate([value, value[~loop]]),
        )
        order = np.lexsort((column, row))
        row, column, value = row[order], column[order], value[order]
    with np.errstate(over="ignore", under="ignore"):
        rounded = value.astype(np.float32)
    if not np.isfinite(rounded).all():
        first = int(np.flatnonzero(~np.isfinite(rounded))[0])
        raise InputError(f"summed weight of edge ({row[first]}, {column[first]}) is {value[first]}, above float32")
    kept = rounded > 0
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(row[kept], minlength=num_nodes), out=indptr[1:])
    index_dtype = np.int32 if num_nodes < _MAX_INT32_NODES else np.int64
    return _from_numpy(indptr, column[kept].astype(index_dtype), rounded[kept], undirected)


def save_csr(graph: CsrGraph, folder: str | os.PathLike[str]) -> None:
    """Write indptr.npy, indices.npy, weights.npy and, last and by rename, header.json; a torn save cannot be read."""
    arrays = {name: getattr(graph, name).cpu().numpy() for name in _DTYPES}
    facts = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "undirected": graph.undirected}
    save_arrays(Path(folder), arrays, facts)


def read_csr(folder: str | os.PathLike[str], mmap: bool = True) -> CsrGraph:
    """Return the graph that `save_csr` wrote, on the CPU; all rules of `CsrGraph` are checked again.

    Args:
        folder: Where the four files lie.
        mmap: Map the arrays copy-on-write instead of reading them.

    Raises:
        InputError: If a file is missing or unreadable, or header and arrays do not fit, naming file and field.
    """
    path = Path(folder)
    header, arrays = read_arrays(path, _DTYPES, {"num_nodes": int, "num_edges": int, "undirected": bool}, mmap)
    found = {"num_nodes": arrays["indptr"].size - 1, "num_edges": arrays["indices"].size}
    for name, value in found.items():
        if header[name] != value:
            raise InputError(f"{path}: header.json says {name}={header[name]!r}, the arrays have {value}")
    try:
        return _from_numpy(arrays["indptr"], arrays["indices"], arrays["weights"], header["undirected"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _from_numpy(indptr: npt.NDArray[Any], indices: npt.NDArray[Any], weights: npt.NDArray[Any], undirected: bool) -> CsrGraph:
    return CsrGraph(torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(weights), undirected)


def _as_numpy(array: EdgeArray) -> npt.NDArray[Any]:
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def _endpoints(name: str, nodes: EdgeArray, num_nodes: int) -> npt.NDArray[np.int64]:
    array = _as_numpy(nodes)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"{name} is {array.dtype} {array.shape}, expected integers of shape (E,)")
    bad = np.flatnonzero((array < 0) | (array >= num_nodes))
    if bad.size:
        raise InputError(f"{name}[{bad[0]}]={array[bad[0]]} is no node of [0, {num_nodes})")
    return array.astype(np.int64)


def _edge_weights(weights: EdgeArray) -> npt.NDArray[np.float64]:
    array = _as_numpy(weights)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "fiu"):
        raise InputError(f"weights is {array.dtype} {array.shape}, expected real numbers of shape (E,)")
    value = array.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(value) & (value >= 0)))
    if bad.size:
        raise InputError(f"weights[{bad[0]}]={array[bad[0]]} must be finite and >= 0")
    return value


def _sum_parallel(
    row: npt.NDArray[np.int64], column: npt.NDArray[np.int64], value: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the distinct (row, column) pairs, sorted, and their float64 sums, added in ascending order of weight."""
    order = np.lexsort((value, column, row))
    row, column, value = row[order], column[order], value[order]
    first = np.ones(row.size, np.bool_)
    first[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    total = np.bincount(np.cumsum(first) - 1, weights=value).astype(np.float64)  # int64 when there is no edge
    return row[first], column[first], total


def _check_layout(graph: CsrGraph) -> None:
    for name, allowed in _DTYPES.items():
        tensor = getattr(graph, name)
        if tensor.ndim != 1 or str(tensor.dtype).removeprefix("torch.") not in allowed:
            expected = " or ".join(allowed)
            raise InputError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {expected}, one dimension")
        if tensor.device != graph.indptr.device:
            raise InputError(f"{name} lies on {tensor.device}, indptr on {graph.indptr.device}")
    if graph.indptr.numel() == 0:
        raise InputError("indptr is empty, expected N + 1 offsets")
    if graph.weights.numel() != graph.indices.numel():
        raise InputError(f"weights has {graph.weights.numel()} edges, indices has {graph.indices.numel()}")
    if graph.indices.dtype == torch.int32 and graph.num_nodes >= _MAX_INT32_NODES:
        raise InputError(f"indices is int32, too narrow for {graph.num_nodes} nodes")


def _check_rows(graph: CsrGraph) -> None:
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    falling = _first(indptr[1:] < indptr[:-1])
    if falling is not None:
        raise InputError(f"row {falling}: indptr falls from {int(indptr[falling])} to {int(indptr[falling + 1])}")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != graph.num_edges:
        raise InputError(f"indptr runs from {first} to {last}, expected 0 to {graph.num_edges} edges")
    starts = torch.zeros(graph.num_edges, dtype=torch.bool, device=graph.device)
    starts[indptr[:-1][indptr[1:] > indptr[:-1]]] = True
    unsorted = torch.zeros_like(starts)
    unsorted[1:] = (indices[1:] <= indices[:-1]) & ~starts[1:]
    rules = (
        ((indices < 0) | (indices >= graph.num_nodes), f"column {{column}} is no node of [0, {graph.num_nodes})"),
        (unsorted, "column {column} is not above the one before it (columns must be sorted and unique)"),
        (~(torch.isfinite(weights) & (weights >= 0)), "weight {weight} of column {column} must be finite and >= 0"),
    )
    for bad, message in rules:
        edge = _first(bad)
        if edge is not None:
            row = int(torch.searchsorted(indptr, edge, right=True)) - 1
            raise InputError(f"row {row}: " + message.format(column=int(indices[edge]), weight=float(weights[edge])))


def _check_symmetric(graph: CsrGraph) -> None:
    rows = _rows(graph)
    order = torch.argsort(graph.indices, stable=True)
    differs = (graph.indices[order] != rows) | (rows[order] != graph.indices) | (graph.weights[order] != graph.weights)
    edge = _first(differs)
    if edge is not None:
        raise InputError(f"row {int(rows[edge])}: undirected=True, but rows and columns are not symmetric here")


def _first(mask: torch.Tensor) -> int | None:
    """Return the position of the first True, or None."""
    return int(mask.nonzero()[0]) if bool(mask.any()) else None


def _rows(graph: CsrGraph) -> torch.Tensor:
    """Return int64 (E,), the row of each stored edge."""
    nodes = torch.arange(graph.num_nodes, device=graph.device)
    return torch.repeat_interleave(nodes, graph.indptr[1:] - graph.indptr[:-1])


def _strength(graph: CsrGraph) -> torch.Tensor:
    """Return float64 (N,) on the CPU, the weight that leaves each node, added in column order."""
    sums = np.bincount(_rows(graph).cpu().numpy(), weights=graph.weights.cpu().double().numpy(), minlength=graph.num_nodes)
    return torch.from_numpy(sums)


def _shares(graph: CsrGraph, dtype: torch.dtype) -> torch.Tensor:
    weights = graph.weights.cpu().double()
    return torch.where(weights > 0, weights / _strength(graph)[_rows(graph).cpu()], 0.0).to(dtype).to(graph.device)


def _transition(graph: CsrGraph, dtype: torch.dtype) -> Transition:
    """Divide each row by its sum and transpose by a stable sort."""
    rows, columns = _rows(graph).cpu(), graph.indices.cpu().long()
    order = torch.argsort(columns, stable=True)
    indptr = torch.zeros(graph.num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(torch.bincount(columns, minlength=graph.num_nodes), 0)
    arrays = (indptr, rows[order].to(graph.indices.dtype), graph.shares(dtype).cpu()[order], graph.dangling)
    return Transition(*(array.to(graph.device) for array in arrays))
