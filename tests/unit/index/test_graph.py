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
from gpu_rag.index import published_graph, s07_graph, synonyms
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


@pytest.mark.parametrize("few", [0, 2000])
@pytest.mark.parametrize("num_entities", [0, 1, 2, 57])
def test_synonym_pairs_equal_the_full_product(num_entities: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.index.synonyms._BLOCK_BYTES", 1000)
    monkeypatch.setattr("gpu_rag.index.synonyms._FEW", few)
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


def title_links(tables: dict[str, pa.Table]) -> dict[tuple[str, str], tuple[int, float]]:
    names = dict(zip(*(tables["chunks"].column(name).to_pylist() for name in ("chunk_id", "doc_id")), strict=True))
    found = edges(tables, "title_link")
    assert all(source < target for source, target in found)
    return {(min(names[a], names[b]), max(names[a], names[b])): (count, weight) for (a, b), (count, _, weight) in found.items()}


def test_a_passage_that_names_a_title_is_linked_with_the_passage_that_has_it(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("Marie Curie", "She was a chemist."),
        "d2": ("Radium", "Found by marie curie. Marie Curie named it."),
        "d3": ("", "Marie and Curie."),
    }
    # Two chunks name the title, its own one too, and one has it.
    assert title_links(build(govern(corpus(documents)))) == {("d1", "d2"): (2, pytest.approx(4 / (2 * 1)))}


def test_titles_named_both_ways_make_one_link_of_both_weights(corpus: Run, govern: Run) -> None:
    documents = {"d1": ("Marie Curie", "She met Pierre Curie."), "d2": ("Pierre Curie", "He met Marie Curie.")}
    assert title_links(build(govern(corpus(documents)))) == {("d1", "d2"): (2, pytest.approx(4.0))}


def test_documents_of_one_title_are_each_linked(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("Saint Bern", "A town."),
        "d2": ("Saint Bern", "A dog."),
        "d3": ("", "He saw Saint Bern."),
        "d4": ("Saint", "He saw Saint Bernard."),
    }
    links = title_links(build(govern(corpus(documents))))
    assert links.keys() == {("d1", "d2"), ("d1", "d3"), ("d2", "d3")}
    assert links["d1", "d3"] == (1, pytest.approx(4 / (3 * 2)))
    assert links["d1", "d2"] == (2, pytest.approx(2 * 4 / (3 * 2)))


def test_a_longer_name_hides_the_title_within_it(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("New York", "A town."),
        "d2": ("Press", "The New York Times wrote."),
        "d3": ("Times", "He read The New York Times, far from New York."),
    }
    assert title_links(build(govern(corpus(documents)))).keys() == {("d1", "d3")}


def test_a_title_is_named_within_a_spotted_name_and_without_its_parenthesis(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("Mercury (planet)", "It has no moon."),
        "d2": ("", "They saw Mercury in Bern."),
        "d3": ("Bern", "A town."),
        "d4": ("", "They saw Mercurys."),
    }
    assert title_links(build(govern(corpus(documents)))).keys() == {("d1", "d2"), ("d2", "d3")}


def test_a_title_that_is_no_entity_is_found_and_hides_no_name(corpus: Run, govern: Run) -> None:
    documents = {
        "d1": ("Paris Accord", "A treaty."),
        "d2": ("", "Named in the Paris Accord."),
        "d3": ("", "Paris, an accord."),
    }
    tables = build(govern(corpus(documents, {"d1": ([], []), "d2": (["Paris"], []), "d3": (["Paris"], [])}), "recorded"))
    assert eid("Paris Accord") not in tables["entities"].column("entity_id").to_pylist()
    assert title_links(tables).keys() == {("d1", "d2")}
    assert linked(tables, "Paris") == {"d1", "d2", "d3"}


def test_a_passage_is_not_linked_with_its_own_document(corpus: Run, govern: Run) -> None:
    tables = govern(corpus({"d1": ("Marie Curie", "Marie Curie was a chemist."), "d2": ("", "Nobody.")}))
    rows = tables["chunks"].to_pylist()
    own = next(row for row in rows if row["doc_id"] == "d1")
    rows.append(own | {"chunk_id": "f" * 32, "order": 1, "start": 100, "end": 112, "text": "Marie Curie."})
    assert not edges(build(tables | {"chunks": schemas.CHUNKS.from_rows(rows)}), "title_link")


def test_a_title_that_would_join_too_many_joins_none(corpus: Run, govern: Run) -> None:
    documents = {f"d{i}": ("Annual Report", f"Number {i}.") for i in range(4)} | {
        "e1": ("Great Dam", "A dam."),
        "e2": ("", "The Great Dam."),
    }
    tables = govern(corpus(documents))
    assert len(title_links(build(tables, GraphConfig(title_link_max=16)))) == 6 + 1
    assert title_links(build(tables, GraphConfig(title_link_max=15))).keys() == {("e1", "e2")}
    assert not title_links(build(tables, GraphConfig(title_link_max=0)))


def test_an_entity_and_a_title_of_every_chunk_stay_linear(corpus: Run, govern: Run) -> None:
    documents = {f"d{i}": ("Annual Report", f"Bern number {i}.") for i in range(2000)}
    tables = build(govern(corpus(documents)))
    assert len([target for _, target in edges(tables, "passage_name") if target == eid("Annual Report")]) == 2000
    assert not edges(tables, "title_link")
    assert tables["edges"].num_rows <= tables["links"].num_rows


def test_nodes_have_the_kinds_of_their_entities_and_descriptions_are_nodes(corpus: Run, govern: Run) -> None:
    tables = govern(corpus(DOCUMENTS, RECORDED), "recorded")
    rows = [row | {"kind": "concept" if row["name"] == "Bern" else row["kind"]} for row in tables["entities"].to_pylist()]
    described: list[dict[str, object]] = [
        {"description_id": "x1", "entity_id": eid("Bern"), "mention_id": "m", "text": "A town."}
    ]
    tables |= {"entities": schemas.ENTITIES.from_rows(rows), "descriptions": schemas.DESCRIPTIONS.from_rows(described)}
    kinds = {row["node_id"]: row["kind"] for row in build(tables)["nodes"].to_pylist()}
    assert kinds[eid("Bern")] == "concept"
    assert kinds[eid("Europe")] == "entity"
    assert kinds["x1"] == "description"


def test_the_published_graph_has_passages_then_entities_of_every_kind_and_no_descriptions() -> None:
    kinds = {"c2": "passage", "c1": "passage", "z": "claim", "b": "entity", "a": "description", "k": "concept"}
    nodes = schemas.NODES.build({"node_id": list(kinds), "kind": list(kinds.values())})
    assert published_graph.node_ids(nodes).to_pylist() == ["c1", "c2", "b", "k", "z"]


def test_what_travels_to_the_worker_is_enough_and_has_the_vectors_of_names_alone(corpus: Run, govern: Run) -> None:
    tables = govern(corpus(DOCUMENTS, RECORDED), "recorded")
    tables = with_vectors(tables, {"Bern": [1, 0.1], "Europe": [1, 0.2]})
    more = {"vector_id": "other", "vector": [0.0, 1.0], "num_tokens": 1, "cut_tokens": 0}
    tables["vectors"] = schemas.VECTORS.from_rows([*tables["vectors"].to_pylist(), more])
    item = {"kind": "chunk", "item_id": "c", "vector_id": "other"}
    tables["embeddings"] = schemas.EMBEDDINGS.from_rows([*tables["embeddings"].to_pylist(), item])
    assert s07_graph.STAGE.narrow is not None
    narrowed = dict(s07_graph.STAGE.narrow(tables))
    assert narrowed.keys() == set(s07_graph.STAGE.reads)
    assert narrowed["vectors"].num_rows == 2
    whole, again = build(tables), build(narrowed)
    assert edges(whole, "synonym")
    assert all(whole[name].equals(again[name]) for name in ("links", "nodes", "edges"))


def test_a_pair_has_one_cosine_whatever_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(5).normal(size=(300, 48)).astype(np.float32)
    vectors[:, 0] += 20.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second, cosine = synonym_pairs(vectors, 0.5, 300)
    assert len(first) == 300 * 299 // 2  # all are alike: found through whole products
    monkeypatch.setattr("gpu_rag.index.synonyms._FEW", 0)
    monkeypatch.setattr("gpu_rag.index.synonyms._BLOCK_BYTES", 5000)
    monkeypatch.setattr("gpu_rag.index.synonyms._SLICE_BYTES", 1000)
    few = synonym_pairs(vectors[:7], 0.5, 300)
    of_pair = dict(zip(zip(first.tolist(), second.tolist(), strict=True), cosine.tolist(), strict=True))
    assert few[2].tolist() == [of_pair[pair] for pair in zip(few[0].tolist(), few[1].tolist(), strict=True)]


@pytest.mark.parametrize("spread", [0.05, 0.4, 2.0])
def test_bounds_lose_no_pair_and_the_nearest_are_those_of_the_full_product(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_rag.index.synonyms._FEW", 0)
    rng = np.random.default_rng(7)
    vectors = (rng.normal(size=(10, 32))[rng.integers(0, 10, 400)] + spread * rng.normal(size=(400, 32))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    full = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    np.fill_diagonal(full, -1.0)
    nearest = np.argsort(-full, axis=1, kind="stable")[:, :5]
    proposed = {(min(i, j), max(i, j)) for i in range(400) for j in nearest[i].tolist() if full[i, j] >= 0.8}
    first, second, _ = synonym_pairs(vectors, 0.8, 5)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == proposed


TITLED = {
    "d1": ("Marie Curie", "She met Pierre Curie in Paris."),
    "d2": ("Pierre Curie", "He met Marie Curie."),
    "d3": ("Paris", "A city. Pierre Curie lived there."),
    "d4": ("Paris", "A play."),
}


def test_a_deleted_document_leaves_no_end_of_an_edge_and_no_node(corpus: Run, govern: Run) -> None:
    tables = build(govern(corpus({name: text for name, text in TITLED.items() if name != "d2"}), "mentions"))
    gone = chunk_of(build(govern(corpus(TITLED))), "d2")
    nodes = set(tables["nodes"].column("node_id").to_pylist())
    ends = {end for row in tables["edges"].to_pylist() for end in (row["source_id"], row["target_id"])}
    assert ends <= nodes
    assert gone not in nodes
    assert {row["doc_id"] for row in tables["links"].to_pylist()} == {"d1", "d3", "d4"}
    assert title_links(tables).keys() == {("d1", "d3"), ("d1", "d4"), ("d3", "d4")}


def test_title_links_follow_the_texts_and_not_the_ids_of_documents(corpus: Run, govern: Run) -> None:
    renamed = {"d1": "z", "d2": "a", "d3": "m", "d4": "k"}
    links = title_links(build(govern(corpus(TITLED))))
    again = title_links(build(govern(corpus({renamed[name]: text for name, text in TITLED.items()}))))
    assert len(links) == 5
    pairs = {(min(renamed[a], renamed[b]), max(renamed[a], renamed[b])): value for (a, b), value in links.items()}
    assert again.keys() == pairs.keys()
    assert all(again[ends] == (count, pytest.approx(weight)) for ends, (count, weight) in pairs.items())
