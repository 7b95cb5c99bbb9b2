"""Spreading activation: the authors' algorithm exactly, its level-synchronous form, and what a batch must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_rag_kernels import activation_reference as reference

from gpu_rag.errors import InputError
from gpu_rag.graph import ActivationResult, ArcGraph, SeedFlag, SeedLists, activation, spread_activation

WIDTH = 40  # dimensions: no multiple of what the kernel reads at once


def unit(rng: np.random.Generator, rows: int) -> torch.Tensor:
    vectors = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    vectors[:, 0] += 4.0  # cosines around 0.3, so that some arcs weigh and some do not
    return torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def case(
    num_queries: int, *, num_nodes: int = 80, num_arcs: int = 240, kind: str = "random", seed: int = 0
) -> tuple[ArcGraph, SeedLists, torch.Tensor, torch.Tensor]:
    """Return arcs with loops, parallels and isolated nodes, seeds with repetitions, and vectors."""
    rng = np.random.default_rng(seed + num_queries + num_arcs)
    ends = rng.integers(1, num_nodes - 2, (2, num_arcs)).astype(np.int32)
    if kind == "hub":
        ends[0, : num_arcs // 2] = 5
    ends[:, : num_arcs // 10] = ends[:, num_arcs // 10 : num_arcs // 10 * 2]
    counts = rng.integers(1, 5, num_queries)
    nodes = torch.from_numpy(rng.integers(0, num_nodes, counts.sum()))
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    graph = ArcGraph(num_nodes, torch.from_numpy(ends[0]), torch.from_numpy(ends[1]))
    return graph, SeedLists(indptr, nodes), unit(rng, num_queries), unit(rng, num_arcs)


def lists(seeds: SeedLists) -> list[list[int]]:
    return [part.tolist() for part in torch.tensor_split(seeds.nodes, seeds.indptr[1:-1])]


def weights_of(queries: torch.Tensor, arcs: torch.Tensor, c: float = 0.2) -> torch.Tensor:
    return torch.from_numpy(reference.arc_weights((queries @ arcs.T).numpy(), c))


def found(result: ActivationResult, query: int) -> dict[int, float]:
    part = slice(int(result.indptr[query]), int(result.indptr[query + 1]))
    return dict(zip(result.nodes[part].tolist(), result.scores[part].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["random", "hub"])
@pytest.mark.parametrize("follow", ["both", "outgoing"])
@pytest.mark.parametrize("hops", [0, 1, 2, 4])
@pytest.mark.parametrize("num_arcs", [0, 1, 240])
def test_sequential_equals_the_authors_algorithm_exactly(kind: str, follow: str, hops: int, num_arcs: int) -> None:
    graph, seeds, queries, arcs = case(33, num_arcs=num_arcs, kind=kind)
    weights = weights_of(queries, arcs)
    result = spread_activation(graph, seeds, arc_weights=weights, hops=hops, tau_a=0.3, order="sequential", follow=follow)
    plain = reference.adjacency(graph.num_nodes, graph.source.tolist(), graph.target.tolist())
    for query, nodes in enumerate(lists(seeds)):
        scores = reference.sequential_scores(plain, nodes, weights=weights[query].numpy(), hops=hops, c=0.0, follow=follow)
        assert found(result, query) == {node: scores[node] for node in sorted(scores) if scores[node] > 0.3}
        assert int(result.num_nodes_seen[query]) == len(scores)


@pytest.mark.parametrize("kind", ["random", "hub"])
@pytest.mark.parametrize("follow", ["both", "outgoing"])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_level_equals_the_level_synchronous_reference(kind: str, follow: str, backend: str) -> None:
    graph, seeds, queries, arcs = case(31, kind=kind)
    weights = weights_of(queries, arcs)
    result = spread_activation(graph, seeds, arc_weights=weights, hops=3, tau_a=0.3, follow=follow, backend=backend)
    for query, nodes in enumerate(lists(seeds)):
        scores, inside = reference.level_scores(graph.num_nodes, graph.source, graph.target, nodes, weights[query], 3, follow)
        active = torch.nonzero(scores > 0.3).flatten().tolist()
        assert list(found(result, query)) == active
        np.testing.assert_allclose(list(found(result, query).values()), scores[active].numpy(), rtol=0, atol=1e-12)
        assert int(result.num_nodes_seen[query]) == int(inside.sum())


def test_level_and_sequential_order_activate_nearly_the_same_nodes() -> None:
    graph, seeds, queries, arcs = case(200, num_nodes=300, num_arcs=900)
    orders = [
        spread_activation(graph, seeds, query_vectors=queries, arc_vectors=arcs, hops=3, c=0.3, order=order)
        for order in ("level", "sequential")
    ]
    jaccards = []
    for query in range(200):
        one, other = (set(found(result, query)) for result in orders)
        jaccards.append(len(one & other) / len(one | other))
    assert np.mean(jaccards) > 0.95


@pytest.mark.parametrize("order", ["level", "sequential"])
def test_query_is_bit_equal_alone_and_in_every_batch(order: str, monkeypatch) -> None:
    graph, seeds, queries, arcs = case(1000)
    options = {"arc_vectors": arcs, "hops": 3, "c": 0.2, "tau_a": 0.2, "order": order}
    whole = spread_activation(graph, seeds, query_vectors=queries, **options)
    of_query = lists(seeds)

    def of(chosen: list[int]) -> ActivationResult:
        counts = [len(of_query[query]) for query in chosen]
        nodes = torch.tensor([node for query in chosen for node in of_query[query]])
        indptr = torch.tensor([0, *np.cumsum(counts).tolist()])
        return spread_activation(graph, SeedLists(indptr, nodes), query_vectors=queries[chosen], **options)

    shuffled = np.random.default_rng(0).permutation(1000).tolist()
    monkeypatch.setattr(activation, "_BLOCK", 5)
    for chosen in ([7], [999], list(range(3, 10)), list(range(256)), shuffled):
        result = of(chosen)
        for place, query in enumerate(chosen):
            assert found(result, place) == found(whole, query)


def test_cosines_are_those_of_the_vectors() -> None:
    graph, seeds, queries, arcs = case(64)
    options = {"hops": 3, "tau_a": 0.0, "order": "sequential"}
    own = spread_activation(graph, seeds, query_vectors=queries, arc_vectors=arcs, c=0.2, **options)
    given = spread_activation(graph, seeds, arc_weights=weights_of(queries, arcs), **options)
    assert torch.equal(own.nodes, given.nodes)
    torch.testing.assert_close(own.scores, given.scores, rtol=0, atol=1e-5)
    assert int(own.num_arcs_weighed.max()) <= graph.num_arcs


@pytest.mark.parametrize("order", ["level", "sequential"])
def test_every_node_has_a_path_from_a_seed_over_arcs_that_weigh_and_no_node_twice(order: str) -> None:
    graph, seeds, queries, arcs = case(100, num_arcs=400)
    weights = weights_of(queries, arcs)
    weights[weights < 0.1] = 0  # so that breadth-first levels and paths over arcs that weigh part ways
    result = spread_activation(graph, seeds, arc_weights=weights, hops=4, tau_a=0.0, order=order)
    ends = list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    of_query, lengths = lists(seeds), []
    for query in range(100):
        for at in range(int(result.indptr[query]), int(result.indptr[query + 1])):
            node, walk = int(result.nodes[at]), [int(result.path_seeds[at])]
            for arc in result.path_arcs[int(result.path_indptr[at]) : int(result.path_indptr[at + 1])].tolist():
                assert weights[query, arc] > 0
                assert walk[-1] in ends[arc]
                walk.append(sum(ends[arc]) - walk[-1])
            assert walk[0] in of_query[query]
            assert walk[-1] == node
            assert len(set(walk)) == len(walk)
            assert (len(walk) == 1) == (node in of_query[query])
            lengths.append(len(walk))
    assert max(lengths) > 4


def test_a_node_on_the_way_of_an_arc_that_weighs_nothing_still_has_its_path() -> None:
    # Seed 0 reaches 2 over an arc of weight 0 at the same level as 1, from which 2 has all it has.
    graph = ArcGraph(3, torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([1, 2, 2], dtype=torch.int32))
    result = spread_activation(
        graph, SeedLists(torch.tensor([0, 1]), torch.tensor([0])), arc_weights=torch.tensor([[0.9, 0.0, 0.9]]), hops=2
    )
    assert result.nodes.tolist() == [0, 1, 2]
    assert result.path_seeds.tolist() == [0, 0, 0]
    assert result.path_arcs.tolist() == [0, 0, 2]


def test_a_path_names_the_largest_addition() -> None:
    # 3 gets 0.25 over 1, and 0.9 from 2, which three parallel arcs of 0.3 brought to 0.9.
    source, target = [0, 1, 0, 0, 0, 2], [1, 3, 2, 2, 2, 3]
    graph = ArcGraph(4, torch.tensor(source, dtype=torch.int32), torch.tensor(target, dtype=torch.int32))
    seeds = SeedLists(torch.tensor([0, 1]), torch.tensor([0]))
    weights = torch.tensor([[0.5, 0.5, 0.3, 0.3, 0.3, 1.0]])
    result = spread_activation(graph, seeds, arc_weights=weights, hops=2)
    assert result.nodes.tolist() == [0, 1, 2, 3]
    assert result.path_arcs[int(result.path_indptr[3]) :].tolist() == [2, 5]


def test_bad_rows_are_flagged_and_the_others_are_as_without_them() -> None:
    graph, seeds, queries, arcs = case(40)
    whole = spread_activation(graph, seeds, query_vectors=queries, arc_vectors=arcs, hops=2, c=0.2)
    of_query = lists(seeds)
    of_query[3], of_query[5], of_query[9] = [], [1, 80], [-1]
    vectors = queries.clone()
    vectors[11, 2] = torch.nan
    indptr = torch.tensor([0, *np.cumsum([len(part) for part in of_query]).tolist()])
    spoilt = SeedLists(indptr, torch.tensor([node for part in of_query for node in part]))
    result = spread_activation(graph, spoilt, query_vectors=vectors, arc_vectors=arcs, hops=2, c=0.2)
    bad = {3: SeedFlag.NO_SEED, 5: SeedFlag.BAD_SEED, 9: SeedFlag.BAD_SEED, 11: SeedFlag.BAD_SEED}
    for query in range(40):
        assert result.flags[query] == bad.get(query, 0)
        assert found(result, query) == ({} if query in bad else found(whole, query))


def test_parallel_arcs_add_up_and_loops_carry_nothing() -> None:
    graph = ArcGraph(3, torch.tensor([0, 0, 1, 0], dtype=torch.int32), torch.tensor([1, 1, 1, 0], dtype=torch.int32))
    seeds = SeedLists(torch.tensor([0, 1]), torch.tensor([0]))
    result = spread_activation(graph, seeds, arc_weights=torch.tensor([[0.25, 0.5, 1.0, 1.0]]), hops=1, tau_a=0.0)
    assert found(result, 0) == {0: 1.0, 1: 0.75}
    assert result.path_arcs.tolist() == [1]


def test_score_at_the_threshold_is_not_activated() -> None:
    graph = ArcGraph(2, torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))
    seeds = SeedLists(torch.tensor([0, 1]), torch.tensor([0]))
    for tau_a, nodes in ((0.5, [0]), (0.49, [0, 1])):
        assert spread_activation(graph, seeds, arc_weights=torch.tensor([[0.5]]), hops=1, tau_a=tau_a).nodes.tolist() == nodes


@pytest.mark.parametrize("num_queries", [0, 1, 2, 3, 31, 33, 255])
def test_every_number_of_queries_works(num_queries: int) -> None:
    graph, seeds, queries, arcs = case(num_queries)
    result = spread_activation(graph, seeds, query_vectors=queries, arc_vectors=arcs, hops=2)
    assert result.indptr.numel() == num_queries + 1
    assert result.flags.numel() == num_queries


@pytest.mark.parametrize(
    "options",
    [{"hops": -1}, {"c": 1.0}, {"tau_a": -0.1}, {"order": "all"}, {"follow": "in"}, {"backend": "cuda"}],
)
def test_parameter_out_of_bounds_is_refused_by_name(options: dict) -> None:
    graph, seeds, queries, arcs = case(2)
    with pytest.raises(InputError, match=next(iter(options))):
        spread_activation(graph, seeds, query_vectors=queries, arc_vectors=arcs, **({"hops": 1} | options))


def test_arrays_that_do_not_fit_are_refused_by_name() -> None:
    graph, seeds, queries, arcs = case(2)
    for vectors, message in (
        ({"query_vectors": queries[:1], "arc_vectors": arcs}, "query_vectors is"),
        ({"query_vectors": queries, "arc_vectors": arcs[1:]}, "arc_vectors is"),
        ({"query_vectors": queries.double(), "arc_vectors": arcs}, "query_vectors is"),
        ({"query_vectors": queries}, "give query_vectors and arc_vectors"),
        ({"query_vectors": queries, "arc_weights": torch.ones(2, 240)}, "not beside them"),
        ({"query_vectors": queries, "arc_vectors": torch.full_like(arcs, torch.inf)}, r"arc_vectors\[0\] is not finite"),
    ):
        with pytest.raises(InputError, match=message):
            spread_activation(graph, seeds, hops=1, **vectors)
