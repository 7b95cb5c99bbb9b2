"""Spreading activation in plain code: the authors' algorithm as the sequential peer, and the level-synchronous one.

Source: SA-RAG (arXiv:2512.15922) as its authors' public code runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Adjacency", "adjacency", "arc_weights", "level_scores", "sequential_scores", "subgraph"]


class Adjacency(NamedTuple):
    """Neighbours of each node as (neighbour, arc), in arc order: along arcs, and along or against them."""

    outgoing: list[list[tuple[int, int]]]
    both: list[list[tuple[int, int]]]


def adjacency(num_nodes: int, source: Sequence[int], target: Sequence[int]) -> Adjacency:
    """Return the neighbours of each node; an arc from a node to itself is none."""
    outgoing: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    both: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    for arc, (start, end) in enumerate(zip(source, target, strict=True)):
        if start != end:
            outgoing[start].append((end, arc))
            both[start].append((end, arc))
            both[end].append((start, arc))
    return Adjacency(outgoing, both)


def subgraph(graph: Adjacency, seeds: Sequence[int], hops: int, follow: str = "both") -> set[int]:
    """Return the nodes within that many arcs of the seeds."""
    neighbours = graph.outgoing if follow == "outgoing" else graph.both
    reached = set(seeds)
    frontier = list(reached)
    for _ in range(hops):
        found = {node for start in frontier for node, _ in neighbours[start]} - reached
        reached |= found
        frontier = list(found)
    return reached


def arc_weights(cosines: npt.NDArray[np.float32], c: float) -> npt.NDArray[np.float32]:
    """Return max(0, (cosine - c) / (1 - c)), float32."""
    scaled = (cosines - np.float32(c)) / (np.float32(1) - np.float32(c))
    weights: npt.NDArray[np.float32] = np.maximum(scaled, np.float32(0))
    return weights


def sequential_scores(
    graph: Adjacency,
    seeds: Sequence[int],
    *,
    query_vector: npt.NDArray[np.float32] | None = None,
    arc_vectors: npt.NDArray[np.float32] | None = None,
    weights: npt.NDArray[np.float32] | None = None,
    hops: int,
    c: float,
    follow: str = "both",
) -> dict[int, float]:
    """Return the score of every node of one query's subgraph, as the authors compute it.

    Args:
        graph: The arcs.
        seeds: In the order in which they are activated.
        query_vector: float32 (D,), unit length.
        arc_vectors: float32 (A, D), unit length.
        weights: float32 (A,), instead of the two.
        hops: How far the subgraph reaches.
        c: Rescaling constant.
        follow: "outgoing" or "both", for the subgraph.
    """
    nodes = subgraph(graph, seeds, hops, follow)
    near = {node: [(other, arc) for other, arc in graph.both[node] if other in nodes] for node in nodes}
    arcs = sorted({arc for entries in near.values() for _, arc in entries})
    if weights is None:
        assert query_vector is not None
        assert arc_vectors is not None
        found = arc_weights(arc_vectors[arcs] @ query_vector, c)
    else:
        found = weights[arcs]
    weight = dict(zip(arcs, found.astype(np.float64).tolist(), strict=True))
    scores = dict.fromkeys(nodes, 0.0)
    for seed in dict.fromkeys(seeds):
        scores[seed] = max(1.0, scores[seed])
        visited, queue = {seed}, deque([seed])
        while queue:
            here = queue.popleft()
            for there, arc in near[here]:
                scores[there] = min(1.0, scores[there] + weight[arc] * scores[here])
                if there not in visited:
                    visited.add(there)
                    queue.append(there)
    return scores


def level_scores(
    num_nodes: int, source: torch.Tensor, target: torch.Tensor, seeds: Sequence[int], weights: torch.Tensor, hops: int,
    follow: str = "both",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return one query's scores, float64 (N,), all additions of a level from the scores at its start, and its subgraph.

    The subgraph is bool (N,); scores off it are 0.

    Args:
        num_nodes: N.
        source: int (A,), on any device, like the rest.
        target: int (A,).
        seeds: In the order in which they are activated.
        weights: float32 (A,).
        hops: How far the subgraph reaches.
        follow: "outgoing" or "both", for the subgraph.
    """
    usable = source != target
    start = torch.cat([source[usable], target[usable]]).long()
    end = torch.cat([target[usable], source[usable]]).long()
    weight = weights[usable].double().repeat(2)
    inside = torch.zeros(num_nodes, dtype=torch.bool, device=source.device)
    inside[list(seeds)] = True
    for _ in range(hops):
        reached = inside.clone()
        reached[target[inside[source.long()]].long()] = True
        if follow == "both":
            reached[source[inside[target.long()]].long()] = True
        inside = reached
    within = inside[start] & inside[end]
    start, end, weight = start[within], end[within], weight[within]
    scores = torch.zeros(num_nodes, dtype=torch.float64, device=source.device)
    for seed in dict.fromkeys(seeds):
        scores[seed] = scores[seed].clamp(min=1.0)
        visited = torch.zeros_like(inside)
        visited[seed] = True
        frontier = visited.clone()
        while bool(frontier.any()):
            leaving = frontier[start]
            gains = torch.zeros_like(scores).index_add(0, end[leaving], weight[leaving] * scores[start[leaving]])
            scores = torch.where(gains > 0, (scores + gains).clamp(max=1.0), scores)
            found = torch.zeros_like(visited)
            found[end[leaving]] = True
            frontier = found & ~visited
            visited |= found
    return scores, inside
