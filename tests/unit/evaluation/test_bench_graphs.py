"""Generated graphs: same seed, same graph; degrees as asked for, and the cases made of them."""

import numpy as np
import pytest
import torch

from gpu_rag.errors import InputError
from gpu_rag.evaluation.bench_graphs import NUM_TOPICS, generated_activation, generated_walk, power_law_edges
from gpu_rag.graph import SparseReset


def _ranked_degrees(num_nodes: int, num_edges: int, skew: float) -> np.ndarray:
    source, target = power_law_edges(num_nodes, num_edges, skew=skew, seed=3)
    return np.sort(np.bincount(np.concatenate([source, target]), minlength=num_nodes))[::-1]


def test_same_seed_gives_the_same_edges_and_another_seed_others() -> None:
    first, again, other = (power_law_edges(100, 500, skew=0.5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("skew", [0.3, 0.6, 0.8])
def test_degrees_fall_with_rank_by_the_exponent(skew: float) -> None:
    degrees = _ranked_degrees(2_000, 400_000, skew)
    ranks = np.arange(20, 1_000)
    slope = np.polyfit(np.log(ranks + 0.5), np.log(degrees[ranks]), 1)[0]
    assert slope == pytest.approx(-skew, abs=0.03)


def test_without_skew_all_nodes_are_alike() -> None:
    degrees = _ranked_degrees(1_000, 200_000, 0.0)
    assert degrees[0] < 1.6 * degrees[-1]


@pytest.mark.parametrize("skew", [-0.1, 1.0])
def test_skew_out_of_bounds_is_refused(skew: float) -> None:
    with pytest.raises(InputError, match="skew"):
        power_law_edges(10, 10, skew=skew, seed=0)


def test_resets_hold_every_passage_and_a_few_seeds() -> None:
    case = generated_walk(50, 200, num_queries=7, skew=0.5, seed=0, num_passages=10, num_seeds=3)
    assert isinstance(case.resets, SparseReset)
    rows = case.rows(0, 7)
    assert rows.shape == (7, 50)
    assert case.passages == (0, 10)
    assert (rows[:, :10] < 0.05).sum() >= 7 * (10 - 3)
    assert all((row >= 1).sum() in (1, 2, 3) for row in rows)
    assert not torch.equal(rows[0], rows[1])
    assert case.graph.undirected
    assert 0 < case.graph.num_edges <= 2 * 200


def test_without_passages_all_nodes_are_ranked() -> None:
    case = generated_walk(50, 200, num_queries=2, skew=0.5, seed=0, num_passages=0)
    assert case.passages == (0, 50)
    assert (case.rows(0, 2) > 0).sum(dim=1).max() <= 5


def test_more_passages_than_nodes_are_all_nodes() -> None:
    assert generated_walk(20, 40, num_queries=2, skew=0.5, seed=0, num_passages=1_000).passages == (0, 20)


@pytest.mark.parametrize("dense", [False, True])
def test_first_queries_keep_their_resets(dense: bool) -> None:
    case = generated_walk(50, 200, num_queries=7, skew=0.5, seed=0, num_passages=10)
    whole = case.rows(0, 7)
    if dense:
        case = type(case)(case.name, case.graph, whole, case.passages)
    part = case.first(3)
    assert part.num_queries == 3
    assert torch.equal(part.rows(0, 3), whole[:3])
    assert torch.equal(part.rows(1, 2), whole[1:2])


def test_generated_arcs_weigh_more_within_a_topic() -> None:
    case = generated_activation(400, 3_000, num_queries=16, num_seeds=3, skew=0.3, seed=0, width=64)
    topics = torch.stack([case.graph.source, case.graph.target]) % NUM_TOPICS
    cosines = case.query_vectors @ case.arc_vectors.T
    about = np.arange(16)[:, None] % NUM_TOPICS
    within = (topics.numpy()[:, None, :] == about).sum(axis=0)  # ends of the arc that share the query's topic
    assert cosines[within == 2].mean() > 0.7 > 0.6 > cosines[within == 1].mean() > 0.4 > 0.2 > cosines[within == 0].mean()
    assert np.allclose(np.linalg.norm(case.arc_vectors, axis=1), 1, atol=1e-5)
    assert (case.seeds.nodes.reshape(16, 3) % NUM_TOPICS == torch.from_numpy(about)).all()


def test_fewer_nodes_than_topics_still_give_seeds_in_the_graph() -> None:
    case = generated_activation(3, 5, num_queries=9, num_seeds=2, skew=0.0, seed=0, width=8)
    assert int(case.seeds.nodes.max()) < 3
