"""Graphs from tables whose nodes have ids of any kind: strings, numbers, tuples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph.arcs import ArcGraph
from gpu_rag.graph.csr import CsrGraph, EdgeArray, build_csr


def node_rows(node_ids: Sequence[Hashable], ids: Sequence[Hashable], name: str = "ids") -> npt.NDArray[np.int64]:
    """Return the node of each id, int64: its place among node_ids.

    Raises:
        InputError: If two nodes have one id, or an id is no node's, naming the first.
    """
    place = {node_id: row for row, node_id in enumerate(node_ids)}
    if len(place) != len(node_ids):
        seen: set[Hashable] = set()
        twice = next(node_id for node_id in node_ids if node_id in seen or seen.add(node_id))  # type: ignore[func-returns-value]
        raise InputError(f"node id {twice!r} occurs more than once")
    rows = np.empty(len(ids), np.int64)
    for row, node_id in enumerate(ids):
        if node_id not in place:
            raise InputError(f"{name}[{row}]={node_id!r} is the id of no node")
        rows[row] = place[node_id]
    return rows


def csr_of_tables(
    node_ids: Sequence[Hashable],
    source_ids: Sequence[Hashable],
    target_ids: Sequence[Hashable],
    weights: EdgeArray | None = None,
    *,
    undirected: bool,
) -> CsrGraph:
    """Return the graph of a node table and an edge table; every node is in it, edges or not.

    Args:
        node_ids: N distinct ids; node i is the i-th.
        source_ids: Ids of E edges' sources.
        target_ids: Of their targets.
        weights: See `build_csr`.
        undirected: Likewise.

    Raises:
        InputError: On an id that is no node's, or what `build_csr` refuses.
    """
    ends = [node_rows(node_ids, ids, name) for name, ids in (("source_ids", source_ids), ("target_ids", target_ids))]
    return build_csr(len(node_ids), ends[0], ends[1], weights, undirected=undirected)


def arcs_of_tables(node_ids: Sequence[Hashable], source_ids: Sequence[Hashable], target_ids: Sequence[Hashable]) -> ArcGraph:
    """Return the arcs of a node table and a relation table, in its order.

    Raises:
        InputError: On an id that is no node's, or tables of different lengths.
    """
    ends = [node_rows(node_ids, ids, name) for name, ids in (("source_ids", source_ids), ("target_ids", target_ids))]
    return ArcGraph(len(node_ids), *(torch.from_numpy(rows.astype(np.int32)) for rows in ends))
