"""Benchmark of personalized PageRank: ours in a batch against igraph one query at a time, and other peers, in one run.

Pairs are measured one right after the other, since a machine's speed drifts; their ratios' median is reported. The same run
compares the scores with igraph's, and the time with what the machine allows (`roofline`).
"""

from __future__ import annotations

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from gpu_rag.errors import MissingDependencyError
from gpu_rag.evaluation.bench_graphs import WalkCase, generated_walk
from gpu_rag.evaluation.roofline import measure_machine, median_seconds, power_fit, seconds, share_of_roofline
from gpu_rag.graph import CsrGraph, EdgeGates, personalized_pagerank
from gpu_rag.graph.pagerank import num_sweeps

IGRAPH_QUERIES = 8  # that one measurement of the peer takes
TOP = 20
_PEER_REPEATS = 3


def bench_walk(case: WalkCase, *, damping: float, tol: float, pairs: int, checked: int) -> dict[str, Any]:
    """Return figures of one case: seconds a query, ratios, agreement with igraph, share of the roofline.

    Args:
        case: Graph and resets; all of them are one batch.
        damping: In [0, 1).
        tol: Bound of the L1 error of ours.
        pairs: Of measurements.
        checked: Resets whose scores are compared with igraph's.
    """
    graph, resets = case.graph, torch.from_numpy(case.resets)
    top_k = min(TOP, case.passages[1] - case.passages[0])
    ours = partial(personalized_pagerank, graph, resets, damping=damping, tol=tol, top_range=case.passages, top_k=top_k)
    peer = IgraphWalk(graph, damping)
    load = os.getloadavg()[0]
    prepared = seconds(ours)
    result = ours()
    measured = []
    for number in range(pairs):
        rows = [(number * IGRAPH_QUERIES + place) % len(resets) for place in range(IGRAPH_QUERIES)]
        mine = seconds(ours) / len(resets)
        measured.append((mine, seconds(lambda rows=rows: [peer.scores(case.resets[row]) for row in rows]) / len(rows)))
    mine = median(one for one, _ in measured)
    machine = measure_machine(graph.num_nodes)
    return {
        "case": case.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges // 2,
        "queries": len(resets),
        "damping": damping,
        "tol": tol,
        "first_call_seconds": prepared,
        "pairs": [{"ours_s_per_query": one, "igraph_s_per_query": other} for one, other in measured],
        "ours_us_per_query": 1e6 * mine,
        "igraph_us_per_query": 1e6 * median(other for _, other in measured),
        "ratio_to_igraph": median(other / one for one, other in measured),
        "flagged": int((result.flags != 0).sum()),
        "peers_us_per_query": peers(case, damping, tol),
        "gated": gated(case, damping, tol, pairs),
        "agreement": agreement(case, peer, damping, tol, min(checked, len(resets))),
        "roofline": share_of_roofline(graph, float(result.iterations.double().mean()), mine, machine),
        "threads": torch.get_num_threads(),
        "load": [load, os.getloadavg()[0]],
        "peak_rss_bytes": peak_rss_bytes(),
    }


class IgraphWalk:
    """igraph's personalized PageRank (prpack), as HippoRAG 2 calls it: one query after the other."""

    def __init__(self, graph: CsrGraph, damping: float) -> None:
        """Build igraph's graph of an undirected one of ours.

        Raises:
            MissingDependencyError: If igraph is not installed.
        """
        try:
            import igraph
        except ImportError as error:
            raise MissingDependencyError(f"igraph is not installed ({error}): pip install 'gpu-rag[bench]'") from error
        rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
        columns, weights = graph.indices.numpy(), graph.weights.double().numpy()
        upper = rows <= columns
        halved = np.where(rows == columns, 0.5, 1.0)  # a loop is stored with twice its weight, as it counts
        self._weights = (weights * halved)[upper].tolist()
        self._graph = igraph.Graph(graph.num_nodes, np.stack([rows[upper], columns[upper]], axis=1).tolist())
        self._damping = damping

    def scores(self, reset: np.ndarray) -> list[float]:
        """Return the scores of one query; reset is (N,)."""
        found: list[float] = self._graph.personalized_pagerank(
            reset=reset.tolist(), damping=self._damping, weights=self._weights, implementation="prpack", directed=False
        )
        return found


def agreement(case: WalkCase, peer: IgraphWalk, damping: float, tol: float, checked: int) -> dict[str, Any]:
    """Return L1 distances to igraph in float32 and, at tol 1e-10, float64, and whether the same passages rank on top.

    Two rankings are the same up to ties if igraph's scores of the passages, rank by rank, differ by no more than twice the
    bound of our error.
    """
    lo, hi = case.passages
    rows = torch.from_numpy(case.resets[:checked])
    singles = personalized_pagerank(case.graph, rows, damping=damping, tol=tol)
    doubles = personalized_pagerank(case.graph, rows.double(), damping=damping, tol=1e-10)
    top_k = min(TOP, hi - lo)
    tops = personalized_pagerank(case.graph, rows, damping=damping, tol=tol, top_range=(lo, hi), top_k=top_k)
    assert singles.scores is not None
    assert doubles.scores is not None
    assert tops.top_indices is not None
    distances, distances_double, same_top = [], [], 0
    for query in range(checked):
        theirs = np.array(peer.scores(case.resets[query]))
        distances.append(float(np.abs(singles.scores[query].double().numpy() - theirs).sum()))
        distances_double.append(float(np.abs(doubles.scores[query].numpy() - theirs).sum()))
        ours = theirs[tops.top_indices[query].numpy()]
        best = np.sort(theirs[lo:hi])[::-1][:top_k]
        same_top += bool((np.abs(ours - best) <= 2 * tol).all())
    return {
        "resets": checked,
        "l1_float32": {"max": max(distances), "median": median(distances)},
        "l1_float64": {"max": max(distances_double), "median": median(distances_double)},
        "same_top_up_to_ties": same_top,
        "top": top_k,
        "not_finite": int((~torch.isfinite(singles.scores)).sum()),
    }


def gated(case: WalkCase, damping: float, tol: float, pairs: int) -> dict[str, float]:
    """Return what a gate on every edge and node costs: the ratio to the walk without, its gates' making left out.

    A gate an edge of the first node range would have, B x G in all, is more than memory holds; 1,024 are shared here.
    """
    rows = torch.from_numpy(case.resets[: min(64, len(case.resets))])
    random = torch.Generator().manual_seed(0)
    num_gates = 1024
    starts = torch.repeat_interleave(torch.arange(case.graph.num_nodes), torch.diff(case.graph.indptr))
    ends = case.graph.indices.long()
    of_edge = ((torch.minimum(starts, ends) * 31 + torch.maximum(starts, ends) * 17) % num_gates).int()
    gate = EdgeGates(
        of_edge,
        torch.exp(torch.rand((len(rows), num_gates), generator=random)),
        torch.exp(torch.rand((len(rows), case.graph.num_nodes), generator=random)),
    )
    options: dict[str, Any] = {"damping": damping, "tol": tol, "top_range": case.passages, "top_k": 1}
    plain = partial(personalized_pagerank, case.graph, rows, **options)
    other = partial(personalized_pagerank, case.graph, rows, gate=gate, **options)
    plain(), other()  # once, not counted
    measured = [(seconds(plain), seconds(other)) for _ in range(pairs)]
    return {
        "us_per_query": 1e6 * median(slow for _, slow in measured) / len(rows),
        "ratio_to_ungated": median(slow / fast for fast, slow in measured),
    }


def peers(case: WalkCase, damping: float, tol: float) -> dict[str, Any]:
    """Return microseconds a query of other ways to the same scores, or why one was not measured."""
    graph, batch = case.graph, torch.from_numpy(case.resets)
    sweeps = num_sweeps(damping, tol)
    normalised = batch / batch.sum(dim=1, keepdim=True).clamp(min=1e-30)
    found: dict[str, Any] = {}
    for name, run in (
        ("torch_sparse", partial(_torch_sparse, graph, normalised, damping, sweeps)),
        ("scipy_batch", partial(_scipy, graph, normalised.numpy(), damping, sweeps)),
        ("scipy_one_by_one", partial(_scipy_one_by_one, graph, normalised.numpy()[:IGRAPH_QUERIES], damping, sweeps)),
        ("pyg_single_seeds_unweighted", partial(_pyg, graph, IGRAPH_QUERIES, damping, tol)),
    ):
        try:
            queries = run()()
            found[name] = 1e6 * median_seconds(run(), _PEER_REPEATS) / queries
        except MissingDependencyError as error:
            found[name] = str(error)
    return found


def _torch_sparse(graph: CsrGraph, resets: torch.Tensor, damping: float, sweeps: int) -> Callable[[], int]:
    """Return power iteration by torch's sparse product, float32, the whole batch at once."""
    walk = graph.transition(torch.float32)
    with warnings.catch_warnings():  # torch says once that sparse CSR is beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        matrix = torch.sparse_csr_tensor(
            walk.indptr, walk.indices.long(), walk.probabilities, size=(graph.num_nodes, graph.num_nodes)
        )
    start = resets.T.contiguous()

    def run() -> int:
        x = start
        for _ in range(sweeps):
            x = damping * (matrix @ x) + (1.0 - damping) * start
        return len(resets)

    return run


def _scipy(graph: CsrGraph, resets: np.ndarray, damping: float, sweeps: int) -> Callable[[], int]:
    """Return power iteration by scipy's sparse product, float32."""
    from scipy.sparse import csr_array

    walk = graph.transition(torch.float32)
    size = (graph.num_nodes, graph.num_nodes)
    matrix = csr_array((walk.probabilities.numpy(), walk.indices.numpy(), walk.indptr.numpy()), shape=size)
    start = np.ascontiguousarray(resets.T)

    def run() -> int:
        x = start
        for _ in range(sweeps):
            x = damping * (matrix @ x) + (1.0 - damping) * start
        return len(resets)

    return run


def _scipy_one_by_one(graph: CsrGraph, resets: np.ndarray, damping: float, sweeps: int) -> Callable[[], int]:
    """Return the sequential reference: the same, one query after the other."""
    runs = [_scipy(graph, reset[None], damping, sweeps) for reset in resets]
    return lambda: sum(run() for run in runs)


def _pyg(graph: CsrGraph, num_queries: int, damping: float, tol: float) -> Callable[[], int]:
    """Return PyTorch Geometric's PPR from single seeds, as it has no other and reads no weights."""
    from gpu_rag.engines.pyg import pyg_pagerank

    connected = torch.nonzero(~graph.dangling).flatten().numpy()
    seeds = connected[:: max(1, len(connected) // num_queries)][:num_queries]

    def run() -> int:
        pyg_pagerank(graph, seeds, damping=damping, eps=tol / max(1, graph.num_edges))
        return len(seeds)

    return run


def bench_scaling(*, damping: float, tol: float, skew: float, seed: int, largest: int, num_queries: int) -> dict[str, Any]:
    """Return seconds over nodes, edges and queries on generated graphs, and the exponents of their growth.

    Args:
        damping: In [0, 1).
        tol: Bound of the L1 error.
        skew: Of the graphs, see `bench_graphs.power_law_edges`.
        seed: Of the graphs.
        largest: Edges drawn of the largest graph; it has a tenth as many nodes.
        num_queries: Of the series over nodes and edges; the one over queries goes up to four times as many.
    """
    # What fits a cache runs faster than what does not: the series stay on one side of it, as far as `largest` allows.
    nodes = largest // 10
    series: dict[str, list[tuple[int, int, int]]] = {
        "edges": [(nodes, largest // part, num_queries) for part in (4, 2, 1)],
        "nodes": [(nodes // part, largest // part, num_queries) for part in (4, 2, 1)],
        "queries": [(nodes, largest, queries) for queries in (num_queries, 2 * num_queries, 4 * num_queries)],
    }
    found: dict[str, Any] = {}
    for name, sizes in series.items():
        points = []
        for num_nodes, num_edges, queries in sizes:
            case = generated_walk(
                num_nodes, num_edges, num_queries=queries, skew=skew, seed=seed, num_passages=num_nodes // 100
            )
            run = partial(
                personalized_pagerank, case.graph, torch.from_numpy(case.resets), damping=damping, tol=tol,
                top_range=case.passages, top_k=TOP,
            )  # fmt: skip
            prepared = seconds(run)
            start = time.perf_counter()
            result = run()
            taken = time.perf_counter() - start
            size = {"edges": case.graph.num_edges // 2, "nodes": num_nodes, "queries": queries}
            points.append(
                size
                | {
                    "seconds": taken,
                    "first_call_seconds": prepared,
                    "flagged": int((result.flags != 0).sum()),
                    "not_finite": int((~torch.isfinite(result.top_scores)).sum()) if result.top_scores is not None else 0,
                    "sweeps": float(result.iterations.double().mean()),
                    "peak_rss_bytes": peak_rss_bytes(),
                }
            )
        found[name] = {"points": points} | power_fit(
            [float(point[name]) for point in points], [point["seconds"] for point in points]
        )
    return found


def peak_rss_bytes() -> int:
    """Return the largest resident memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
