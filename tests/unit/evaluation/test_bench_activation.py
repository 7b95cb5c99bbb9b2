"""The benchmark of spreading activation on small graphs: what it compares holds; no time is asserted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from gpu_rag.evaluation.bench_activation import Spreading, agreement, bench_spreading, jaccard
from gpu_rag.evaluation.bench_graphs import ActivationCase, generated_activation
from gpu_rag.evaluation.bench_tables import activation_table
from gpu_rag.graph import ArcGraph, SeedLists


@pytest.fixture(scope="module")
def case() -> ActivationCase:
    return generated_activation(80, 600, num_queries=20, num_seeds=3, skew=0.4, seed=0, width=64)


def _spreading(case: ActivationCase) -> Spreading:
    return Spreading(case, hops=2, c=0.4, tau_a=0.5, follow="both")


@pytest.mark.parametrize("follow", ["both", "outgoing"])
def test_figures_of_a_case_equal_the_references_and_can_be_shown(case: ActivationCase, follow: str) -> None:
    figures = bench_spreading(case, hops=2, c=0.4, tau_a=0.5, follow=follow, pairs=3, checked=15)  # type: ignore[arg-type]
    for found in figures["orders"].values():
        same = found["agreement"]
        assert same["equal"] == same["compared"] == 15
        assert same["jaccard_to_authors"]["queries"] == 15
        ratios = sorted(pair["authors_s_per_query"] / pair["ours_s_per_query"] for pair in found["pairs"])
        assert found["ratio_to_authors"] == ratios[1]
        assert found["cosines_us_per_query"].keys() == {"ours", "authors"}
        assert 3 < found["arcs_weighed"] < 600
        assert 3 < found["arcs_of_subgraph"] < 600
        assert found["activated"] > 3
        assert found["flagged"] == 0
        assert found["nodes_seen"] > 3
    sequential = figures["orders"]["sequential"]["agreement"]
    assert sequential["largest_difference"] == 0.0
    assert sequential["jaccard_to_authors"]["min"] == 1.0
    assert figures["seeds"] == 3.0
    assert json.loads(json.dumps(figures)) == figures
    console = Console(width=160, record=True)
    console.print(activation_table(figures))
    text = console.export_text()
    assert text.count("15 of 15") == 2
    assert "level, us a query" in text


def test_other_weights_are_no_agreement(case: ActivationCase) -> None:
    task = _spreading(case)
    shuffled = _spreading(replace(case, arc_vectors=case.arc_vectors[::-1].copy()))
    authors = [shuffled.above(shuffled.authors(query)) for query in range(10)]
    assert agreement(task, "sequential", authors)["jaccard_to_authors"]["mean"] < 0.9


def test_reference_of_the_other_order_is_told_from_this_one() -> None:
    # A triangle of weight 0.4: the two that the seed reaches at once give to each other, one after the other or together.
    graph = ArcGraph(3, torch.tensor([0, 0, 1]).int(), torch.tensor([1, 2, 2]).int())
    seeds = SeedLists(torch.tensor([0, 1]), torch.tensor([0]))
    query = np.array([[1.0, 0.0]], np.float32)
    arcs = np.repeat(np.array([[0.4, np.sqrt(1 - 0.4**2)]], np.float32), 3, axis=0)
    task = Spreading(ActivationCase("triangle", graph, seeds, query, arcs), hops=3, c=0.0, tau_a=0.1, follow="both")
    level, sequential = task.level(0), task.above(task.authors(0, weighed=True))
    assert level == pytest.approx({0: 1.0, 1: 0.56, 2: 0.56})
    assert sequential == pytest.approx({0: 1.0, 1: 0.624, 2: 0.56})
    for order in ("level", "sequential"):
        assert agreement(task, order, [sequential])["equal"] == 1  # type: ignore[arg-type]


def test_arcs_of_a_subgraph_lie_between_its_nodes_without_loops() -> None:
    graph = ArcGraph(5, torch.tensor([0, 1, 1, 2, 3, 0]).int(), torch.tensor([1, 1, 2, 3, 4, 1]).int())
    seeds = SeedLists(torch.tensor([0, 1]), torch.tensor([0]))
    case = ActivationCase("path", graph, seeds, np.ones((1, 1), np.float32), np.ones((6, 1), np.float32))
    assert Spreading(case, hops=2, c=0.0, tau_a=0.5, follow="both").arcs_of(0).tolist() == [0, 2, 5]


def test_jaccard_of_sets_by_hand() -> None:
    assert jaccard({1, 2, 3}, {2, 3, 4, 5}) == 2 / 5
    assert jaccard(set(), {1}) == 0.0
    assert jaccard(set(), set()) == 1.0


def test_first_queries_alone_activate_what_they_do_among_all(case: ActivationCase) -> None:
    task = _spreading(case)
    part, whole = task.ours("level", count=4), task.ours("level")
    stop = int(whole.indptr[4])
    assert torch.equal(part.nodes, whole.nodes[:stop])
    assert torch.equal(part.scores, whole.scores[:stop])
