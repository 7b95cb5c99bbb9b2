"""Benchmark of spreading activation: ours in a batch against the authors' algorithm in plain Python and numpy, in one run.

Subgraph and cosines are included on both sides. Pairs are measured one right after the other; their ratios' median is
reported.
"""

from __future__ import annotations

import os
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from gpu_rag_kernels import activation_reference as reference

from gpu_rag.evaluation.bench_graphs import ActivationCase
from gpu_rag.evaluation.bench_ppr import peak_rss_bytes
from gpu_rag.evaluation.roofline import median_seconds, seconds
from gpu_rag.graph import ActivationResult, spread_activation

PEER_QUERIES = 16  # that one measurement of the peer takes
LEVEL_CHECKED = 50  # queries compared with the level-synchronous reference, which goes through the whole graph


def bench_spreading(
    case: ActivationCase, *, hops: int, c: float, tau_a: float, follow: str, pairs: int, checked: int
) -> dict[str, Any]:
    """Return figures of one case: seconds a query in both orders, ratios, agreement with the references.

    Args:
        case: Arcs, seeds and vectors; all queries are one batch.
        hops: How far a subgraph reaches.
        c: Rescaling constant.
        tau_a: Activation threshold.
        follow: "both" or "outgoing".
        pairs: Of measurements.
        checked: Queries that are compared.
    """
    queries, arcs = torch.from_numpy(np.array(case.query_vectors)), torch.from_numpy(np.array(case.arc_vectors))
    options: dict[str, Any] = {"hops": hops, "c": c, "follow": follow}
    of_query = [part.tolist() for part in torch.tensor_split(case.seeds.nodes, case.seeds.indptr[1:-1])]
    plain = reference.adjacency(case.graph.num_nodes, case.graph.source.tolist(), case.graph.target.tolist())

    def peer(query: int) -> dict[int, float]:
        return reference.sequential_scores(
            plain, of_query[query], query_vector=case.query_vectors[query], arc_vectors=case.arc_vectors, **options
        )

    num_queries = len(of_query)
    load = os.getloadavg()[0]
    orders = {}
    for order in ("level", "sequential"):
        run = partial(
            spread_activation, case.graph, case.seeds, query_vectors=queries, arc_vectors=arcs, order=order, tau_a=tau_a, **options
        )
        result: ActivationResult = run()
        measured = []
        for number in range(pairs):
            chosen = [(number * PEER_QUERIES + place) % num_queries for place in range(PEER_QUERIES)]
            mine = seconds(run) / num_queries
            measured.append((mine, seconds(lambda chosen=chosen: [peer(query) for query in chosen]) / len(chosen)))
        weights = torch.from_numpy(reference.arc_weights((queries @ arcs.T).numpy(), c))
        given = partial(spread_activation, case.graph, case.seeds, arc_weights=weights, order=order, tau_a=tau_a, **options)
        orders[order] = {
            "us_per_query": 1e6 * median(one for one, _ in measured),
            "authors_us_per_query": 1e6 * median(other for _, other in measured),
            "ratio_to_authors": median(other / one for one, other in measured),
            "pairs": [{"ours_s_per_query": one, "authors_s_per_query": other} for one, other in measured],
            "nodes_seen": float(result.num_nodes_seen.double().mean()),
            "arcs_weighed": float(result.num_arcs_weighed.double().mean()),
            "cosines_us_per_query": _cosines_us(result, case),
            "all_cosines_by_product_us_per_query": 1e6 * median_seconds(lambda: queries @ arcs.T, 3) / num_queries,
            "activated": float(result.nodes.numel() / max(1, num_queries)),
            "agreement": _agreement(given(), case, of_query, weights, order, tau_a, options, min(checked, num_queries)),
        }
    return {
        "case": case.name,
        "nodes": case.graph.num_nodes,
        "arcs": case.graph.num_arcs,
        "queries": num_queries,
        "hops": hops,
        "c": c,
        "tau_a": tau_a,
        "follow": follow,
        "orders": orders,
        "threads": torch.get_num_threads(),
        "load": [load, os.getloadavg()[0]],
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _cosines_us(result: ActivationResult, case: ActivationCase) -> float:
    """Return what the cosines take by themselves: as many products of random arcs with one query."""
    random = np.random.default_rng(0)
    count = max(1, round(float(result.num_arcs_weighed.double().mean())))
    chosen = random.integers(0, case.graph.num_arcs, (64, count))
    return 1e6 * median_seconds(lambda: [case.arc_vectors[arcs] @ case.query_vectors[0] for arcs in chosen], 3) / len(chosen)


def _agreement(
    result: ActivationResult, case: ActivationCase, of_query: list[list[int]], weights: torch.Tensor, order: str, tau_a: float,
    options: dict[str, Any], checked: int,
) -> dict[str, Any]:  # fmt: skip
    """Return how many queries equal the reference of their order on the same weights, and the Jaccard index of the sets.

    The sets of both orders are compared with the sequential reference's.
    """
    graph = case.graph
    plain = reference.adjacency(graph.num_nodes, graph.source.tolist(), graph.target.tolist())
    equal, jaccards, largest = 0, [], 0.0
    for query in range(checked):
        part = slice(int(result.indptr[query]), int(result.indptr[query + 1]))
        ours = dict(zip(result.nodes[part].tolist(), result.scores[part].tolist(), strict=True))
        sequential = reference.sequential_scores(
            plain, of_query[query], weights=weights[query].numpy(), hops=options["hops"], c=0.0, follow=options["follow"]
        )
        expected = {node: score for node, score in sorted(sequential.items()) if score > tau_a}
        union = ours.keys() | expected.keys()
        jaccards.append(len(ours.keys() & expected.keys()) / len(union) if union else 1.0)
        if order == "level" and query < LEVEL_CHECKED:
            scores, _ = reference.level_scores(
                graph.num_nodes, graph.source, graph.target, of_query[query], weights[query], options["hops"], options["follow"]
            )
            expected = {node: float(scores[node]) for node in torch.nonzero(scores > tau_a).flatten().tolist()}
            differences = [abs(score - expected.get(node, 0.0)) for node, score in ours.items()]
            largest = max(largest, *differences, 0.0) if differences else largest
            equal += list(ours) == list(expected) and largest <= 1e-6
        elif order == "sequential":
            equal += ours == expected
    return {
        "compared": min(checked, LEVEL_CHECKED) if order == "level" else checked,
        "equal": equal,
        "largest_difference": largest,
        "jaccard_to_authors": {"mean": mean(jaccards), "min": min(jaccards)},
    }
