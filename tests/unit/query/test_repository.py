import logging

import numpy as np
import pyarrow as pa
import pytest

from gpu_rag import ids
from gpu_rag.errors import InputError, StoreError
from gpu_rag.query.graph_view import GraphViewConfig
from gpu_rag.query.repository import TABLES, Repository, open_repository
from gpu_rag.store import ArtifactStore, publish_generation

DOCUMENTS = {
    "d1": ("Rome", "Rome lies on the Tiber. Nero ruled Rome."),
    "d2": ("Nero", "Nero was an emperor. He sang."),
    "d3": ("", "An untitled text about nothing."),
    "d4": ("\u6771\u4eac", "\u6771\u4eac is a city."),
}
TRIPLES = [
    ("d1", "Nero", "ruled", "Rome", "accept"),
    ("d2", "Nero", "ruled", "Rome", "accept"),
    ("d2", "Nero", "sang in", "Ostia", "reject"),
    ("d2", "Nero", "co-mentioned", "Rome", "accept"),
]
NAMES = ["Nero", "Rome", "Tiber", "\u6771\u4eac"]


def entity(name: str) -> str:
    return ids.entity_id(name.lower())


def dense_weights(view) -> np.ndarray:
    graph = view.graph
    weights = np.zeros((graph.num_nodes, graph.num_nodes))
    for row in range(graph.num_nodes):
        part = slice(int(graph.indptr[row]), int(graph.indptr[row + 1]))
        weights[row, graph.indices[part].numpy()] = graph.weights[part].numpy()
    return weights


@pytest.fixture(scope="module")
def repository(make_repository) -> Repository:
    return make_repository(DOCUMENTS, TRIPLES, NAMES, [("Rome", "Ostia", 0.9)])


def test_chunks_are_in_id_order_and_their_slices_stand_in_the_source_text(repository):
    assert repository.chunk_ids == sorted(repository.chunk_ids)
    for row, chunk_id in enumerate(repository.chunk_ids):
        assert repository.chunk_index[chunk_id] == row
        source = repository.source_text(repository.chunk_doc_ids[row])
        assert source[repository.chunk_starts[row] : repository.chunk_ends[row]] == repository.chunk_texts[row]


def test_sentences_are_grouped_by_chunk_in_reading_order(repository):
    assert repository.sentence_indptr[0] == 0
    assert repository.sentence_indptr[-1] == len(repository.sentence_texts)
    row = repository.chunk_doc_ids.index("d1")
    own = slice(repository.sentence_indptr[row], repository.sentence_indptr[row + 1])
    assert repository.sentence_texts[own] == ["Rome lies on the Tiber.", "Nero ruled Rome."]
    assert (repository.sentence_chunks[own] == row).all()
    source = repository.source_text("d1")
    for text, start, end in zip(
        repository.sentence_texts[own], repository.sentence_starts[own], repository.sentence_ends[own], strict=True
    ):
        assert source[start:end] == text


def test_vectors_belong_to_their_items_whatever_the_row_order_of_the_tables(make_tables, encoder):
    tables = make_tables(DOCUMENTS, TRIPLES, NAMES)
    shuffled = {
        name: table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows))) for name, table in tables.items()
    }
    for repository in (Repository.from_tables(tables), Repository.from_tables(shuffled)):
        assert np.array_equal(repository.chunk_vectors, encoder.encode(repository.titled_chunk_texts()).vectors)
        assert np.array_equal(repository.sentence_vectors, encoder.encode(repository.titled_sentence_texts()).vectors)
        assert repository.fact_vectors.shape == (2, encoder.dim)
        names = [repository.entity_names[row] for row in repository.fact_subject]
        assert names == ["Nero", "Nero"]


def test_title_is_put_before_a_chunk_only_if_the_chunk_does_not_hold_it(make_tables):
    tables = make_tables({"d": ("Rome", "A city.")})
    whole = tables["chunks"].to_pylist()[0] | {"start": 0, "text": "Rome\nA city."}
    tables["chunks"] = pa.Table.from_pylist([whole], schema=tables["chunks"].schema)
    assert Repository.from_tables(tables).titled_chunk_texts() == ["Rome\nA city."]
    assert Repository.from_tables(make_tables({"d": ("Rome", "A city.")})).titled_chunk_texts() == ["Rome\nA city."]
    assert Repository.from_tables(make_tables({"d": ("", "A city.")})).titled_chunk_texts() == ["A city."]


def test_links_are_sorted_and_document_frequency_counts_chunks_once(repository):
    rows = dict(zip(repository.entity_names, range(len(repository.entity_names)), strict=True))
    assert repository.num_chunks_of_entity[rows["Rome"]] == 1  # three places, one chunk
    assert repository.num_chunks_of_entity[rows["Nero"]] == 2
    assert repository.num_chunks_of_entity[rows["Ostia"]] == 0
    row = repository.chunk_doc_ids.index("d1")
    own = slice(repository.link_indptr[row], repository.link_indptr[row + 1])
    assert list(repository.link_starts[own]) == sorted(repository.link_starts[own])
    source = repository.source_text("d1")
    for linked, start, end in zip(
        repository.link_entities[own], repository.link_starts[own], repository.link_ends[own], strict=True
    ):
        assert source[start:end] == repository.entity_names[linked]


def test_names_of_a_question_are_those_that_the_index_has_a_link_to(make_repository):
    documents = {"a": ("Rome", "Nero met Odd and John Smith."), "b": ("Nero", "Alone.")}
    repository = make_repository(documents, (), ["Rome", "Nero", "Odd", "John Smith"])
    found = repository.find_names("Did Nero know Odd, John Smith or Rome?")
    assert [repository.entity_names[row] for _, _, row in found] == ["Nero", "Odd", "John Smith", "Rome"]
    assert [(start, end) for start, end, _ in found] == [(4, 8), (14, 17), (19, 29), (33, 37)]


def test_facts_keep_their_ends_and_co_mentions_state_none(repository):
    assert len(repository.fact_ids) == 2
    objects = {repository.entity_names[row] for row in repository.fact_object}
    assert objects == {"Rome", "Ostia"}
    accepted = dict(zip(repository.fact_object, repository.fact_accepted, strict=True))
    assert {repository.entity_names[row]: bool(value) for row, value in accepted.items()} == {
        "Rome": True,
        "Ostia": False,
    }


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("sentences", "chunk_id"),
        ("links", "entity_id"),
        ("links", "chunk_id"),
        ("relations", "subject_id"),
        ("chunks", "doc_id"),
    ],
)
def test_dangling_reference_is_refused_by_table_and_column(make_tables, table, column):
    tables = make_tables(DOCUMENTS, TRIPLES, NAMES)
    rows = tables[table].to_pylist()
    rows[0][column] = "nowhere"
    tables[table] = pa.Table.from_pylist(rows, schema=tables[table].schema)
    with pytest.raises(InputError, match=rf"table {table}, column {column}: 'nowhere'"):
        Repository.from_tables(tables)


def test_kind_without_embeddings_is_refused_at_use_and_one_missing_vector_counts_as_zero(make_tables, caplog):
    tables = make_tables(DOCUMENTS, TRIPLES, NAMES)
    kinds = np.array(tables["embeddings"].column("kind").to_pylist())
    without = Repository.from_tables({**tables, "embeddings": tables["embeddings"].filter(pa.array(kinds != "fact"))})
    with pytest.raises(InputError, match=r"kind 'fact'.*embed\.kinds"):
        _ = without.fact_vectors
    first = int(np.flatnonzero(kinds == "chunk")[0])
    one_less = tables["embeddings"].filter(pa.array(np.arange(len(kinds)) != first))
    repository = Repository.from_tables({**tables, "embeddings": one_less})
    with caplog.at_level(logging.WARNING):
        vectors = repository.chunk_vectors
    assert (np.abs(vectors).sum(axis=1) == 0).sum() == 1
    assert "1 of 4 chunk embeddings are missing" in caplog.text


def test_empty_index_opens_with_empty_arrays(make_repository):
    repository = make_repository({})
    assert repository.chunk_ids == []
    assert list(repository.sentence_indptr) == [0]
    assert repository.chunk_vectors.shape[0] == 0
    assert repository.find_names("Anything") == []
    assert repository.graph_view(GraphViewConfig()).graph.num_nodes == 0


def test_unknown_document_is_named(repository):
    with pytest.raises(InputError, match="'nope'"):
        repository.source_text("nope")


def test_view_counts_relations_and_governance_takes_the_rejected_out(repository):
    only = {"relation": 2.0, "passage_entity": 0.0, "passage_name": 0.0, "synonym": 0.0}
    node = {name: int(n) for name, n in zip(repository.entity_names, range(4, 4 + len(NAMES) + 1), strict=True)}
    raw = dense_weights(repository.graph_view(GraphViewConfig(weights=only)))
    assert raw[node["Nero"], node["Rome"]] == 4.0  # two relations, weight 2 each; the co-mention adds none
    assert raw[node["Nero"], node["Ostia"]] == 2.0
    governed = dense_weights(repository.graph_view(GraphViewConfig(graph="governed", weights=only)))
    assert governed[node["Nero"], node["Ostia"]] == 0.0
    assert governed[node["Nero"], node["Rome"]] == 4.0
    assert raw.shape == (4 + len(node), 4 + len(node))  # isolated nodes stay


def test_synonym_replaces_or_joins_a_relation_of_the_same_pair(make_repository):
    repository = make_repository({"d": ("", "x y.")}, [("d", "ab c", "is", "abc", "accept")], (), [("ab c", "abc", 0.5)])
    only = {"relation": 2.0, "passage_entity": 0.0, "passage_name": 0.0, "synonym": 2.0}
    replaced = dense_weights(repository.graph_view(GraphViewConfig(weights=only)))
    assert replaced[1, 2] == replaced[2, 1] == 1.0
    summed = dense_weights(repository.graph_view(GraphViewConfig(weights=only, synonym_replaces_relation=False)))
    assert summed[1, 2] == 3.0


def test_ascii_phrases_share_a_node_and_emptied_names_keep_their_own(make_repository):
    triples = [("d", "U.S.", "in", "\u6771\u4eac", "accept"), ("d", "u s", "in", "\u5927\u962a", "accept")]
    repository = make_repository({"d": ("", "x y.")}, triples)
    nodes = dict(
        zip(
            repository.entity_names,
            repository.graph_view(GraphViewConfig(phrase_form="ascii")).entity_nodes,
            strict=True,
        )
    )
    assert nodes["U.S."] == nodes["u s"]
    assert nodes["\u6771\u4eac"] != nodes["\u5927\u962a"]
    unicode = repository.graph_view(GraphViewConfig()).entity_nodes
    assert list(unicode) == [1, 2, 3, 4]
    passages = repository.graph_view(GraphViewConfig(phrase_form="ascii")).num_passages
    assert passages[nodes["U.S."]] == 1


def test_opened_generation_equals_its_tables_and_a_damaged_one_is_refused(make_tables, tmp_path):
    tables = make_tables(DOCUMENTS, TRIPLES, NAMES)
    artifact = ArtifactStore(tmp_path).write("07_graph", "key", tables, TABLES)
    generation = publish_generation(
        tmp_path,
        {"07_graph": artifact},
        config={},
        encoder={"model": "m", "identity": "i"},
        corpus_hash="c",
        counts={},
        code_version="1",
        unfinished={},
    )
    expected = Repository.from_tables(tables)
    for opened in (Repository.open(tmp_path), open_repository(tmp_path, generation.manifest["id"])):
        assert opened.chunk_ids == expected.chunk_ids
        assert np.array_equal(opened.sentence_vectors, expected.sentence_vectors)
        assert np.array_equal(opened.link_starts, expected.link_starts)
    (artifact.folder / "links.parquet").write_bytes(b"torn")
    with pytest.raises(StoreError, match=r"links\.parquet"):
        Repository.open(tmp_path)
