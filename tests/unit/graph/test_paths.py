"""Cheapest semantic paths against the enumeration of all."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.graph import ArcGraph, SeedFlag, SeedLists, SemanticPaths, cheapest_paths


def lists(*nodes: list[int]) -> SeedLists:
    return SeedLists(
        torch.tensor(np.cumsum([0, *map(len, nodes)])), torch.tensor([node for own in nodes for node in own]).int()
    )


def random_case(num_queries: int, num_arcs: int = 60) -> tuple[ArcGraph, list[list[int]], torch.Tensor]:
    rng = np.random.default_rng(num_queries + num_arcs)
    ends = torch.from_numpy(rng.integers(0, 20, (2, num_arcs)).astype(np.int32))
    nodes = [rng.choice(20, rng.integers(2, 5), replace=False).tolist() for _ in range(num_queries)]
    costs = torch.from_numpy(np.round(rng.random((num_queries, num_arcs)), 1).astype(np.float32))  # equal costs are common
    return ArcGraph(20, ends[0].contiguous(), ends[1].contiguous()), nodes, costs


def found(result: SemanticPaths, query: int) -> list[tuple[float, int, list[int], list[int]]]:
    paths = []
    for path in range(int(result.indptr[query]), int(result.indptr[query + 1])):
        start, end = int(result.arc_indptr[path]), int(result.arc_indptr[path + 1])
        nodes, arcs = result.nodes[start + path : end + path + 1].tolist(), result.arcs[start:end].tolist()
        paths.append((float(result.costs[path]), len(arcs), nodes, arcs))
    return paths


def by_enumeration(
    graph: ArcGraph, ends: list[int], costs: np.ndarray, k: int, max_length: int
) -> list[tuple[float, int, list[int], list[int]]]:
    best: dict[tuple[int, int], int] = {}
    for arc, (start, end) in enumerate(zip(graph.source.tolist(), graph.target.tolist(), strict=True)):
        for pair in ((start, end), (end, start)):
            if start != end and (pair not in best or costs[arc] < costs[best[pair]]):
                best[pair] = arc
    paths: list[tuple[float, int, list[int], list[int]]] = []

    def walk(nodes: list[int]) -> None:
        if len(nodes) > 1 and nodes[-1] in ends and nodes[-1] > nodes[0]:
            arcs = [best[pair] for pair in pairwise(nodes)]
            total = 0.0
            for arc in arcs:
                total += float(costs[arc])
            paths.append((total, len(arcs), nodes, arcs))
        if len(nodes) <= max_length:
            for start, end in best:
                if start == nodes[-1] and end not in nodes:
                    walk([*nodes, end])

    for end in ends:
        walk([end])
    return sorted(paths)[:k]


@pytest.mark.parametrize("max_length", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 5, 5000])
@pytest.mark.parametrize("num_arcs", [0, 1, 40])
def test_paths_are_the_cheapest_of_all_in_their_total_order(max_length: int, k: int, num_arcs: int) -> None:
    graph, ends, costs = random_case(12, num_arcs)
    result = cheapest_paths(graph, lists(*ends), arc_costs=costs, k=k, max_length=max_length)
    for query in range(12):
        assert found(result, query) == by_enumeration(graph, ends[query], costs[query].numpy(), k, max_length)
    assert result.flags.sum() == 0


def test_costs_that_rounding_tells_apart_come_in_the_order_of_their_sums() -> None:
    graph, ends, costs = random_case(12, 40)
    uneven = costs * torch.from_numpy(10.0 ** np.random.default_rng(0).integers(-12, 3, costs.shape)).float() + 1e-9
    result = cheapest_paths(graph, lists(*ends), arc_costs=uneven, k=7, max_length=4)
    for query in range(12):
        assert found(result, query) == by_enumeration(graph, ends[query], uneven[query].numpy(), 7, 4)


def test_of_parallel_arcs_the_cheapest_stands_then_the_lowest_whichever_way_they_point() -> None:
    graph = ArcGraph(3, torch.tensor([0, 1, 1, 2, 1], dtype=torch.int32), torch.tensor([1, 0, 0, 1, 1], dtype=torch.int32))
    costs = torch.tensor([[0.5, 0.25, 0.25, 0.5, 0.0], [0.125, 0.25, 0.25, 0.0, 0.0]])
    result = cheapest_paths(graph, lists([2, 0], [0, 2]), arc_costs=costs, k=9)
    assert found(result, 0) == [(0.75, 2, [0, 1, 2], [1, 3])]
    assert found(result, 1) == [(0.125, 2, [0, 1, 2], [0, 3])]


def test_among_equal_costs_fewer_arcs_come_first_then_lower_nodes() -> None:
    source, target = torch.tensor([[0, 0, 1, 2, 0], [1, 2, 3, 3, 3]], dtype=torch.int32)
    result = cheapest_paths(
        ArcGraph(4, source, target), lists([0, 3]), arc_costs=torch.tensor([[0.5, 0.5, 0.5, 0.5, 1.0]]), k=2
    )
    assert found(result, 0) == [(1.0, 1, [0, 3], [4]), (1.0, 2, [0, 1, 3], [0, 2])]


def test_costs_come_from_the_cosines() -> None:
    rng = np.random.default_rng(0)
    graph, ends, _ = random_case(9)
    queries, arcs = (
        torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(n, 20)).astype(np.float32))) for n in (9, 60)
    )
    own = cheapest_paths(graph, lists(*ends), query_vectors=queries, arc_vectors=arcs, k=4)
    given = cheapest_paths(graph, lists(*ends), arc_costs=1 - (queries @ arcs.T).clamp(min=0), k=4)
    assert [path[2] for query in range(9) for path in found(own, query)] == [
        path[2] for query in range(9) for path in found(given, query)
    ]
    torch.testing.assert_close(own.costs, given.costs, rtol=0, atol=1e-5)


def test_query_is_bit_equal_alone_and_in_every_batch() -> None:
    graph, ends, costs = random_case(1000)
    whole = cheapest_paths(graph, lists(*ends), arc_costs=costs, k=6)
    for chosen in ([3], [999, 0, 17, 5, 22, 8, 30], list(range(256)), np.random.default_rng(0).permutation(1000).tolist()):
        part = cheapest_paths(graph, lists(*(ends[query] for query in chosen)), arc_costs=costs[chosen], k=6)
        for place, query in enumerate(chosen):
            assert found(part, place) == found(whole, query)


def test_bad_queries_are_flagged_and_the_others_are_as_without_them() -> None:
    graph, ends, costs = random_case(8)
    whole = cheapest_paths(graph, lists(*ends), arc_costs=costs, k=3)
    spoilt, values = [*ends], costs.clone()
    spoilt[1], spoilt[2], spoilt[3] = [], [4, 4], [20, 1]
    values[5, 0] = torch.nan
    result = cheapest_paths(graph, lists(*spoilt), arc_costs=values, k=3)
    bad = {1: SeedFlag.NO_SEED, 2: SeedFlag.NO_SEED, 3: SeedFlag.BAD_SEED, 5: SeedFlag.BAD_SEED}
    for query in range(8):
        assert result.flags[query] == bad.get(query, 0)
        assert found(result, query) == ([] if query in bad else found(whole, query))


def test_a_hub_is_cut_not_slow_and_what_was_found_stands() -> None:
    leaves = 20_000
    source = torch.zeros(leaves + 1, dtype=torch.int32)
    target = torch.arange(1, leaves + 2, dtype=torch.int32)
    source[-1], target[-1] = 1, 2
    graph = ArcGraph(leaves + 1, source, target)
    ends = lists(list(range(1, leaves + 1)), [1, 2], [0, 1, 2])
    costs = torch.full((3, leaves + 1), 0.5)
    costs[:, -1] = 0.25
    result = cheapest_paths(graph, ends, arc_costs=costs, k=10**9, max_length=2, max_expansions=25_000)
    assert result.flags.tolist() == [SeedFlag.CUT, 0, SeedFlag.CUT]
    assert found(result, 0)[0] == found(result, 2)[0] == (0.25, 1, [1, 2], [leaves])
    assert found(result, 1) == [(0.25, 1, [1, 2], [leaves]), (1.0, 2, [1, 0, 2], [0, 1])]
    few = cheapest_paths(graph, ends, arc_costs=costs, k=1, max_length=2, max_expansions=25_000)
    assert found(few, 2) == [(0.25, 1, [1, 2], [leaves])]


@pytest.mark.parametrize("num_queries", [0, 1, 2, 3, 31, 33, 255])
def test_every_number_of_queries_works(num_queries: int) -> None:
    graph, ends, costs = random_case(num_queries)
    result = cheapest_paths(graph, lists(*ends), arc_costs=costs, k=2)
    assert result.indptr.numel() == num_queries + 1
    assert result.flags.tolist() == [0] * num_queries


@pytest.mark.parametrize("name", ["k", "max_length", "max_expansions"])
def test_parameter_out_of_bounds_is_refused_by_name(name: str) -> None:
    graph, ends, costs = random_case(1)
    with pytest.raises(InputError, match=name):
        cheapest_paths(graph, lists(*ends), arc_costs=costs, **({"k": 1} | {name: 0}))
