import numpy as np
import pytest

from gpu_rag.query.graph_view import GraphViewConfig
from gpu_rag.query.retrievers import Queries, min_max, top_rows
from gpu_rag.query.retrievers.bm25 import Bm25Config
from gpu_rag.query.retrievers.dense import rank_dense
from gpu_rag.query.retrievers.hybrid import HybridConfig, hybrid_scores
from gpu_rag.query.retrievers.ppr import PprConfig, rank_ppr


def queries(encoder, *texts: str) -> Queries:
    return Queries(list(texts), encoder.encode(list(texts), kind="query").vectors)


def walk(queries_: Queries, config: PprConfig, repository, depth: int = 10):
    return rank_ppr(queries_, depth, config=config, hybrid=HybridConfig(), bm25=Bm25Config(), repository=repository)


@pytest.fixture(scope="module")
def chain(make_repository):
    """d1 names A and B, d2 names B and C, d3 names D alone, d4 names nothing."""
    documents = {
        "d1": ("", "Alpha met Beta."),
        "d2": ("", "Beta met Gamma."),
        "d3": ("", "Delta slept."),
        "d4": ("", "x y."),
    }
    triples = [
        ("d1", "Alpha", "met", "Beta", "accept"), ("d2", "Beta", "met", "Gamma", "reject"),
        ("d3", "Delta", "is", "Delta", "accept"),
    ]  # fmt: skip
    return make_repository(documents, triples, ["Alpha", "Beta", "Gamma", "Delta"])


def row_of(repository, doc_id: str) -> int:
    return repository.chunk_doc_ids.index(doc_id)


@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_top_rows_are_by_score_then_row(depth):
    ranking = top_rows(np.array([0.5, 1.0, 0.0, 1.0, 0.5], np.float32), depth)
    assert list(ranking.rows) == [1, 3, 0, 4, 2][:depth]
    assert list(top_rows(np.array([0.0, 2.0, 0.0], np.float32), depth, positive=True).rows) == [1]
    assert len(top_rows(np.empty(0, np.float32), depth).rows) == 0


def test_min_max_of_equal_scores_is_one_above_zero_and_zero_else():
    assert list(min_max(np.array([2.0, 4.0, 3.0]))) == [0.0, 1.0, 0.5]
    assert list(min_max(np.array([0.3, 0.3]))) == [1.0, 1.0]
    assert list(min_max(np.zeros(2))) == [0.0, 0.0]
    assert len(min_max(np.empty(0))) == 0


def test_hybrid_follows_its_formula(chain, encoder):
    asked = queries(encoder, "Beta met")
    dense = chain.chunk_vectors @ asked.vectors[0]
    sentences = chain.sentence_vectors @ asked.vectors[0]
    best = np.array([sentences[chain.sentence_indptr[c] : chain.sentence_indptr[c + 1]].max() for c in range(4)])
    words = chain.lexical.chunks.scores(["Beta met"])[0]
    by_sentence = chain.lexical.sentences.scores(["Beta met"])[0]
    words_best = np.array([by_sentence[chain.sentence_indptr[c] : chain.sentence_indptr[c + 1]].max() for c in range(4)])
    expected = (min_max(0.5 * dense + 0.5 * best) + 0.15 * min_max(words) + 0.15 * min_max(words_best)) / 1.3
    scores = hybrid_scores(asked, config=HybridConfig(), bm25=Bm25Config(), repository=chain)
    np.testing.assert_allclose(scores[0], expected, atol=1e-6)


def test_chunk_without_sentences_has_its_own_score_in_their_place(make_tables, encoder):
    from gpu_rag.query.repository import Repository

    tables = make_tables({"a": ("", "one two."), "b": ("", "three four.")})
    repository = Repository.from_tables({**tables, "sentences": tables["sentences"].slice(0, 1)})
    scores = hybrid_scores(queries(encoder, "one"), config=HybridConfig(), bm25=Bm25Config(), repository=repository)
    assert np.isfinite(scores).all()
    assert scores[0].argmax() == row_of(repository, "a")


def test_fact_walk_reaches_the_passage_behind_the_shared_name(chain, encoder):
    config = PprConfig(view=GraphViewConfig(), num_facts=1, passage_weight=0.0)
    (ranking,) = walk(queries(encoder, "Alpha met"), config, chain)
    assert [chain.chunk_doc_ids[row] for row in ranking.rows] == ["d1", "d2"]  # d3 and d4 hang on nothing seeded
    assert ranking.flags == ()


def test_rejected_relations_are_not_walked_in_the_governed_view(chain, encoder):
    config = PprConfig(view=GraphViewConfig(graph="governed"), num_facts=1, passage_weight=0.0)
    (ranking,) = walk(queries(encoder, "Alpha met"), config, chain)
    assert [chain.chunk_doc_ids[row] for row in ranking.rows] == ["d1"]


def test_fact_weights_are_averaged_divided_by_passages_and_cut(make_repository, encoder):
    triples = [("a", "hub", "p", "one", "accept"), ("b", "hub", "q", "two", "accept")]
    repository = make_repository({"a": ("", "hub one."), "b": ("", "hub two.")}, triples)
    config = PprConfig(num_facts=2, num_phrases=1, passage_weight=0.0, damping=0.0)
    view = repository.graph_view(config.view)
    asked = queries(encoder, "hub p one")
    scores = min_max(repository.fact_vectors @ asked.vectors[0])
    best = repository.fact_object[scores.argmax()]
    from gpu_rag.query.retrievers.ppr import _seed_facts

    reset = np.zeros((1, view.graph.num_nodes), np.float32)
    _seed_facts(reset, asked, view, config.model_copy(update={"num_phrases": 5}), repository)
    hub = view.entity_nodes[repository.fact_subject[0]]
    assert reset[0, view.entity_nodes[best]] == pytest.approx(1.0)  # the better fact's own end, one passage
    assert reset[0, hub] == pytest.approx((1.0 / 2 + 0.0 / 2) / 2)  # two facts, two passages
    reset[:] = 0
    _seed_facts(reset, asked, view, config, repository)
    assert np.flatnonzero(reset[0]).tolist() == [view.entity_nodes[best]]


def test_query_without_seed_falls_back_to_dense_and_the_others_are_untouched(chain, encoder):
    view = GraphViewConfig(weights={"passage_name": 1.0})
    config = PprConfig(view=view, num_facts=0, name_weight=0.3)
    named = [f"Where did {name} go?" for name in ("Alpha Beta", "Beta", "Beta Gamma")]
    batch = [text for text in named for _ in range(30)] + ["no name here"]
    rankings = walk(queries(encoder, *batch), config, chain)
    without = walk(queries(encoder, *batch[:-1]), config, chain)
    dense = rank_dense(queries(encoder, "no name here"), 10, repository=chain)[0]
    assert rankings[-1].flags == ("no_entities", "no_seed", "fallback_dense")
    assert list(rankings[-1].rows) == list(dense.rows)
    for ranking, other in zip(rankings[:-1], without, strict=True):
        assert ranking.flags == ()
        assert np.array_equal(ranking.rows, other.rows)
        assert np.array_equal(ranking.scores, other.scores)


def test_walk_from_passages_alone_is_a_switch(chain, encoder):
    view = GraphViewConfig(weights={"passage_name": 1.0})
    config = PprConfig(view=view, num_facts=0, name_weight=0.3, walk_without_entities=True)
    (ranking,) = walk(queries(encoder, "met slept"), config, chain)
    assert ranking.flags == ("no_entities",)
    assert len(ranking.rows) > 0


def test_names_are_weighed_by_document_frequency_once_each(chain, encoder):
    from gpu_rag.query.retrievers.ppr import _seed_names

    config = PprConfig(name_weight=0.3)
    view = chain.graph_view(config.view)
    reset = np.zeros((1, view.graph.num_nodes), np.float32)
    _seed_names(reset, queries(encoder, "Beta and Beta again"), view, config, chain)
    assert np.flatnonzero(reset[0]).tolist() == [view.entity_nodes[chain.entity_names.index("Beta")]]
    assert reset[0].max() == pytest.approx(0.3 / 2)


def test_higher_power_leaves_the_mass_to_the_best_passages(chain, encoder):
    def share(power: int) -> float:
        config = PprConfig(num_facts=0, passage_power=power, passage_weight=0.2, walk_without_entities=True, damping=0.0)
        (ranking,) = walk(queries(encoder, "Alpha met Beta"), config, chain)
        return float(ranking.scores[0] / ranking.scores.sum())

    assert share(1) < share(8)
