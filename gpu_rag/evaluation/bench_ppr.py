"""Benchmark of personalized PageRank: ours in a batch against igraph one query at a time, and other peers, in one run.

Pairs are measured one right after the other, since a machine's speed drifts; their ratios' median is reported. The same run
compares the scores with igraph's, and the time with what the machine allows (`roofline`).
"""

from __future__ import annotations

import os
import resource
import sys
from functools import partial
from importlib import metadata
from statistics import median
from typing import Any

import numpy as np
import torch

from gpu_rag.evaluation.bench_graphs import WalkCase, generated_walk
from gpu_rag.evaluation.bench_peers import SINGLE_QUERIES, IgraphWalk, measure_peers
from gpu_rag.evaluation.roofline import cpu_model, measure_machine, power_fit, seconds, share_of_roofline
from gpu_rag.graph import EdgeGates, personalized_pagerank

TOP = 20
EXACT_TOL = 1e-10  # of the comparison in float64
_CHECKED_AT_ONCE = 16
_GATED_QUERIES = 64
_NUM_GATES = 1024
_SCALING_PARTS = (4.0, 2.5, 1.6, 1.0)


def bench_walk(case: WalkCase, *, damping: float, tol: float, pairs: int, checked: int) -> dict[str, Any]:
    """Return figures of one case: seconds a query, ratios, agreement with igraph, share of the roofline.

    Args:
        case: Graph and resets; all of them are one batch.
        damping: In [0, 1).
        tol: Bound of the L1 error of ours.
        pairs: Of measurements.
        checked: Resets whose scores are compared with igraph's, at most.

    Raises:
        MissingDependencyError: If igraph is not installed; other peers are skipped instead.
    """
    graph, top_k = case.graph, min(TOP, case.passages[1] - case.passages[0])
    ours = partial(
        personalized_pagerank, graph, case.resets, damping=damping, tol=tol, top_range=case.passages, top_k=top_k
    )  # fmt: skip
    load = os.getloadavg()[0]
    prepared = seconds(ours)
    result = ours()
    peak_of_ours = peak_rss_bytes()  # graph and resets among it; peers may need more
    peer = IgraphWalk(graph, damping)
    measured = []
    for number in range(pairs):
        places = [(number * SINGLE_QUERIES + place) % case.num_queries for place in range(SINGLE_QUERIES)]
        rows = [case.rows(place, place + 1)[0].numpy() for place in places]
        mine = seconds(ours) / case.num_queries
        measured.append((mine, seconds(partial(_each, peer, rows)) / len(rows)))
    mine = median(one for one, _ in measured)
    machine = measure_machine(graph.num_nodes, graph.num_edges)
    return {
        "case": case.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges // 2,
        "queries": case.num_queries,
        "damping": damping,
        "tol": tol,
        "first_call_seconds": prepared,
        "ours_peak_rss_bytes": peak_of_ours,
        "pairs": [{"ours_s_per_query": one, "igraph_s_per_query": other} for one, other in measured],
        "ours_us_per_query": 1e6 * mine,
        "igraph_us_per_query": 1e6 * median(other for _, other in measured),
        "ratio_to_igraph": median(other / one for one, other in measured),
        "flagged": int((result.flags != 0).sum()),
        "peers": measure_peers(case, damping, tol),
        "gated": gated(case, damping, tol, pairs),
        "agreement": agreement(case, peer, damping, tol, min(checked, case.num_queries)),
        "roofline": share_of_roofline(graph, float(result.iterations.double().mean()), mine, machine),
    } | surroundings(load)


def surroundings(load: float) -> dict[str, Any]:
    """Return where figures come from: processor, threads, versions, load before and after, largest memory of the process."""
    return {
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "versions": {name: metadata.version(name) for name in ("torch", "numba", "numpy", "scipy", "igraph")},
        "load": [load, os.getloadavg()[0]],
        "peak_rss_bytes": peak_rss_bytes(),
    }


def peak_rss_bytes() -> int:
    """Return the largest resident memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _each(peer: IgraphWalk, rows: list[np.ndarray]) -> None:
    for row in rows:
        peer.scores(row)


def agreement(case: WalkCase, peer: IgraphWalk, damping: float, tol: float, checked: int) -> dict[str, Any]:
    """Return L1 distances to igraph in float32 and, at `EXACT_TOL`, float64, and whether the same passages rank on top.

    Two rankings are the same up to ties if igraph's scores of the passages, rank by rank, differ by no more than twice the
    bound of our error.
    """
    lo, hi = case.passages
    top_k = min(TOP, hi - lo)
    single, double, same_top, not_finite = [], [], 0, 0
    for start in range(0, checked, _CHECKED_AT_ONCE):
        rows = case.rows(start, min(start + _CHECKED_AT_ONCE, checked))
        theirs = np.stack([peer.scores(row) for row in rows.numpy()])
        scores = personalized_pagerank(case.graph, rows, damping=damping, tol=tol).scores
        exact = personalized_pagerank(case.graph, rows.double(), damping=damping, tol=EXACT_TOL).scores
        tops = personalized_pagerank(case.graph, rows, damping=damping, tol=tol, top_range=(lo, hi), top_k=top_k)
        assert scores is not None
        assert exact is not None
        assert tops.top_indices is not None
        assert tops.top_counts is not None
        single += np.abs(scores.double().numpy() - theirs).sum(axis=1).tolist()
        double += np.abs(exact.numpy() - theirs).sum(axis=1).tolist()
        not_finite += int((~torch.isfinite(scores)).sum() + (~torch.isfinite(exact)).sum())
        for top, count, reference in zip(tops.top_indices.numpy(), tops.top_counts.tolist(), theirs, strict=True):
            same_top += same_up_to_ties(top[:count], reference, lo, hi, top_k, 2 * tol)
    return {
        "resets": checked,
        "l1_float32": {"max": max(single), "median": median(single)},
        "l1_float64": {"max": max(double), "median": median(double)},
        "same_top_up_to_ties": same_top,
        "top": top_k,
        "not_finite": not_finite,
    }


def same_up_to_ties(top: np.ndarray, reference: np.ndarray, lo: int, hi: int, top_k: int, margin: float) -> bool:
    """Return whether the reference's scores (N,) of a ranking of [lo, hi) are, rank by rank, its best, up to the margin.

    A ranking with fewer than top_k nodes is right if the reference gives what is missing no more than the margin.
    """
    best = np.sort(reference[lo:hi])[::-1][:top_k]
    ours = np.zeros(top_k)
    ours[: len(top)] = reference[top]
    return len(set(top.tolist())) == len(top) and bool((np.abs(ours - best) <= margin).all())


def gated(case: WalkCase, damping: float, tol: float, pairs: int) -> dict[str, float]:
    """Return what a gate on every edge and node costs: the ratio to the walk without, its gates' making left out.

    A gate for every edge, B x E in all, is more than memory holds; `_NUM_GATES` are shared here.
    """
    graph = case.graph
    rows = case.rows(0, min(_GATED_QUERIES, case.num_queries))
    random = torch.Generator().manual_seed(0)
    starts = torch.repeat_interleave(torch.arange(graph.num_nodes), torch.diff(graph.indptr))
    ends = graph.indices.long()
    of_edge = ((torch.minimum(starts, ends) * 31 + torch.maximum(starts, ends) * 17) % _NUM_GATES).int()
    gate = EdgeGates(
        of_edge,
        torch.exp(torch.rand((len(rows), _NUM_GATES), generator=random)),
        torch.exp(torch.rand((len(rows), graph.num_nodes), generator=random)),
    )
    options: dict[str, Any] = {"damping": damping, "tol": tol, "top_range": case.passages, "top_k": 1}
    plain = partial(personalized_pagerank, graph, rows, **options)
    other = partial(personalized_pagerank, graph, rows, gate=gate, **options)
    plain(), other()  # once, not counted
    measured = [(seconds(plain), seconds(other)) for _ in range(pairs)]
    return {
        "us_per_query": 1e6 * median(slow for _, slow in measured) / len(rows),
        "ratio_to_ungated": median(slow / fast for fast, slow in measured),
    }


def bench_scaling(*, damping: float, tol: float, skew: float, seed: int, largest: int, num_queries: int) -> dict[str, Any]:
    """Return seconds over nodes, edges and queries on generated graphs, and the exponents of their growth.

    What fits a cache runs faster than what does not: graphs go from a quarter of the largest to it, to stay on one side of
    a cache as far as that allows. Over nodes, edges grow with them.

    Args:
        damping: In [0, 1).
        tol: Bound of the L1 error.
        skew: Of the graphs, see `bench_graphs.power_law_edges`.
        seed: Of the graphs.
        largest: Edges drawn of the largest graph; it has a tenth as many nodes.
        num_queries: Of the series over nodes and edges, and at most of that over queries.
    """
    nodes = max(1, largest // 10)
    drawn = [max(1, int(largest / part)) for part in _SCALING_PARTS]
    counts = [max(1, int(num_queries / part)) for part in _SCALING_PARTS]
    series: dict[str, list[tuple[int, int, list[int]]]] = {
        "edges": [(nodes, edges, [num_queries]) for edges in drawn],
        "nodes": [(max(1, edges // 10), edges, [num_queries]) for edges in drawn],
        "queries": [(nodes, largest, counts)],
    }
    found: dict[str, Any] = {}
    for name, sizes in series.items():
        points = []
        for num_nodes, num_edges, query_counts in sizes:
            largest_case = generated_walk(
                num_nodes, num_edges, num_queries=max(query_counts), skew=skew, seed=seed, num_passages=num_nodes // 100
            )
            points += [_point(largest_case.first(queries), damping, tol) for queries in query_counts]
        fit = power_fit([float(point[name]) for point in points], [point["seconds"] for point in points])
        found[name] = {"points": points} | fit
    return found


def _point(case: WalkCase, damping: float, tol: float) -> dict[str, Any]:
    """Return one measurement: a series is long, so each stands for itself."""
    run = partial(personalized_pagerank, damping=damping, tol=tol, top_range=case.passages, top_k=TOP)
    prepared = seconds(partial(run, case.graph, case.first(1).resets))
    found: list[Any] = []
    taken = seconds(lambda: found.append(run(case.graph, case.resets)))
    result = found[0]
    return {
        "nodes": case.graph.num_nodes,
        "edges": case.graph.num_edges // 2,
        "queries": case.num_queries,
        "seconds": taken,
        "first_call_seconds": prepared,
        "flagged": int((result.flags != 0).sum()),
        "not_finite": int((~torch.isfinite(result.top_scores)).sum()),
        "sweeps": float(result.iterations.double().mean()),
        "peak_rss_bytes": peak_rss_bytes(),
    }
