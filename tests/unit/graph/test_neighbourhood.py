"""Neighbourhoods: what is near, in which order, and where it stops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph import CsrGraph, Neighbourhoods, SeedFlag, SeedLists, build_csr, n_hop


def lists(*nodes: list[int]) -> SeedLists:
    return SeedLists(
        torch.tensor(np.cumsum([0, *map(len, nodes)])), torch.tensor([node for own in nodes for node in own]).int()
    )


def found(result: Neighbourhoods, query: int) -> dict[int, int]:
    part = slice(int(result.indptr[query]), int(result.indptr[query + 1]))
    return dict(zip(result.nodes[part].tolist(), result.distances[part].tolist(), strict=True))


def random_case(num_queries: int) -> tuple[CsrGraph, list[list[int]]]:
    rng = np.random.default_rng(num_queries)
    graph = build_csr(60, rng.integers(1, 57, 90), rng.integers(1, 57, 90), undirected=True)
    return graph, [rng.integers(0, 60, rng.integers(1, 4)).tolist() for _ in range(num_queries)]


def by_hand(graph: CsrGraph, seeds: list[int], hops: int) -> dict[int, int]:
    distance = dict.fromkeys(seeds, 0)
    for hop in range(1, hops + 1):
        for node in [node for node, at in distance.items() if at == hop - 1]:
            for other in graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist():
                distance.setdefault(other, hop)
    return dict(sorted(distance.items()))


@pytest.mark.parametrize("hops", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("num_queries", [1, 2, 3, 31, 33, 255, 1000])
def test_neighbourhood_is_what_lies_within_so_many_edges(hops: int, num_queries: int) -> None:
    graph, seeds = random_case(num_queries)
    result = n_hop(graph, lists(*seeds), hops=hops)
    for query in range(0, num_queries, 7):
        assert found(result, query) == by_hand(graph, seeds[query], hops)
    assert result.flags.sum() == 0


def test_a_hop_that_does_not_fit_keeps_its_lowest_nodes_and_says_so() -> None:
    graph = build_csr(1000, np.zeros(998, int), np.arange(1, 999), undirected=True)
    result = n_hop(graph, lists([0], [5], [999]), hops=3, max_nodes=4)
    assert found(result, 0) == {0: 0, 1: 1, 2: 1, 3: 1}
    assert found(result, 1) == {0: 1, 1: 2, 2: 2, 5: 0}
    assert found(result, 2) == {999: 0}
    assert result.flags.tolist() == [SeedFlag.CUT, SeedFlag.CUT, 0]


def test_query_is_equal_alone_and_in_every_batch() -> None:
    graph, seeds = random_case(1000)
    whole = n_hop(graph, lists(*seeds), hops=3, max_nodes=9)
    assert 0 < int((whole.flags == SeedFlag.CUT).sum()) < 1000
    for chosen in ([3], [999, 0, 17, 5, 22, 8, 30], list(range(256)), np.random.default_rng(0).permutation(1000).tolist()):
        part = n_hop(graph, lists(*(seeds[query] for query in chosen)), hops=3, max_nodes=9)
        for place, query in enumerate(chosen):
            assert found(part, place) == found(whole, query)
            assert part.flags[place] == whole.flags[query]


def test_a_directed_graph_is_followed_along_its_edges() -> None:
    graph = build_csr(5, [0, 1, 2, 3], [1, 2, 3, 3], undirected=False)
    result = n_hop(graph, lists([1], [3], [4]), hops=2)
    assert [found(result, query) for query in range(3)] == [{1: 0, 2: 1, 3: 2}, {3: 0}, {4: 0}]


def test_a_hub_gives_no_more_than_max_nodes_to_each_of_many_queries() -> None:
    graph = build_csr(100_001, np.zeros(100_000, int), np.arange(1, 100_001), undirected=True)
    result = n_hop(graph, lists(*([leaf] for leaf in range(1, 2001))), hops=2, max_nodes=50)
    assert result.nodes.numel() == 2000 * 50
    assert bool((result.flags == SeedFlag.CUT).all())


@pytest.mark.parametrize("num_queries", [0, 1])
@pytest.mark.parametrize("num_edges", [0, 1])
def test_no_query_and_no_edge_work(num_queries: int, num_edges: int) -> None:
    graph = build_csr(3, [0] * num_edges, [2] * num_edges, undirected=True)
    result = n_hop(graph, lists(*[[2]] * num_queries), hops=4)
    assert [found(result, query) for query in range(num_queries)] == [{0: 1, 2: 0} if num_edges else {2: 0}] * num_queries
    assert result.flags.tolist() == [0] * num_queries


def test_bad_queries_are_flagged_and_the_others_are_as_without_them() -> None:
    graph, seeds = random_case(20)
    whole = n_hop(graph, lists(*seeds), hops=2)
    spoilt = [*seeds]
    spoilt[4], spoilt[9], spoilt[10] = [], [60], [3, -1]
    result = n_hop(graph, lists(*spoilt), hops=2)
    for query in range(20):
        bad = {4: SeedFlag.NO_SEED, 9: SeedFlag.BAD_SEED, 10: SeedFlag.BAD_SEED}.get(query, 0)
        assert result.flags[query] == bad
        assert found(result, query) == ({} if bad else found(whole, query))


@pytest.mark.parametrize("options", [{"hops": -1}, {"hops": 1, "max_nodes": 0}])
def test_parameter_out_of_bounds_is_refused_by_name(options: dict) -> None:
    with pytest.raises(InputError, match=list(options)[-1]):
        n_hop(random_case(1)[0], lists([1]), **options)
