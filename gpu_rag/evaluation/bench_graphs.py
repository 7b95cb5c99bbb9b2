"""Graphs and resets for benchmarks: those of an index and its questions, or generated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_rag.config import load_config
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.errors import InputError
from gpu_rag.graph import ArcGraph, CsrGraph, SeedLists, build_csr
from gpu_rag.query.questions import read_questions
from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, top_rows
from gpu_rag.query.retrievers.ppr import ppr_resets
from gpu_rag.store import open_generation


@dataclass(frozen=True, eq=False)
class WalkCase:
    """What a benchmark of personalized PageRank works on.

    Attributes:
        name: Where it comes from.
        graph: Undirected.
        resets: float32 (B, N), not normalised.
        passages: Node range that is ranked.
    """

    name: str
    graph: CsrGraph
    resets: np.ndarray
    passages: tuple[int, int]


@dataclass(frozen=True, eq=False)
class ActivationCase:
    """What a benchmark of spreading activation works on.

    Attributes:
        name: Where it comes from.
        graph: The arcs.
        seeds: Of B queries.
        query_vectors: float32 (B, D), unit length.
        arc_vectors: float32 (A, D), unit length.
    """

    name: str
    graph: ArcGraph
    seeds: SeedLists
    query_vectors: np.ndarray
    arc_vectors: np.ndarray


def power_law_edges(num_nodes: int, num_edges: int, *, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends, int64 (num_edges,), of edges whose expected degrees fall as rank^-skew (Chung and Lu 2002).

    Args:
        num_nodes: N >= 1.
        num_edges: Drawn; parallel ones and loops among them.
        skew: In [0, 1); 0: all nodes alike.
        seed: Same seed, same edges.
    """
    if not 0.0 <= skew < 1.0:
        raise InputError(f"skew={skew} must be in [0, 1)")
    random = np.random.default_rng(seed)
    number = random.permutation(num_nodes)  # so that a node's number says nothing of its degree

    def draw() -> np.ndarray:
        rank = num_nodes * random.random(num_edges) ** (1.0 / (1.0 - skew))
        ends: np.ndarray = number[np.minimum(rank.astype(np.int64), num_nodes - 1)]
        return ends

    return draw(), draw()


def generated_walk(
    num_nodes: int, num_edges: int, *, num_queries: int, skew: float, seed: int, num_passages: int, num_seeds: int = 5
) -> WalkCase:
    """Return a power-law graph, and resets of a few seeds and of all passages, which are the first nodes.

    Args:
        num_nodes: N.
        num_edges: Drawn; loops are left out, parallel ones add up.
        num_queries: B.
        skew: See `power_law_edges`.
        seed: Likewise.
        num_passages: 0: a query has its few seeds alone.
        num_seeds: Of a query, each with weight 1.
    """
    source, target = power_law_edges(num_nodes, num_edges, skew=skew, seed=seed)
    apart = source != target
    graph = build_csr(num_nodes, source[apart], target[apart], undirected=True)
    random = np.random.default_rng(seed + 1)
    resets = np.zeros((num_queries, num_nodes), np.float32)
    resets[:, :num_passages] = 0.05 * random.random((num_queries, num_passages), np.float32)
    np.put_along_axis(resets, random.integers(0, num_nodes, (num_queries, num_seeds)), 1.0, axis=1)
    name = f"power law, {num_nodes} nodes, {num_edges} edges drawn, skew {skew}, seed {seed}"
    return WalkCase(name, graph, resets, (0, num_passages or num_nodes))


def walk_of_index(index: Path, questions: Sequence[Path], system: str, num_queries: int) -> WalkCase:
    """Return the graph that a system walks on an index, and the resets of questions, again from the first if there are few.

    Raises:
        InputError: If there is no question.
    """
    config = load_config(system=system, base=_embedding_of(index))
    repository = Repository.open(index)
    queries = _queries(questions, num_queries, config.embed.encoder)
    retrieve = config.retrieve
    dense = repository.chunk_search.scores(queries.vectors)
    resets, _ = ppr_resets(
        queries, dense, config=retrieve.ppr, hybrid=retrieve.hybrid, bm25=retrieve.bm25, repository=repository
    )
    graph = repository.graph_view(retrieve.ppr.view).graph
    return WalkCase(f"{system} on {index.name}", graph, resets, (0, len(repository.chunk_ids)))


def activation_of_index(index: Path, questions: Sequence[Path], num_queries: int, num_seeds: int) -> ActivationCase:
    """Return an index's facts as arcs, and for each question as seeds the first ends of the facts most like it."""
    import torch

    repository = Repository.open(index)
    queries = _queries(questions, num_queries, load_config(base=_embedding_of(index)).embed.encoder)
    similar = repository.fact_search.scores(queries.vectors)
    ends = np.stack([repository.fact_subject, repository.fact_object], axis=1)
    seeds = [list(dict.fromkeys(ends[top_rows(row, num_seeds).rows].ravel().tolist()))[:num_seeds] for row in similar]
    graph = ArcGraph(
        len(repository.entity_ids),
        torch.from_numpy(repository.fact_subject.astype(np.int32)),
        torch.from_numpy(repository.fact_object.astype(np.int32)),
    )
    lists = SeedLists(
        torch.from_numpy(np.cumsum([0, *map(len, seeds)])), torch.tensor([node for row in seeds for node in row])
    )
    return ActivationCase(f"facts of {index.name}", graph, lists, queries.vectors, repository.fact_vectors)


def generated_activation(
    num_nodes: int, num_arcs: int, *, num_queries: int, num_seeds: int, skew: float, seed: int, width: int = 384
) -> ActivationCase:
    """Return power-law arcs with random vectors around as many topics as there are queries, each query on its topic."""
    import torch

    source, target = power_law_edges(num_nodes, num_arcs, skew=skew, seed=seed)
    random = np.random.default_rng(seed + 1)
    topics = random.standard_normal((num_queries, width), np.float32)
    arcs = topics[random.integers(0, num_queries, num_arcs)] + 0.8 * random.standard_normal((num_arcs, width), np.float32)
    lists = SeedLists(
        torch.arange(num_queries + 1) * num_seeds, torch.from_numpy(random.integers(0, num_nodes, num_queries * num_seeds))
    )
    graph = ArcGraph(num_nodes, torch.from_numpy(source.astype(np.int32)), torch.from_numpy(target.astype(np.int32)))
    name = f"power law, {num_nodes} nodes, {num_arcs} arcs, skew {skew}, seed {seed}"
    return ActivationCase(name, graph, lists, _unit(topics), _unit(arcs))


def _unit(vectors: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def _embedding_of(index: Path) -> dict[str, object]:
    return {"embed": open_generation(index, verify=False).manifest["config"]["embed"]}


def _queries(questions: Sequence[Path], num_queries: int, encoder: object) -> Queries:
    texts = [text for path in questions for text in read_questions(path).column("question").to_pylist()]
    if not texts:
        raise InputError(f"{', '.join(map(str, questions)) or '--questions'}: there is no question")
    texts = [texts[number % len(texts)] for number in range(num_queries)]
    return Queries(texts, open_encoder(encoder).encode(texts).vectors)  # type: ignore[arg-type]
