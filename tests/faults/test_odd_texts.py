"""Texts, names, ids and paths that break other systems, through every stage and every file format."""

import itertools
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag import ids, schemas
from gpu_rag.errors import InputError
from gpu_rag.graph import load_graph
from gpu_rag.query.questions import read_questions
from gpu_rag.query.repository import Repository
from gpu_rag.spans import clean_text, is_blank, normal_form

CONTROLS = "".join(map(chr, [*range(1, 9), 11, 12, *range(14, 32), *range(0x7F, 0xA0)]))
ODD = [
    "\x00", "\x01", "\x0b\x0c\x1b[31m", CONTROLS, "\ud800", "\udfff\ud800", "x\udcffy", "\ufffe\uffff\U0001ffff",
    "\u2028a\u2029", "\u202egnp\u202c", "\ufeff", "\x85", "\r\n", "\r", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301\u0316\u0347\u0489",
    "</script><script>alert(1)</script>", "]]>&amp;<!--", "{{ 7*7 }}", "\\u0000\\", '"\'`', "\u3164", "\ufb01\u1e9e\u0130",
    "\U000e0041\U000e007f", "\u0e01\u0e33\u0e44\u4e2d\u6587",
]  # fmt: skip
INVISIBLE = [
    "", "   ", "\n\t", "\u200b", "\ufeff", "\u00ad", "\u2060\u2063", "\u3164", "\u115f\u1160", "\uffa0", "\u2800", "\ufe0f", "\u034f",
    "\u180e", "\u061c", "\U000e0001\U000e007f", "\u00a0\u3000", "\x00\x1b", "\u2028\u2029\x85", "\u202a\u202c\u2066\u2069", "\ufff9\ufffb",
]  # fmt: skip
VISIBLE = [".", "\ufffd", "\U0001f600", "\u0301", "\u2801", "\u1100", "\u00b7", "\uffff", "\ue000"]
NAMES = [
    'Say "Hi" Club', "O'Brien, Ltd.", "Back\\slash Works", "Tab\tName Inn", "New\nLine Hall", "<SEP>", "{tuple_delimiter} Co",
    "A | B || C", "Caf\u00e9 \u201cOrme\u201d", "Cafe\u0301 Orme", "[Row] (1)", "C++ Guild", "'; DROP TABLE x; --", "100% Pell", "##Harl##",
    "\u5317\u4eac", "\u0414\u043e\u043c \u0421\u0430\u043b\u043b", "A\u00a0B\u2009House", "<|endoftext|> Mill", "None Hall", "NaN Tower", "_Under_Score_",
]  # fmt: skip


def document(number: int, odd: str) -> dict[str, Any]:
    text = f"Harl{number} Mill was built in {1700 + number} by Anna {odd} Voss. It {odd} burned."
    return {"doc_id": f"id {odd} {number}", "title": f"Harl{number} {odd}", "text": text}


def question(number: int, odd: str) -> dict[str, Any]:
    return {"id": f"q {odd} {number}", "question": f"When was Harl{number} {odd} Mill built?", "answers": [f"{1700 + number}"],
            "answerable": True, "supporting_doc_ids": [f"id {odd} {number}"], "type": odd}  # fmt: skip


@pytest.fixture(scope="module")
def odd(new_job: Callable[[], Any]) -> Any:
    """A finished, evaluated job whose documents and questions hold everything in `ODD`, beside blank and endless ones."""
    job = new_job()
    blanks = [{"doc_id": f"blank {n}", "title": INVISIBLE[n - 1], "text": text} for n, text in enumerate(INVISIBLE)]
    endless = [
        {"doc_id": "one sentence", "text": "Orme and " * 5600 + "Pell."},
        {"doc_id": "one word", "text": "ab" * 25_000},
        {"doc_id": "no word", "text": "\u2026 !!! \U0001f389"},
    ]
    job.index([*(document(n, text) for n, text in enumerate(ODD)), *blanks, *endless])
    asked = [question(n, text) for n, text in enumerate(ODD)]
    job.answer([*asked, *({"id": f"blank {n}", "question": text} for n, text in enumerate(INVISIBLE))])
    job.evaluate()
    return job


@pytest.mark.parametrize("text", INVISIBLE)
def test_a_text_with_nothing_to_see_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", [*VISIBLE, *(f"\u200b{text}\u3164" for text in VISIBLE)])
def test_a_text_with_anything_to_see_is_not(text: str) -> None:
    assert not is_blank(text)


def test_documents_with_nothing_to_see_are_skipped_and_the_others_unaffected(odd: Any) -> None:
    documents = {row["doc_id"]: row for row in odd.generation().read(schemas.DOCUMENTS).to_pylist()}
    blank = [row for doc_id, row in documents.items() if doc_id.startswith("blank ")]
    assert [(row["state"], row["reason"], row["duplicate_of"]) for row in blank] == [("skipped", "empty", None)] * len(
        INVISIBLE
    )
    others = [row for doc_id, row in documents.items() if not doc_id.startswith("blank ")]
    assert len(others) == len(ODD) + 3
    assert {row["state"] for row in others} == {"ok"}
    chunks = odd.generation().read(schemas.CHUNKS).column("doc_id").to_pylist()
    assert set(chunks) == {row["doc_id"] for row in others}
    answers = odd.answers()
    assert {answers[f"blank {n}"]["state"] for n in range(len(INVISIBLE))} == {"skipped"}


def test_what_comes_in_comes_out_of_the_index_character_for_character(odd: Any) -> None:
    documents = {row["doc_id"]: row for row in odd.generation().read(schemas.DOCUMENTS).to_pylist()}
    for number, text in enumerate(ODD):
        given = document(number, text)
        found = documents[clean_text(given["doc_id"])]
        for name in ("title", "text"):
            assert found[name] == clean_text(given[name])
            assert len(found[name]) == len(given[name])


def test_every_slice_of_every_table_stands_in_its_source(odd: Any) -> None:
    sources = odd.sources()
    for schema in (schemas.CHUNKS, schemas.SENTENCES):
        for row in odd.generation().read(schema).to_pylist():
            assert sources[row["doc_id"]][row["start"] : row["end"]] == row["text"]
            assert not is_blank(row["text"])
    for schema in (schemas.MENTIONS, schemas.RELATIONS, schemas.LINKS):
        for row in odd.generation().read(schema).to_pylist():
            assert row["start"] is None or 0 <= row["start"] < row["end"] <= len(sources[row["doc_id"]])


def test_one_endless_sentence_and_one_endless_word_give_bounded_chunks_and_no_empty_one(odd: Any) -> None:
    sources = odd.sources()
    chunks = odd.generation().read(schemas.CHUNKS).to_pylist()
    for doc_id in ("one sentence", "one word"):
        of_document = sorted((row["start"], row["end"]) for row in chunks if row["doc_id"] == doc_id)
        assert of_document[0][0] == 0 and of_document[-1][1] == len(sources[doc_id])
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(of_document))
        assert all(0 < end - start <= 20_000 for start, end in of_document)
    sentences = odd.generation().read(schemas.SENTENCES).to_pylist()
    assert max(len(row["text"]) for row in sentences) <= 2_000


def test_every_question_of_odd_text_is_processed_and_cited_verbatim_under_the_users_id(odd: Any) -> None:
    answers, sources = odd.answers(), odd.sources()
    asked = {clean_text(question(n, text)["id"]): clean_text(document(n, text)["doc_id"]) for n, text in enumerate(ODD)}
    assert set(asked) == {i for i in answers if not i.startswith("blank ")}
    answered = 0
    for question_id, doc_id in asked.items():
        row = answers[question_id]
        assert row["state"] == "ok", row["reason"]
        for citation in row["citations"]:
            assert sources[citation["doc_id"]][citation["start"] : citation["end"]] == citation["quote"]
        answered += doc_id in {citation["doc_id"] for citation in row["citations"]}
    assert answered >= len(ODD) // 2


class Page(HTMLParser):
    """Counts the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)


def test_every_file_of_the_run_is_written_whole_and_reads_back(odd: Any) -> None:
    run = odd.folder / "run"
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["citations_verbatim"] == 1.0
    assert metrics["rows_ok"] == len(ODD)
    assert json.loads((run / "report.json").read_text(encoding="utf-8"))["stages"]
    for path in run.glob("*.parquet"):
        pq.read_table(path).validate(full=True)
    html = (run / "report.html").read_bytes().decode("utf-8")
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html) == []
    page = Page(html)
    assert page.tags.count("script") == 1
    assert "7*7" in html
    assert load_graph(odd.root).num_nodes > 0


def test_the_same_odd_corpus_is_read_alike_from_jsonl_and_parquet(odd: Any) -> None:
    from gpu_rag.index.s01_ingest import IngestConfig, read_corpus

    rows = [document(n, text) for n, text in enumerate(ODD)]
    jsonl = odd.write("odd.jsonl", rows)
    raw = odd.folder / "raw.jsonl"
    raw.write_bytes(b"".join(clean_text(json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows))
    parquet = odd.folder / "odd.parquet"
    pq.write_table(pa.Table.from_pylist([{k: clean_text(v) for k, v in row.items()} for row in rows]), parquet)
    tables = [read_corpus(path, IngestConfig()).documents for path in (jsonl, raw, parquet)]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_ids_that_differ_only_in_what_cannot_be_written_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{odd}", "question": "Who?"}) + "\n" for odd in ("\ud800", "\udfff")))
    with pytest.raises(InputError, match=r"q\.jsonl:2: question id .* stands at .*q\.jsonl:1"):
        read_questions(path)


@pytest.fixture(scope="module")
def named(new_job: Callable[[], Any]) -> Any:
    """A finished job over recorded names that hold quotes, delimiters, line ends and other scripts."""
    job = new_job()
    corpus = job.folder / "corpus"
    corpus.mkdir()
    documents = [{"doc_id": f"d{n}", "text": f"In spring {name} hired Tomas Reed."} for n, name in enumerate(NAMES)]
    recorded = [{"doc_id": f"d{n}", "entities": [name, "Tomas Reed"], "triples": [[name, "hired", "Tomas Reed"]]}
                for n, name in enumerate(NAMES)]  # fmt: skip
    for file, rows in (("corpus.jsonl", documents), ("openie.jsonl", recorded)):
        (corpus / file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    job.index(corpus, "extract.methods=[recorded,mentions]")
    for system in ("embedded", "hipporag2"):
        job.answer(
            [{"id": f"q{n}", "question": f"Whom did {name} hire?"} for n, name in enumerate(NAMES)], system=system, run=system
        )
    return job


def test_a_name_has_one_id_from_the_extractor_to_the_question(named: Any) -> None:
    repository = Repository.open(named.root)
    entities = {row["entity_id"]: row for row in named.generation().read(schemas.ENTITIES).to_pylist()}
    decisions = {row["entity_id"]: row["decision"] for row in named.generation().read(schemas.MENTIONS).to_pylist()}
    for name in NAMES:
        entity = ids.entity_id(normal_form(name))
        assert name in entities[entity]["names"]
        assert decisions[entity] == "accept"
        found = {repository.entity_ids[row] for _, _, row in repository.find_names(f"Whom did {name} hire?")}
        assert entity in found, name


@pytest.mark.parametrize("system", ["embedded", "hipporag2"])
def test_questions_that_hold_such_names_are_all_processed_and_find_their_document(named: Any, system: str) -> None:
    answers, ranked = named.answers(system), named.ranked(system)
    assert {row["state"] for row in answers.values()} == {"ok"}
    hits = [f"d{n}" in ranked[f"q{n}"][:5] for n in range(len(NAMES))]
    assert sum(hits) >= 0.7 * len(NAMES)


def test_triples_of_such_names_keep_their_parts_apart(named: Any) -> None:
    relations = named.generation().read(schemas.RELATIONS).to_pylist()
    reed = ids.entity_id(normal_form("Tomas Reed"))
    stated = {row["subject_id"] for row in relations if row["predicate"] == "hired" and row["object_id"] == reed}
    assert stated == {ids.entity_id(normal_form(name)) for name in NAMES}


def test_a_folder_of_an_odd_name_holds_an_index_and_a_run(job: Any) -> None:
    job.root = job.folder / "with space, 'quotes\", \n, \u00e9\u4e2d, 100% a#b?c"
    job.index([{"doc_id": "d", "text": "Harl lies south of Pell."}])
    assert Repository.open(job.root).chunk_texts == ["Harl lies south of Pell."]
    assert load_graph(job.root).num_nodes > 0
    job.answer([{"id": "q", "question": "Where does Harl lie?"}], run="run with space, \u00e9, 100%")
    assert job.evaluate("run with space, \u00e9, 100%").metrics["rows_ok"] == 1


def test_files_of_a_tree_whose_names_are_no_utf8_are_documents(job: Any) -> None:
    tree = job.folder / "tree"
    tree.mkdir()
    for name, text in ((b"caf\xe9.txt", "One text."), (b"new\nline.md", "# Title \x01\n\nAnother text.")):
        Path(os.fsdecode(os.path.join(os.fsencode(tree), name))).write_text(text, encoding="utf-8")
    job.index(tree, "embed.kinds=[chunk]")
    documents = job.generation().read(schemas.DOCUMENTS).to_pylist()
    assert {row["doc_id"] for row in documents} == {"caf\ufffd.txt", "new\nline.md"}
