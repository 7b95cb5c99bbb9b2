"""Stage 07: links, nodes, edges of all kinds."""

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpu_rag import ids, schemas
from gpu_rag.ids import entity_id
from gpu_rag.index import s07_graph, synonyms
from gpu_rag.index.s07_graph import GraphConfig
from gpu_rag.index.synonyms import synonym_pairs
from gpu_rag.spans import normal_form

Run = Callable[..., Any]


def build(tables: dict[str, pa.Table], config: GraphConfig | None = None) -> dict[str, pa.Table]:
    return tables | s07_graph.STAGE.run(tables, config=config or GraphConfig())


def edges(tables: dict[str, pa.Table], kind: str) -> dict[tuple[str, str], tuple[int, int, float]]:
    rows = [row for row in tables["edges"].to_pylist() if row["kind"] == kind]
    return {(row["source_id"], row["target_id"]): (row["count"], row["accepted"], row["weight"]) for row in rows}


def eid(name: str) -> str:
    return entity_id(normal_form(name))


def pair(first: str, second: str) -> tuple[str, str]:
    return (min(eid(first), eid(second)), max(eid(first), eid(second)))


def chunk_of(tables: dict[str, pa.Table], doc_id: str) -> str:
    return str(next(row["chunk_id"] for row in tables["chunks"].to_pylist() if row["doc_id"] == doc_id))


def linked(tables: dict[str, pa.Table], name: str) -> set[str]:
    return {row["doc_id"] for row in tables["links"].to_pylist() if row["entity_id"] == eid(name)}


RECORDED = {
    "d1": (
        ["Bern"],
        [["Bern", "in", "Europe"], ["Europe", "holds", "Bern"], ["Bern", "in", "Asia"], ["Bern", "is", "Bern"]],
    ),
    "d2": ([], [["Bern", "in", "Europe"]]),
}
DOCUMENTS = {"d1": ("", "Bern in Europe."), "d2": ("", "Bern, Europe."), "d3": ("", "nothing.")}


def test_relation_edges_count_the_relations_of_a_pair_either_way_and_the_accepted_ones(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus(DOCUMENTS, RECORDED), "recorded"))
    assert edges(tables, "relation") == {pair("Bern", "Europe"): (3, 3, 3.0), pair("Bern", "Asia"): (1, 0, 1.0)}


def test_passage_entity_edges_join_a_chunk_to_the_ends_of_its_relations(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus(DOCUMENTS, RECORDED), "recorded"))
    found = edges(tables, "passage_entity")
    assert found[chunk_of(tables, "d1"), eid("Bern")] == (4, 2, 1.0)  # that Bern is Bern is rejected
    assert found[chunk_of(tables, "d1"), eid("Asia")] == (1, 0, 1.0)
    assert len(found) == 5


def test_co_mentions_are_no_relation_edges(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus({"d1": ("", "Marie Curie met Paul Langevin.")})))
    assert tables["relations"].num_rows == 1
    assert not edges(tables, "relation")
    assert not edges(tables, "passage_entity")


def test_every_chunk_and_every_entity_is_a_node_edges_or_not(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus(DOCUMENTS, {**RECORDED, "d3": (["Unseen"], [])}), "recorded"))
    nodes = tables["nodes"].to_pylist()
    assert {row["node_id"] for row in nodes if row["kind"] == "passage"} == set(tables["chunks"].column("chunk_id").to_pylist())
    assert {row["node_id"] for row in nodes if row["kind"] == "entity"} == {
        eid(n) for n in ("Bern", "Europe", "Asia", "Unseen")
    }
    ends = {end for row in tables["edges"].to_pylist() for end in (row["source_id"], row["target_id"])}
    assert {chunk_of(tables, "d3"), eid("Unseen")} & ends == set()
    assert len(nodes) == len({row["node_id"] for row in nodes}) == 7


def test_a_known_name_is_linked_wherever_it_stands_and_its_weight_falls_with_its_frequency(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("Marie Curie", "She was a chemist."),
        "d2": ("", "the work of MARIE CURIE was new."),
        "d3": ("", "nothing at all."),
    }
    tables = build(govern(corpus(documents)))
    assert linked(tables, "Marie Curie") == {"d1", "d2"}
    weight = edges(tables, "passage_name")[chunk_of(tables, "d2"), eid("Marie Curie")][2]
    assert weight == pytest.approx(1 / math.log2(3))
    sources = dict(zip(*(tables["chunks"].column(n).to_pylist() for n in ("doc_id", "text")), strict=True))
    assert {sources[row["doc_id"]][row["start"] : row["end"]] for row in tables["links"].to_pylist()} == {
        "Marie Curie",
        "MARIE CURIE",
    }


def test_a_title_with_a_parenthesis_is_linked_without_it(corpus: Run, govern: Run) -> None:
    documents = {"d1": ("Mercury (planet)", "a planet."), "d2": ("", "we saw Mercury (the planet).")}
    tables = build(govern(corpus(documents)))
    assert linked(tables, "Mercury") == {"d1", "d2"}
    assert linked(tables, "Mercury (planet)") == {"d1", "d2"}


def test_a_one_word_name_of_a_single_chunk_is_not_looked_for_elsewhere(corpus: Run, govern: Run) -> None:
    documents = {"d1": ("", "Founded by Bern."), "d2": ("", "Founded in Bern."), "d3": ("", "Founded. Bern.")}
    recorded: dict[str, Any] = {"d1": (["Founded", "Bern"], []), "d2": (["Bern"], []), "d3": ([], [])}
    tables = build(govern(corpus(documents, recorded), "recorded"))
    assert linked(tables, "Founded") == {"d1"}
    assert linked(tables, "Bern") == {"d1", "d2", "d3"}


def test_rejected_mentions_are_no_links(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus({"d1": ("", "Bern.")}, {"d1": (["Zoo"], [])}), "recorded"))
    assert tables["links"].num_rows == 0


def with_vectors(tables: dict[str, pa.Table], vectors: dict[str, list[float]]) -> dict[str, pa.Table]:
    unit = {name: (np.asarray(v) / np.linalg.norm(v)).astype(np.float32).tolist() for name, v in vectors.items()}
    rows = [{"vector_id": ids.vector_id(n), "vector": v, "num_tokens": 1, "cut_tokens": 0} for n, v in unit.items()]
    items: list[dict[str, object]] = [{"kind": "entity", "item_id": eid(n), "vector_id": ids.vector_id(n)} for n in unit]
    return tables | {"vectors": schemas.VECTORS.from_rows(rows), "embeddings": schemas.EMBEDDINGS.from_rows(items)}


def test_synonym_edges_join_like_names_of_enough_letters(corpus: Run, govern: Run) -> None:
    names = ["Alpha One", "Alpha Two", "Beta", "Q1"]
    tables = govern(corpus({"d1": ("", ". ".join(names))}, {"d1": (names, [])}), "recorded")
    tables = with_vectors(tables, {"Alpha One": [1, 0.1], "Alpha Two": [1, 0.2], "Beta": [0, 1], "Q1": [1, 0.1]})
    found = edges(build(tables), "synonym")
    assert list(found) == [pair("Alpha One", "Alpha Two")]
    assert found[pair("Alpha One", "Alpha Two")][2] == pytest.approx(1.02 / math.sqrt(1.01 * 1.04), abs=1e-6)
    assert not edges(build(tables, GraphConfig(synonym_max=0)), "synonym")


@pytest.mark.parametrize("num_entities", [0, 1, 2, 57])
def test_synonym_pairs_equal_the_full_product(num_entities: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.index.synonyms._BLOCK_BYTES", 1000)
    vectors = np.random.default_rng(3).normal(size=(num_entities, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second, cosine = synonym_pairs(vectors, 0.7, 100)
    full = vectors @ vectors.T
    expected = [(i, j) for i in range(num_entities) for j in range(i + 1, num_entities) if full[i, j] >= 0.7]
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected
    np.testing.assert_allclose(cosine, [full[i, j] for i, j in expected], atol=1e-6)


def test_an_entity_proposes_at_most_its_nearest_and_the_smaller_of_equals() -> None:
    angles = np.array([0.0, 0.1, 0.1, 0.2, 0.3])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    first, second, _ = synonym_pairs(vectors, 0.5, 1)
    # 0 -> 1, 1 -> 2, 2 -> 1, 3 -> 1 or 2 at equal cosine: the smaller; 4 -> 3
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 1), (1, 2), (1, 3), (3, 4)]


def test_references_hold_and_the_order_of_documents_does_not_matter(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus(DOCUMENTS, RECORDED), "recorded", "mentions"))
    backwards = dict(reversed(DOCUMENTS.items()))
    again = build(govern(corpus(backwards, RECORDED), "mentions", "recorded"))
    for name in ("links", "nodes", "edges", "entities"):
        assert tables[name].equals(again[name]), name
    known = set(tables["nodes"].column("node_id").to_pylist())
    ends = pa.chunked_array([*tables["edges"].column("source_id").chunks, *tables["edges"].column("target_id").chunks])
    assert set(ends.to_pylist()) <= known
    assert set(tables["links"].column("entity_id").to_pylist()) <= known


def test_a_document_without_relations_stays_once(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus(DOCUMENTS, {**RECORDED, "d3": ([], [])}), "recorded"))
    assert tables["nodes"].column("node_id").to_pylist().count(chunk_of(tables, "d3")) == 1


def test_synonyms_are_found_block_by_block_not_in_one_square_of_all_entities(monkeypatch) -> None:
    monkeypatch.setattr(synonyms, "_BLOCK_BYTES", 1 << 20)
    peaks = []
    for num_entities in (1000, 4000):
        vectors = np.random.default_rng(0).normal(size=(num_entities, 16)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        tracemalloc.start()
        synonyms.synonym_pairs(vectors, 0.95, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 4000 * 4000  # the square alone would take four times that
    assert peaks[1] < 2 * peaks[0]
