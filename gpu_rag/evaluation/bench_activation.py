"""Benchmark of spreading activation: ours in a batch against the authors' algorithm in plain Python and numpy, in one run.

Subgraph and cosines are included on both sides. Pairs are measured one right after the other; their ratios' median is
reported. The cosines are measured by themselves too: products of as many arcs' vectors with the query's.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import mean, median
from typing import Any, Literal

import numpy as np
import torch
from gpu_rag_kernels import activation_reference as reference

from gpu_rag.evaluation.bench_graphs import ActivationCase
from gpu_rag.evaluation.bench_ppr import surroundings
from gpu_rag.evaluation.roofline import median_seconds, seconds
from gpu_rag.graph import ActivationResult, SeedLists, spread_activation
from gpu_rag.graph.activation import Order

PEER_QUERIES = 16  # that one measurement of the peer takes
LEVEL_CHECKED = 50  # queries compared with the level-synchronous reference, which goes through the whole graph
LEVEL_MARGIN = 1e-6  # the order in which the two add up in float64 is not the same
_PRODUCT_REPEATS = 3

Follow = Literal["both", "outgoing"]


@dataclass(frozen=True, eq=False)
class Spreading:
    """One case with its settings, by ours and by the authors' algorithm.

    Attributes:
        case: Arcs, seeds and vectors of B queries.
        hops: How far a subgraph reaches.
        c: Rescaling constant.
        tau_a: Activation threshold.
        follow: Which way the subgraph follows arcs.
    """

    case: ActivationCase
    hops: int
    c: float
    tau_a: float
    follow: Follow

    @cached_property
    def vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of the queries and of the arcs."""
        return torch.from_numpy(np.array(self.case.query_vectors)), torch.from_numpy(np.array(self.case.arc_vectors))

    @cached_property
    def weights(self) -> torch.Tensor:
        """float32 (B, A), of every arc for every query."""
        queries, arcs = self.vectors
        return torch.from_numpy(reference.arc_weights((queries @ arcs.T).numpy(), self.c))

    @cached_property
    def seeds(self) -> list[list[int]]:
        """Of each query."""
        return [part.tolist() for part in torch.tensor_split(self.case.seeds.nodes, self.case.seeds.indptr[1:-1])]

    @cached_property
    def adjacency(self) -> reference.Adjacency:
        """The arcs as the authors' algorithm reads them."""
        graph = self.case.graph
        return reference.adjacency(graph.num_nodes, graph.source.tolist(), graph.target.tolist())

    def ours(self, order: Order, *, weighed: bool = False, count: int | None = None) -> ActivationResult:
        """Return what ours finds for all queries, or the first ones, from vectors or from given weights."""
        lists = self.case.seeds
        if count is not None:
            lists = SeedLists(lists.indptr[: count + 1], lists.nodes[: int(lists.indptr[count])])
        count = lists.num_queries
        queries, arcs = self.vectors
        given: dict[str, Any] = {"query_vectors": queries[:count], "arc_vectors": arcs}
        if weighed:
            given = {"arc_weights": self.weights[:count]}
        return spread_activation(
            self.case.graph, lists, hops=self.hops, c=self.c, tau_a=self.tau_a, order=order, follow=self.follow, **given
        )

    def arcs_of(self, query: int) -> np.ndarray:
        """Return the arcs of one query's subgraph, ascending; the authors' algorithm takes the cosine of each."""
        inside = np.zeros(self.case.graph.num_nodes, np.bool_)
        inside[list(reference.subgraph(self.adjacency, self.seeds[query], self.hops, self.follow))] = True
        source, target = self.case.graph.source.numpy(), self.case.graph.target.numpy()
        return np.flatnonzero(inside[source] & inside[target] & (source != target))

    def authors(self, query: int, *, weighed: bool = False) -> dict[int, float]:
        """Return the score of every node of one query's subgraph by the authors' algorithm."""
        given: dict[str, Any] = {"query_vector": self.case.query_vectors[query], "arc_vectors": self.case.arc_vectors}
        if weighed:
            given = {"weights": self.weights[query].numpy()}
        return reference.sequential_scores(
            self.adjacency, self.seeds[query], hops=self.hops, c=self.c, follow=self.follow, **given
        )

    def authors_of(self, queries: list[int]) -> None:
        """Run these queries one after the other."""
        for query in queries:
            self.authors(query)

    def level(self, query: int) -> dict[int, float]:
        """Return the scores of the activated nodes of one query, level by level in float64, from given weights."""
        graph = self.case.graph
        scores, _ = reference.level_scores(
            graph.num_nodes, graph.source, graph.target, self.seeds[query], self.weights[query], self.hops, self.follow
        )
        return {node: float(scores[node]) for node in torch.nonzero(scores > self.tau_a).flatten().tolist()}

    def above(self, scores: dict[int, float]) -> dict[int, float]:
        """Return the activated nodes among these."""
        return {node: score for node, score in sorted(scores.items()) if score > self.tau_a}


def bench_spreading(
    case: ActivationCase, *, hops: int, c: float, tau_a: float, follow: Follow, pairs: int, checked: int
) -> dict[str, Any]:
    """Return figures of one case: seconds a query in both orders, ratios, agreement with the references.

    Args:
        case: Arcs, seeds and vectors; all queries are one batch.
        hops: How far a subgraph reaches.
        c: Rescaling constant.
        tau_a: Activation threshold.
        follow: "both" or "outgoing".
        pairs: Of measurements.
        checked: Queries that are compared, at most.
    """
    task = Spreading(case, hops, c, tau_a, follow)
    num_queries = case.seeds.num_queries
    checked = min(checked, num_queries)
    load = os.getloadavg()[0]
    queries, arcs = task.vectors
    orders: tuple[Order, ...] = ("level", "sequential")
    timed = {order: _timed(task, order, pairs) for order in orders}
    authors = [task.above(task.authors(query)) for query in range(checked)]
    return {
        "case": case.name,
        "nodes": case.graph.num_nodes,
        "arcs": case.graph.num_arcs,
        "queries": num_queries,
        "seeds": float(case.seeds.nodes.numel() / num_queries),
        "hops": hops,
        "c": c,
        "tau_a": tau_a,
        "follow": follow,
        "orders": {order: timed[order] | {"agreement": agreement(task, order, authors)} for order in orders},
        "all_cosines_by_product_us_per_query": 1e6 * median_seconds(lambda: queries @ arcs.T, _PRODUCT_REPEATS) / num_queries,
    } | surroundings(load)


def _timed(task: Spreading, order: Order, pairs: int) -> dict[str, Any]:
    """Return medians of pairs, what the cosines take alone, and what of the graph was needed."""
    result = task.ours(order)
    task.authors(0)  # what is prepared once is kept from here on
    num_queries = task.case.seeds.num_queries
    measured = []
    for number in range(pairs):
        chosen = [(number * PEER_QUERIES + place) % num_queries for place in range(PEER_QUERIES)]
        measured.append(
            {
                "ours_s_per_query": seconds(partial(task.ours, order)) / num_queries,
                "authors_s_per_query": seconds(partial(task.authors_of, chosen)) / len(chosen),
            }
        )
    ratios = [pair["authors_s_per_query"] / pair["ours_s_per_query"] for pair in measured]
    return {
        "pairs": measured,
        "us_per_query": 1e6 * median(pair["ours_s_per_query"] for pair in measured),
        "authors_us_per_query": 1e6 * median(pair["authors_s_per_query"] for pair in measured),
        "ratio_to_authors": median(ratios),
        "cosines_us_per_query": cosines_alone(task, result),
        "nodes_seen": float(result.num_nodes_seen.double().mean()),
        "arcs_weighed": float(result.num_arcs_weighed.double().mean()),
        "arcs_of_subgraph": mean(len(task.arcs_of(query)) for query in range(min(PEER_QUERIES, num_queries))),
        "activated": float(result.nodes.numel() / num_queries),
        "flagged": int((result.flags != 0).sum()),
    }


def cosines_alone(task: Spreading, result: ActivationResult) -> dict[str, float]:
    """Return microseconds a query that numpy takes for the cosines that ours needed and for the authors'.

    Ours needs some of the arcs that the authors take; here they are spread evenly over those.
    """
    products: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"ours": [], "authors": []}
    for query in range(min(PEER_QUERIES, task.case.seeds.num_queries)):
        arcs, needed = task.arcs_of(query), int(result.num_arcs_weighed[query])
        spread = arcs[np.linspace(0, len(arcs), needed, endpoint=False).astype(np.int64)]
        products["ours"].append((spread, task.case.query_vectors[query]))
        products["authors"].append((arcs, task.case.query_vectors[query]))

    def multiply(side: str) -> None:
        for arcs, vector in products[side]:
            task.case.arc_vectors[arcs] @ vector

    return {
        side: 1e6 * median_seconds(partial(multiply, side), _PRODUCT_REPEATS) / len(entries)
        for side, entries in products.items()
    }


def agreement(task: Spreading, order: Order, authors: list[dict[int, float]]) -> dict[str, Any]:
    """Return how many queries equal their order's reference on the same weights, and how near the sets are to the authors'.

    Args:
        task: What was measured.
        order: "sequential" must be equal exactly, "level" have the same nodes with scores within `LEVEL_MARGIN`.
        authors: Activated nodes of the first queries by the authors' algorithm, from its own cosines.
    """
    checked = len(authors)
    compared = min(checked, LEVEL_CHECKED) if order == "level" else checked
    equal, largest = 0, 0.0
    for query, ours in enumerate(_by_query(task.ours(order, weighed=True, count=compared))):
        expected = task.level(query) if order == "level" else task.above(task.authors(query, weighed=True))
        differences = [abs(ours.get(node, 0.0) - expected.get(node, 0.0)) for node in ours.keys() | expected.keys()]
        difference = max(differences, default=0.0)
        equal += ours.keys() == expected.keys() and difference <= (LEVEL_MARGIN if order == "level" else 0.0)
        largest = max(largest, difference)
    found = _by_query(task.ours(order, count=checked))
    jaccards = [jaccard(set(ours), set(theirs)) for ours, theirs in zip(found, authors, strict=True)]
    return {
        "compared": compared,
        "equal": equal,
        "largest_difference": largest,
        "jaccard_to_authors": {"queries": checked, "mean": mean(jaccards), "min": min(jaccards)},
    }


def jaccard(left: set[int], right: set[int]) -> float:
    """Return the share of what is in both in what is in either; 1 if both are empty."""
    return len(left & right) / len(left | right) if left | right else 1.0


def _by_query(result: ActivationResult) -> list[dict[int, float]]:
    """Return the scores by node of each query."""
    bounds = result.indptr.tolist()
    return [
        dict(zip(result.nodes[start:stop].tolist(), result.scores[start:stop].tolist(), strict=True))
        for start, stop in itertools.pairwise(bounds)
    ]
