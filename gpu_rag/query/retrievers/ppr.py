"""Personalized PageRank over a graph view, seeded by facts, by names of the question and by passages.

Source: HippoRAG 2 (arXiv:2502.14802) as its public code runs it, see `papers/README.md`; names, passage seeds by H and
their power are additions, off by default.
"""

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gpu_rag.query.graph_view import GraphView, GraphViewConfig
from gpu_rag.query.repository import Repository
from gpu_rag.query.retrievers import Queries, Ranking, min_max, top_rows
from gpu_rag.query.retrievers.bm25 import Bm25Config
from gpu_rag.query.retrievers.hybrid import HybridConfig, hybrid_scores


class PprConfig(BaseModel):
    """Seeds and walk; the defaults are HippoRAG 2's.

    Attributes:
        view: The graph.
        num_facts: Facts, by cosine, whose ends are seeded; 0 switches them off.
        num_phrases: Ends that are kept, by weight.
        fact_weight: Factor on the weights of these ends.
        name_weight: Weight of a name found in the question, divided by its document frequency; 0 switches names off.
        passage_scores: `dense`: min-max cosine; `hybrid`: H.
        passage_weight: Times the passage's score to the `passage_power`.
        passage_power: Higher powers leave the mass to the best passages.
        walk_without_entities: Walk from passages alone where no fact and no name was found; else rank by cosine, as
            HippoRAG 2 does.
        damping: Share of mass that walks on.
        tol: Bound of the walk's L1 error, above the rounding of float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    view: GraphViewConfig = GraphViewConfig()
    num_facts: NonNegativeInt = 5
    num_phrases: PositiveInt = 5
    fact_weight: PositiveFloat = 1.0
    name_weight: NonNegativeFloat = 0.0
    passage_scores: Literal["dense", "hybrid"] = "dense"
    passage_weight: NonNegativeFloat = 0.05
    passage_power: PositiveInt = 1
    walk_without_entities: bool = False
    damping: float = Field(default=0.5, ge=0, lt=1)
    tol: PositiveFloat = 1e-5


def rank_ppr(
    queries: Queries, depth: int, *, config: PprConfig, hybrid: HybridConfig, bm25: Bm25Config, repository: Repository
) -> list[Ranking]:
    """Return the chunks by their share of the walk.

    Flags: `no_entities` (neither fact nor name), `no_seed` or `bad_seed` (no walk; ranked by cosine, `fallback_dense`),
    `not_converged` (ranked by the walk, whose error is above `tol`).
    """
    from gpu_rag.graph import SeedFlag, personalized_pagerank  # torch, which a driver never needs

    view = repository.graph_view(config.view)
    num_chunks = len(repository.chunk_ids)
    dense = repository.chunk_search.scores(queries.vectors)
    reset, lost = ppr_resets(queries, dense, config=config, hybrid=hybrid, bm25=bm25, repository=repository)
    walk = personalized_pagerank(
        view.graph, view.graph.weights.new_tensor(reset), damping=config.damping, tol=config.tol,
        top_range=(0, num_chunks), top_k=depth,
    )  # fmt: skip
    top = [part.cpu().numpy() for part in (walk.top_indices, walk.top_scores, walk.top_counts) if part is not None]
    rankings = []
    for query, (flag, rows, scores, count) in enumerate(zip(walk.flags.tolist(), *top, strict=True)):
        flags = ("no_entities",) * bool(lost[query]) + tuple(str(item.name).lower() for item in SeedFlag(flag))
        if flag & (SeedFlag.NO_SEED | SeedFlag.BAD_SEED):
            rankings.append(top_rows(dense[query], depth, flags=(*flags, "fallback_dense")))
        else:
            rankings.append(Ranking(rows[:count], scores[:count], flags))
    return rankings


def ppr_resets(
    queries: Queries, dense: np.ndarray, *, config: PprConfig, hybrid: HybridConfig, bm25: Bm25Config, repository: Repository
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the walks start, float32 (B, N), not normalised, and which queries have neither fact nor name, bool (B,).

    Args:
        queries: B queries.
        dense: Their cosines to the chunks, float32 (B, C).
        config: Seeds.
        hybrid: Of the passage scores H.
        bm25: Likewise.
        repository: The index.
    """
    view = repository.graph_view(config.view)
    passages = dense
    if config.passage_scores == "hybrid":
        passages = hybrid_scores(queries, config=hybrid, bm25=bm25, repository=repository)
    reset = np.zeros((len(queries.texts), view.graph.num_nodes), dtype=np.float32)
    _seed_facts(reset, queries, view, config, repository)
    _seed_names(reset, queries, view, config, repository)
    lost = np.asarray(reset.sum(axis=1) == 0)
    for row in range(len(reset)):
        seeds = np.float32(config.passage_weight) * _power(min_max(passages[row]), config.passage_power)
        reset[row, : dense.shape[1]] = seeds
    if not config.walk_without_entities:
        reset[lost] = 0
    return reset, lost


def _seed_facts(reset: np.ndarray, queries: Queries, view: GraphView, config: PprConfig, repository: Repository) -> None:
    """Add the weights of the best facts' ends: min-max score over passages of the end, averaged over its facts."""
    facts = np.arange(len(repository.fact_ids))
    if config.view.graph == "governed":
        facts = facts[repository.fact_accepted]
    if not config.num_facts or not len(facts):
        return
    nodes = view.entity_nodes[np.stack([repository.fact_subject, repository.fact_object], axis=1)]
    all_scores = repository.fact_search.scores(queries.vectors)
    for row in range(len(reset)):
        scores = min_max(all_scores[row, facts])
        weights: dict[int, list[float]] = {}
        best = top_rows(scores, config.num_facts)
        for fact, score in zip(facts[best.rows], best.scores.tolist(), strict=True):
            for node in nodes[fact].tolist():
                weights.setdefault(node, []).append(score / max(int(view.num_passages[node]), 1))
        means = {node: sum(values) / len(values) for node, values in weights.items()}
        for node in sorted(means, key=lambda node: (-means[node], node))[: config.num_phrases]:
            reset[row, node] += config.fact_weight * means[node]


def _seed_names(reset: np.ndarray, queries: Queries, view: GraphView, config: PprConfig, repository: Repository) -> None:
    """Add the weight of each linked name that stands in the question, once per name."""
    if not config.name_weight:
        return
    for row, text in enumerate(queries.texts):
        for entity in sorted({entity for _, _, entity in repository.find_names(text)}):
            reset[row, view.entity_nodes[entity]] += config.name_weight / repository.num_chunks_of_entity[entity]


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return values ** exponent by multiplication, the same bits at any place of an array."""
    power = values
    for _ in range(exponent - 1):
        power = power * values
    return power
