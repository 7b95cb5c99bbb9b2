"""Checks on the sample data set in examples/ (data only, standard library only)."""

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TYPES = {"single_hop", "multi_hop", "comparison", "unanswerable"}


def _read(name):
    with open(EXAMPLES / name, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


DOCS = _read("corpus.jsonl")
QUESTIONS = _read("questions.jsonl")
TEXT = {doc["doc_id"]: doc["text"] for doc in DOCS}
ANSWERABLE = [q for q in QUESTIONS if q["answerable"]]
COMPOSED = [q for q in QUESTIONS if q["type"] in {"multi_hop", "comparison"}]


def _qid(question):
    return question["id"]


def test_documents_are_well_formed():
    assert len(DOCS) >= 64
    assert len(TEXT) == len(DOCS), "doc_ids repeat"
    for doc in DOCS:
        assert set(doc) == {"doc_id", "title", "text"}
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", doc["doc_id"])
        assert doc["text"].strip() == doc["text"] != ""


def test_kinds_of_documents():
    kinds = Counter(doc["doc_id"].split("-")[0] for doc in DOCS)
    assert kinds == {"ency": 39, "story": 10, "report": 10, "arg": 10, "notice": 2, "log": 1}


def test_document_lengths():
    words = [len(doc["text"].split()) for doc in DOCS]
    assert sum(n > 900 for n in words) >= 8
    assert max(words) <= 1600


def test_awkward_documents():
    titles = Counter(doc["title"] for doc in DOCS)
    assert titles[""] == 1
    for title in ("Ambry", "Halcyon", "Edmund Carrow"):
        assert titles[title] == 2
    assert TEXT["notice-harbour-1913"] == TEXT["notice-harbour-1913-reissue"]
    assert len(set(TEXT.values())) == len(DOCS) - 1
    everything = "".join(TEXT.values())
    for char in "\u201c\u201d\u2018\u2019\u2013\u2022":
        assert char in everything
    assert " | " in TEXT["report-mvr-1898"]
    assert TEXT["report-saffron-fair-1922"].count("\n- ") == 5
    assert max(map(len, TEXT["report-borings-1926"].splitlines())) < 50


@pytest.mark.parametrize("script", ["GREEK", "CYRILLIC", "CJK", "ARABIC", "LATIN SMALL LETTER Z WITH CARON"])
def test_scripts_and_diacritics_in_corpus(script):
    chars = set("".join(TEXT.values()))
    assert any(unicodedata.name(char, "").startswith(script) for char in chars)


@pytest.mark.parametrize("script", ["GREEK", "CYRILLIC", "CJK", "ARABIC"])
def test_scripts_in_questions(script):
    chars = set("".join(q["question"] for q in QUESTIONS))
    assert any(unicodedata.name(char, "").startswith(script) for char in chars)


def test_files_are_nfc_utf8_without_escapes():
    for name in ("corpus.jsonl", "questions.jsonl"):
        raw = (EXAMPLES / name).read_bytes()
        assert raw.endswith(b"\n") and b"\r" not in raw and b"\\u" not in raw
        assert unicodedata.is_normalized("NFC", raw.decode("utf-8"))


def test_counts_of_questions():
    counts = Counter(q["type"] for q in QUESTIONS)
    assert counts == {"single_hop": 22, "multi_hop": 15, "comparison": 7, "unanswerable": 23}
    assert counts["unanswerable"] >= 14
    assert len({q["id"] for q in QUESTIONS}) == len(QUESTIONS)
    assert len({q["question"] for q in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=_qid)
def test_question_is_well_formed(question):
    keys = {"id", "question", "answers", "answerable", "supporting_doc_ids", "type"}
    if question["type"] in {"multi_hop", "comparison"}:
        keys.add("decomposition")
    assert set(question) == keys
    assert question["type"] in TYPES
    assert question["question"].endswith("?")
    assert set(question["supporting_doc_ids"]) <= set(TEXT)
    assert question["answerable"] == (question["type"] != "unanswerable")
    assert bool(question["answers"]) == question["answerable"]
    assert bool(question["supporting_doc_ids"]) == question["answerable"]


@pytest.mark.parametrize("question", ANSWERABLE, ids=_qid)
def test_gold_answers_stand_verbatim(question):
    for answer in question["answers"]:
        found = any(answer in TEXT[doc_id] for doc_id in question["supporting_doc_ids"])
        if question["type"] == "comparison":
            found = found or answer in question["question"]
        assert found, answer


@pytest.mark.parametrize("question", COMPOSED, ids=_qid)
def test_decomposition(question):
    steps = question["decomposition"]
    assert 2 <= len(steps) <= 3
    for number, step in enumerate(steps):
        assert set(step) == {"question", "answer", "support_doc_id"}
        assert step["answer"] in TEXT[step["support_doc_id"]]
        assert step["support_doc_id"] in question["supporting_doc_ids"]
        for reference in re.findall(r"#(\d)", step["question"]):
            assert 1 <= int(reference) <= number
    assert "#" in steps[-1]["question"]
    assert steps[-1]["answer"] in question["answers"]
    assert len(set(question["supporting_doc_ids"])) >= 2


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q["type"] == "comparison"], ids=_qid)
def test_comparison_answer_is_one_of_the_compared(question):
    assert question["answers"][0] in question["question"]


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q["type"] == "multi_hop"], ids=_qid)
def test_bridge_is_not_named_in_question(question):
    for step in question["decomposition"][:-1]:
        assert step["answer"] not in question["question"]
