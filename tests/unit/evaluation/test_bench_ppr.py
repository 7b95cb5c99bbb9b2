"""The benchmark of personalized PageRank on small graphs: what it compares holds; no time is asserted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from gpu_rag.evaluation import roofline
from gpu_rag.evaluation.bench_graphs import WalkCase, generated_walk
from gpu_rag.evaluation.bench_peers import IgraphWalk, measure_peers
from gpu_rag.evaluation.bench_plots import plot_scaling
from gpu_rag.evaluation.bench_ppr import agreement, bench_scaling, bench_walk, same_up_to_ties
from gpu_rag.evaluation.bench_tables import walk_table
from gpu_rag.graph import build_csr

TOL = 5e-6


@pytest.fixture(autouse=True)
def _small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "_PRODUCT_SIZE", 64)
    monkeypatch.setattr(roofline, "_COPY_SECONDS", 1e-4)


def _case(num_queries: int = 20, num_passages: int = 12) -> WalkCase:
    return generated_walk(60, 240, num_queries=num_queries, skew=0.6, seed=0, num_passages=num_passages)


def test_figures_of_a_case_agree_with_igraph_and_can_be_shown() -> None:
    figures = bench_walk(_case(), damping=0.5, tol=TOL, pairs=3, checked=17)
    found = figures["agreement"]
    assert found["resets"] == found["same_top_up_to_ties"] == 17
    assert 0 < found["l1_float64"]["max"] <= 1e-8 < found["l1_float32"]["max"] <= TOL
    assert found["not_finite"] == figures["flagged"] == 0
    assert len(figures["pairs"]) == 3
    ratios = sorted(pair["igraph_s_per_query"] / pair["ours_s_per_query"] for pair in figures["pairs"])
    assert figures["ratio_to_igraph"] == ratios[1]
    assert figures["roofline"]["binding"] in ("stream", "gather", "arithmetic")
    assert 0 < figures["ours_peak_rss_bytes"] <= figures["peak_rss_bytes"]
    assert json.loads(json.dumps(figures)) == figures
    console = Console(width=160, record=True)
    console.print(walk_table(figures))
    text = console.export_text()
    assert "17 of 17" in text
    assert f"{figures['ratio_to_igraph']:.1f} x ours" in text


def test_peers_compute_the_same_walk() -> None:
    pytest.importorskip("torch_geometric")
    found = measure_peers(_case(), 0.5, TOL)
    assert found.keys() == {"torch_sparse_batch", "scipy_batch", "scipy_one_by_one", "pyg_single_seeds_unweighted"}
    assert found["scipy_batch"]["queries"] == found["torch_sparse_batch"]["queries"] == 20
    assert all(peer["largest_l1_to_ours"] < 2 * TOL for name, peer in found.items() if not name.startswith("pyg"))
    assert found["pyg_single_seeds_unweighted"]["largest_l1_to_ours"] < 1e-3


def test_igraph_counts_a_loop_as_ours_does() -> None:
    graph = build_csr(3, np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([2.0, 1.0, 3.0]), undirected=True)
    case = WalkCase("loop", graph, torch.eye(3), (0, 3))
    found = agreement(case, IgraphWalk(graph, 0.5), 0.5, TOL, 3)
    assert found["l1_float64"]["max"] < 1e-8


def test_wrong_scores_do_not_agree() -> None:
    case = _case()
    other = IgraphWalk(case.graph, 0.9)
    found = agreement(case, other, 0.5, TOL, 5)
    assert found["l1_float32"]["median"] > 0.01
    assert found["same_top_up_to_ties"] < 5


def test_ranking_is_right_up_to_what_the_error_bound_cannot_tell_apart() -> None:
    reference = np.array([0.3, 0.2, 0.2 - 1e-7, 0.1, 0.5])
    assert same_up_to_ties(np.array([0, 1]), reference, 0, 4, 2, 1e-6)
    assert same_up_to_ties(np.array([0, 2]), reference, 0, 4, 2, 1e-6)
    assert not same_up_to_ties(np.array([0, 3]), reference, 0, 4, 2, 1e-6)
    assert not same_up_to_ties(np.array([1, 0]), reference, 0, 4, 2, 1e-6)


def test_short_ranking_is_right_only_where_the_rest_has_no_score() -> None:
    assert same_up_to_ties(np.array([0]), np.array([0.4, 0.0, 0.6]), 0, 2, 2, 1e-6)
    assert not same_up_to_ties(np.array([0]), np.array([0.4, 0.1, 0.5]), 0, 2, 2, 1e-6)


def test_repeated_node_is_no_ranking() -> None:
    assert not same_up_to_ties(np.array([0, 0]), np.array([0.4, 0.4, 0.2]), 0, 3, 2, 1e-6)


def test_queries_that_reach_no_passage_rank_alike() -> None:
    graph = build_csr(5, np.array([0, 2]), np.array([1, 3]), undirected=True)
    case = WalkCase("apart", graph, torch.eye(5)[[2, 0]], (0, 2))
    assert agreement(case, IgraphWalk(graph, 0.5), 0.5, TOL, 2)["same_top_up_to_ties"] == 2


def test_series_grow_by_what_they_are_named_for_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    series = bench_scaling(damping=0.5, tol=TOL, skew=0.6, seed=0, largest=2_000, num_queries=32)
    assert series.keys() == {"edges", "nodes", "queries"}
    for name, found in series.items():
        sizes = [point[name] for point in found["points"]]
        assert sizes == sorted(set(sizes))
        assert len(sizes) == 4
        assert all(point["flagged"] == point["not_finite"] == 0 for point in found["points"])
    assert [point["queries"] for point in series["queries"]["points"]] == [8, 12, 20, 32]
    assert {point["nodes"] for point in series["edges"]["points"]} == {200}
    paths = plot_scaling(series, tmp_path)
    assert [path.name for path in paths] == ["edges.svg", "nodes.svg", "queries.svg"]
    assert all(b"</svg>" in path.read_bytes() for path in paths)


def test_dense_and_sparse_resets_of_a_case_are_one_benchmark() -> None:
    case = _case(num_queries=5)
    dense = replace(case, resets=case.rows(0, 5))
    peer = IgraphWalk(case.graph, 0.5)
    assert agreement(case, peer, 0.5, TOL, 5) == agreement(dense, peer, 0.5, TOL, 5)
