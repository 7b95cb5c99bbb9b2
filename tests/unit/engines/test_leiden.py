"""Hierarchical Leiden: the same graph gives the same communities, and odd graphs are normal cases."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gpu_rag.engines.leiden import Community, leiden_communities

CLIQUE = 8


def cliques(count: int, size: int = CLIQUE) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """`count` cliques in a ring, each joined to the next by one edge."""
    edges = set()
    for clique in range(count):
        base = clique * size
        edges |= {(base + i, base + j) for i in range(size) for j in range(i + 1, size)}
        first, second = base, ((clique + 1) % count) * size + 1
        if count > 1:
            edges.add((min(first, second), max(first, second)))
    source, target = (np.array(ends, dtype=np.int64) for ends in zip(*sorted(edges), strict=True))
    return count * size, source, target, np.ones(len(source))


def members(found: list[Community], level: int = 0) -> list[list[int]]:
    return [community.members.tolist() for community in found if community.level == level]


def test_cliques_are_communities() -> None:
    found = leiden_communities(*cliques(6))
    assert sorted(members(found)) == [list(range(c * CLIQUE, (c + 1) * CLIQUE)) for c in range(6)]


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_a_graph_without_edges_has_no_communities(num_nodes: int) -> None:
    none = np.empty(0, np.int64)
    assert leiden_communities(num_nodes, none, none, np.empty(0)) == []


def test_one_edge_is_one_community_and_isolated_nodes_are_in_none() -> None:
    (found,) = leiden_communities(9, np.array([3]), np.array([7]), np.array([2.0]))
    assert (found.level, found.parent, found.members.tolist()) == (0, None, [3, 7])
    assert leiden_communities(9, np.array([3]), np.array([7]), np.array([2.0]), min_members=3) == []


def test_a_large_community_is_divided_within_itself() -> None:
    found = leiden_communities(*cliques(30), resolution=0.05, max_members=CLIQUE, max_levels=3)
    tops = members(found)
    assert max(map(len, tops)) > CLIQUE
    for at, community in enumerate(found):
        if community.parent is None:
            assert community.level == 0
        else:
            parent = found[community.parent]
            assert community.parent < at
            assert community.level == parent.level + 1
            assert len(parent.members) > CLIQUE
            assert set(community.members.tolist()) < set(parent.members.tolist())
    assert all(community.level < 3 for community in found)


def test_weights_decide() -> None:
    source, target = np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3])
    strong_sides = leiden_communities(4, source, target, np.array([9.0, 0.1, 0.1, 9.0]))
    strong_other = leiden_communities(4, source, target, np.array([0.1, 9.0, 9.0, 0.1]))
    assert members(strong_sides) == [[0, 1], [2, 3]]
    assert members(strong_other) == [[0, 2], [1, 3]]


PROGRAM = """
import random, numpy as np, hashlib
from gpu_rag.engines.leiden import leiden_communities
rng = np.random.default_rng(5)
pairs = np.unique(np.sort(rng.integers(0, 300, (900, 2)), axis=1), axis=0)
pairs = pairs[pairs[:, 0] != pairs[:, 1]]
random.seed({seed})
[random.random() for _ in range({seed})]
found = leiden_communities(300, pairs[:, 0], pairs[:, 1], np.ones(len(pairs)), max_members=20)
print(hashlib.sha256(repr([(c.level, c.parent, c.members.tolist()) for c in found]).encode()).hexdigest())
"""


def test_ten_processes_with_other_hash_seeds_agree() -> None:
    outputs = set()
    for seed in range(10):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(seed=seed)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_the_random_numbers_of_others_are_neither_used_nor_changed() -> None:
    import random

    graph = cliques(5)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = leiden_communities(*graph)
    assert random.random() == expected
    assert members(first) == members(leiden_communities(*graph))
