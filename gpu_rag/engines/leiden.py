"""Hierarchical Leiden communities of a weighted, undirected graph, by igraph.

The same graph in the same order gives the same communities: igraph takes its random numbers from a generator that is seeded
here, runs on one thread, and nodes and edges come in sorted.
Source: Traag, Waltman, van Eck, "From Louvain to Leiden" (2019); quality: modularity with a resolution.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_rag.engines.require import require

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Community:
    """One community.

    Attributes:
        level: 0 for a community of the whole graph, 1 for one within such a one, and so on.
        parent: Its place in the list of all communities; None at level 0.
        members: int64, nodes, rising.
    """

    level: int
    parent: int | None
    members: Ints


def leiden_communities(
    num_nodes: int,
    source: Ints,
    target: Ints,
    weight: NDArray[np.float64],
    *,
    resolution: float = 1.0,
    min_members: int = 2,
    max_members: int = 50,
    max_levels: int = 3,
    seed: int = 0,
) -> list[Community]:
    """Return the communities, parents before their children, else by their first members.

    Args:
        num_nodes: N; isolated nodes are in no community.
        source: int64 (E,), sorted with `target`; every pair once, no loops.
        target: int64 (E,).
        weight: float64 (E,), positive.
        resolution: Higher: more and smaller communities.
        min_members: Smaller communities are left out.
        max_members: Larger communities are partitioned again, each within itself, where that divides them.
        max_levels: Upper bound of the levels.
        seed: Of the algorithm's random numbers.

    Raises:
        MissingDependencyError: If igraph is not installed.
    """
    found: list[Community] = []
    # Parts that are to be divided: level, parent, nodes, and the edges within, by position among the nodes.
    connected = np.unique(np.concatenate([source, target])).astype(np.int64)
    waiting: list[tuple[int, int | None, Ints, Ints, Ints, NDArray[np.float64]]] = [
        (0, None, connected, np.searchsorted(connected, source), np.searchsorted(connected, target), weight)
    ]
    while waiting:
        level, parent, nodes, first, second, weights = waiting.pop(0)
        if len(nodes) < min_members or not len(first):
            continue
        of_node = _partition(len(nodes), first, second, weights, resolution, seed)
        if parent is not None and of_node.max() == 0:
            continue  # nothing divides it
        order = np.argsort(of_node, kind="stable")
        bounds = np.searchsorted(of_node[order], np.arange(of_node.max() + 2))
        parts = sorted((order[bounds[c] : bounds[c + 1]] for c in range(of_node.max() + 1)), key=lambda part: int(part[0]))
        for part in parts:
            if len(part) < min_members:
                continue
            found.append(Community(level, parent, nodes[part]))
            if len(part) > max_members and level + 1 < max_levels:
                place = np.full(len(nodes), -1, np.int64)
                place[part] = np.arange(len(part))
                inside = (place[first] >= 0) & (place[second] >= 0)
                edges = (place[first[inside]], place[second[inside]], weights[inside])
                waiting.append((level + 1, len(found) - 1, nodes[part], *edges))
    return found


def _partition(
    num_nodes: int,
    first: Ints,
    second: Ints,
    weight: NDArray[np.float64],
    resolution: float,
    seed: int,
) -> Ints:
    """Return the community of each node, int64 (num_nodes,)."""
    igraph = require("igraph", extra="cpu")
    graph = igraph.Graph(n=num_nodes, edges=np.stack([first, second], axis=1).tolist())
    igraph.set_random_number_generator(random.Random(seed))
    try:
        found = graph.community_leiden(
            objective_function="modularity", weights=weight.tolist(), resolution=resolution, n_iterations=-1
        )
    finally:
        igraph.set_random_number_generator(random)  # its default
    return np.asarray(found.membership, dtype=np.int64)
