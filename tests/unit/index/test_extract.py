"""Stage 04: units of each chunk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.errors import ConfigError, InputError
from gpu_rag.index import s04_extract
from gpu_rag.index.entities import CO_MENTIONED
from gpu_rag.index.extractors import Chunk, Extraction, Mention, Relation
from gpu_rag.index.s04_extract import ExtractConfig

Run = Callable[..., Any]

CURIE = {"d1": ("Marie Curie", "Marie Curie was born in Warsaw. She met Paul Langevin and Albert Einstein in Brussels.")}


def test_every_occurrence_of_a_name_is_a_mention_with_its_span_in_the_source_text(corpus: Run, extract: Run) -> None:
    tables = corpus(CURIE)
    extract(tables)
    source = tables["chunks"].column("text").to_pylist()[0]
    mentions = tables["unit_mentions"].to_pylist()
    assert all(source[row["start"] : row["end"]] == row["name"] for row in mentions)
    assert sorted(row["start"] for row in mentions if row["name"] == "Marie Curie") == [0, 0, 12]
    assert {row["type"] for row in mentions} == {"name", "title"}


def test_offsets_count_from_the_source_text_where_the_chunk_does_not_start_it(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("Warsaw", "It is a city. Marie Curie was born there.")})
    chunk = tables["chunks"].to_pylist()[0]
    later = {**chunk, "order": 1, "start": 21, "text": chunk["text"][21:]}
    tables["chunks"] = schemas.CHUNKS.from_rows([later])
    tables["sentences"] = tables["sentences"].filter(pa.compute.greater_equal(tables["sentences"].column("start"), 21))
    extract(tables)
    found = {row["name"]: (row["start"], row["end"]) for row in tables["unit_mentions"].to_pylist()}
    assert found == {"Warsaw": (0, 6), "Marie Curie": (21, 32)}


def test_a_title_with_a_parenthesis_is_mentioned_with_and_without_it(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("Mercury (planet)", "it is small")})
    extract(tables)
    titles = {row["name"] for row in tables["unit_mentions"].to_pylist() if row["type"] == "title"}
    assert titles == {"Mercury (planet)", "Mercury"}


def test_stated_aliases_and_the_full_name_of_the_title_stand_with_their_mentions(corpus: Run, extract: Run) -> None:
    text = "Maria Salomea Curie (born 1867), also known as Madame Radium, was a chemist. The World Health Organization (WHO) met Curie."
    tables = corpus({"d1": ("Maria Curie", text)})
    extract(tables)
    aliases = {row["name"]: row["aliases"] for row in tables["unit_mentions"].to_pylist() if row["aliases"]}
    assert aliases == {
        "Maria Curie": ["Maria Salomea Curie"],
        "Maria Salomea Curie": ["Madame Radium"],
        "World Health Organization": ["WHO"],
    }


def test_a_mention_has_a_finer_type_where_its_form_says_so_and_name_elsewhere(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("", "Mr. Holmes saw the city of Boston and Sherlock in 1890.")})
    extract(tables)
    types = {row["name"]: row["type"] for row in tables["unit_mentions"].to_pylist()}
    assert {name: types[name] for name in ("Boston", "Sherlock", "1890")} == {
        "Boston": "place", "Sherlock": "name", "1890": "date",
    }  # fmt: skip
    assert types["Mr. Holmes"] == "person"


def test_a_sentence_gives_one_co_mention_per_further_name_and_its_span_is_the_sentence(corpus: Run, extract: Run) -> None:
    tables = corpus(CURIE)
    extract(tables)
    source = tables["chunks"].column("text").to_pylist()[0]
    relations = tables["unit_relations"].to_pylist()
    first, second = "Marie Curie was born in Warsaw.", "She met Paul Langevin and Albert Einstein in Brussels."
    hub = "Paul Langevin"
    assert sorted((row["subject"], row["object"], source[row["start"] : row["end"]]) for row in relations) == [
        ("Marie Curie", "Warsaw", first),
        (hub, "Albert Einstein", second),
        (hub, "Brussels", second),
        (hub, "Paul Langevin and Albert Einstein in Brussels", second),
    ]
    assert {row["predicate"] for row in relations} == {CO_MENTIONED}


def test_relations_of_a_long_list_are_linear_in_its_names(corpus: Run, extract: Run) -> None:
    names = [f"Name{chr(65 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
    tables = corpus({"d1": ("", "They were " + ", ".join(names) + ".")})
    extract(tables)
    assert tables["unit_relations"].num_rows == 59
    assert set(tables["unit_relations"].column("subject").to_pylist()) == {names[0]}


def test_a_chunk_without_units_is_empty_and_not_failed(corpus: Run, extract: Run) -> None:
    results = extract(corpus({"d1": ("", "nothing here has a name.")}))
    assert results.column("state").to_pylist() == ["empty"]
    assert results.column("reason").to_pylist() == [""]


def test_an_empty_recorded_entry_is_empty_and_a_missing_one_says_so(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("", "a."), "d2": ("", "b.")}, {"d1": ([], []), "elsewhere": (["X"], [])})
    results = {row["row_id"]: row for row in extract(tables, "recorded").to_pylist()}
    doc_ids = dict(zip(*(tables["chunks"].column(name).to_pylist() for name in ("doc_id", "chunk_id")), strict=True))
    assert (results[doc_ids["d1"]]["state"], results[doc_ids["d1"]]["reason"]) == ("empty", "")
    assert (results[doc_ids["d2"]]["state"], results[doc_ids["d2"]]["reason"]) == (
        "empty",
        "recorded: no recorded extraction",
    )


def test_malformed_triples_are_dropped_counted_and_leave_the_row_ok(corpus: Run, extract: Run) -> None:
    triples = [["A", "is", "B"], ["A", "is"], ["A", " ", "B"], ["A", "is", "B", "C"]]
    tables = corpus({"d1": ("", "A is B.")}, {"d1": (["A", ""], triples)})
    result = extract(tables, "recorded").to_pylist()[0]
    assert (result["state"], result["reason"]) == ("ok", "recorded: 3 triples malformed")
    assert tables["unit_relations"].num_rows == 1
    assert tables["unit_mentions"].column("name").to_pylist() == ["A"]


def test_recorded_units_join_by_chunk_id_or_by_the_id_of_a_document_of_one_chunk(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("", "A is B."), "d2": ("", "A is B.")}, {"d1": (["A"], [])})
    first = tables["chunks"].to_pylist()
    twice = next(row for row in first if row["doc_id"] == "d2")
    tables["chunks"] = schemas.CHUNKS.from_rows([*first, {**twice, "chunk_id": "d2#0001", "order": 1}])
    tables["recorded_extraction"] = schemas.RECORDED_EXTRACTION.from_rows(
        [{"item_id": item, "entities": ["A"], "triples": []} for item in ("d1", "d2", "d2#0001")]
    )
    extract(tables, "recorded")
    chunk_ids = set(tables["unit_mentions"].column("chunk_id").to_pylist())
    assert chunk_ids == {row["chunk_id"] for row in first if row["doc_id"] == "d1"} | {"d2#0001"}


def test_recorded_without_any_record_is_refused(corpus: Run, extract: Run) -> None:
    with pytest.raises(InputError, match=r"openie\.jsonl"):
        extract(corpus({"d1": ("", "A.")}), "recorded")


def test_equal_text_under_two_ids_is_one_piece_of_work_and_two_provenances(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": CURIE["d1"], "d2": CURIE["d1"]})
    content = s04_extract.STAGE.content(tables, ExtractConfig())
    assert content.drop_columns(["row_id"]).group_by(["title", "text"]).aggregate([]).num_rows == 1
    extract(tables)
    mentions = tables["unit_mentions"].to_pylist()
    assert sorted({row["doc_id"] for row in mentions}) == ["d1", "d2"]
    assert sum(row["doc_id"] == "d1" for row in mentions) * 2 == len(mentions)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_units_and_their_ids_do_not_depend_on_the_shards(size: int, corpus: Run, extract: Run) -> None:
    documents = {f"d{i}": ("", f"Name{chr(65 + i)} met Marie Curie in 19{i}0.") for i in range(5)}
    tables = corpus(documents)
    extract(tables)
    config = ExtractConfig()
    content = s04_extract.STAGE.content(tables, config)
    work = content.rename_columns(["work_key", *content.schema.names[1:]])
    parts = [s04_extract.STAGE.run(work.slice(at, size), config=config) for at in range(0, work.num_rows, size)]
    results = pa.concat_tables(parts[::-1]).rename_columns(["row_id", *parts[0].schema.names[1:]])
    assert s04_extract.STAGE.assemble(tables, results, config)["unit_mentions"].equals(tables["unit_mentions"])


def shout(chunk: Chunk) -> Extraction:
    """An extractor of a user."""
    if "bad" in chunk.text:
        raise ValueError("no bad chunks")
    return Extraction([Mention("ALPHA", "shout", 0, 5, 0.5)], [Relation("ALPHA", "is", " ")])


def twice(chunk: Chunk) -> Extraction:
    """An extractor that repeats itself and half knows a place."""
    relation = Relation("A", "is", "B", 0, 1, type="is_a")
    return Extraction(
        [Mention("A", None, 0, 1, 0.5), Mention("A", None, 0, 1, 0.7), Mention("A", None, 1), Mention("T", "title", None, 3)],
        [relation, relation, relation._replace(type="part_of")],
    )


def test_units_said_twice_are_one_and_a_half_known_place_is_none(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("", "A is B.")})
    extract(tables, f"{__name__}:twice")
    found = {(row["name"], row["start"], row["end"], row["confidence"]) for row in tables["unit_mentions"].to_pylist()}
    assert found == {("A", 0, 1, 0.5), ("A", None, None, None), ("T", 0, 1, None)}
    assert sorted(tables["unit_relations"].column("type").to_pylist()) == ["is_a", "part_of"]


def test_no_chunks_give_no_units(corpus: Run, extract: Run) -> None:
    tables = corpus({})
    extract(tables, "mentions")
    assert tables["unit_mentions"].num_rows == tables["unit_relations"].num_rows == 0


def test_a_users_extractor_runs_by_import_path_and_its_refusal_is_a_state_of_the_row(corpus: Run, extract: Run) -> None:
    tables = corpus({"d1": ("", "ALPHA"), "d2": ("", "bad")})
    results = {row["reason"]: row["state"] for row in extract(tables, f"{__name__}:shout").to_pylist()}
    method = f"{__name__}:shout"
    assert results == {f"{method}: 1 units without a name": "ok", f"{method}: no bad chunks": "invalid"}
    assert tables["unit_mentions"].to_pylist()[0]["extractor"] == method
    assert tables["unit_relations"].num_rows == 0


@pytest.mark.parametrize("method", ["mention", "no.such.module:extract", "gpu_rag.names:nothing"])
def test_an_unknown_method_is_refused_by_name(method: str, corpus: Run, extract: Run) -> None:
    with pytest.raises(ConfigError, match=method):
        extract(corpus({"d1": ("", "A.")}), method)


def test_recorded_extraction_of_musique_joins_every_passage(data_root: Path, corpus: Run, extract: Run) -> None:
    folder = data_root / "musique_train100"
    documents = {}
    recorded = {}
    for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:200]:
        row = json.loads(line)
        documents[row["doc_id"]] = (row["title"], row["text"])
    for line in (folder / "openie.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        recorded[row["doc_id"]] = (row["entities"], row["triples"])
    results = extract(corpus(documents, recorded), "recorded", "mentions")
    assert set(results.column("state").to_pylist()) == {"ok"}
