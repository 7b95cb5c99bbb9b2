import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.index.s01_ingest import Corpus, IngestConfig, read_corpus
from gpu_rag.store import table_hash


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(path: Path, rows: list[dict[str, Any]], limit: int | None = None) -> Corpus:
    return read_corpus(_write(path / "corpus.jsonl", rows), IngestConfig(), limit)


def _by_id(corpus: Corpus) -> dict[str, dict[str, Any]]:
    return {row["doc_id"]: row for row in corpus.documents.to_pylist()}


def test_rows_become_documents_sorted_by_id(tmp_path: Path) -> None:
    corpus = _read(
        tmp_path,
        [
            {"doc_id": "b", "title": "B", "text": "two", "access": ["y", "x", "y"], "extra": 1},
            {"doc_id": "a", "title": "A", "text": "one"},
        ],
    )
    assert schemas.check_table(corpus.documents, schemas.DOCUMENTS).num_rows == 2
    assert corpus.documents.column("doc_id").to_pylist() == ["a", "b"]
    assert _by_id(corpus)["b"]["access"] == ["x", "y"]
    assert _by_id(corpus)["a"]["access"] == []
    assert corpus.report == {"rows": 2, "ok": 2, "skipped": 0, "repeated": 0, "duplicates": 0}
    assert corpus.recorded_chunks.num_rows == corpus.recorded_extraction.num_rows == 0


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:  # A11
    rows = [{"doc_id": str(i), "title": "", "text": f"text {i % 7}"} for i in range(50)]
    there = _read(tmp_path, rows).documents
    back = _read(tmp_path, rows[::-1]).documents
    assert there.equals(back)
    assert table_hash(there, schemas.DOCUMENTS) == table_hash(back, schemas.DOCUMENTS)


def test_same_content_under_two_ids_is_kept_twice_and_named(tmp_path: Path) -> None:  # D2
    rows = [{"doc_id": name, "title": "T", "text": "same"} for name in ("d2", "d1", "d3")]
    rows.append({"doc_id": "d0", "title": "other", "text": "same"})
    corpus = _read(tmp_path, rows)
    originals = {name: row["duplicate_of"] for name, row in _by_id(corpus).items()}
    assert originals == {"d0": None, "d1": None, "d2": "d1", "d3": "d1"}
    assert corpus.report["duplicates"] == 2
    assert corpus.report["ok"] == 4


def test_same_title_is_no_key(tmp_path: Path) -> None:  # D4
    corpus = _read(
        tmp_path,
        [
            {"doc_id": "p", "title": "Mercury", "text": "a planet"},
            {"doc_id": "m", "title": "Mercury", "text": "a metal"},
        ],
    )
    assert {row["text"] for row in corpus.documents.to_pylist()} == {"a planet", "a metal"}


@pytest.mark.parametrize("titled", [{}, {"title": None}, {"title": ""}])
def test_a_title_may_be_missing(tmp_path: Path, titled: dict[str, Any]) -> None:  # D6
    (row,) = _read(tmp_path, [{"doc_id": "d", "text": "x"} | titled]).documents.to_pylist()
    assert (row["title"], row["state"]) == ("", "ok")


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff"])
def test_a_document_without_text_is_skipped_and_others_are_not(tmp_path: Path, text: str) -> None:  # C12
    corpus = _read(
        tmp_path,
        [
            {"doc_id": "empty", "text": text},
            {"doc_id": "titled", "title": "T", "text": text},
            {"doc_id": "full", "text": "x"},
        ],
    )
    states = {name: (row["state"], row["reason"]) for name, row in _by_id(corpus).items()}
    assert states == {"empty": ("skipped", "empty"), "titled": ("ok", ""), "full": ("ok", "")}
    assert corpus.report["rows"] == 3 == corpus.report["ok"] + corpus.report["skipped"]


@pytest.mark.parametrize("num_empty", [0, 3])
def test_a_corpus_of_nothing_gives_tables(tmp_path: Path, num_empty: int) -> None:  # C13
    corpus = _read(tmp_path, [{"doc_id": i, "text": " "} for i in range(num_empty)])
    assert corpus.documents.num_rows == num_empty == corpus.report["skipped"]
    assert corpus.documents.column("duplicate_of").null_count == num_empty
    assert schemas.check_table(corpus.documents, schemas.DOCUMENTS) is corpus.documents


def test_lone_surrogates_are_replaced_and_control_characters_stay(tmp_path: Path) -> None:  # C18, C19
    odd = "a\ud800b \x00\x01\x0b\x0c\x1b\uffff"
    (row,) = _read(tmp_path, [{"doc_id": odd, "title": odd, "text": odd, "access": [odd]}]).documents.to_pylist()
    clean = "a\ufffdb \x00\x01\x0b\x0c\x1b\uffff"
    assert (row["doc_id"], row["title"], row["text"], row["access"]) == (clean, clean, clean, [clean])


def test_ids_that_differ_only_in_their_surrogate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stands at"):
        _read(tmp_path, [{"doc_id": "a\ud800", "text": "x"}, {"doc_id": "a\ud801", "text": "y"}])


def test_an_integer_id_is_text(tmp_path: Path) -> None:
    assert _read(tmp_path, [{"doc_id": 7, "text": "x"}]).documents.column("doc_id").to_pylist() == ["7"]


def test_an_id_with_two_contents_is_refused_naming_both_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus.jsonl:3: document d stands at .*corpus.jsonl:1 already"):
        _read(tmp_path, [{"doc_id": "d", "text": "x"}, {"doc_id": "e", "text": "x"}, {"doc_id": "d", "text": "y"}])


def test_the_very_same_line_again_is_one_document_and_counted(tmp_path: Path) -> None:
    corpus = _read(tmp_path, [{"doc_id": "d", "text": "x"}] * 3)
    assert corpus.documents.num_rows == 1
    assert corpus.report == {"rows": 3, "ok": 1, "skipped": 0, "repeated": 2, "duplicates": 0}
    with pytest.raises(InputError, match="other content"):
        _read(tmp_path, [{"doc_id": "d", "text": "x"}, {"doc_id": "d", "text": "x", "access": ["secret"]}])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"doc_id": "d", "text": "x"', "not valid JSON"),
        ('["d", "x"]', "a list, expected an object"),
        ('{"text": "x"}', "key doc_id is missing"),
        ('{"doc_id": "d"}', "key text is missing"),
        ('{"doc_id": "d", "text": null}', "text is null"),
        ('{"doc_id": "d", "text": 3}', "text is a number"),
        ('{"doc_id": "d", "text": ["x"]}', "text is a list"),
        ('{"doc_id": "d", "text": "x", "title": 3}', "title is a number"),
        ('{"doc_id": null, "text": "x"}', "doc_id is null"),
        ('{"doc_id": true, "text": "x"}', "doc_id is a boolean"),
        ('{"doc_id": 1.5, "text": "x"}', "doc_id is a number"),
        ('{"doc_id": " ", "text": "x"}', "doc_id is empty"),
        ('{"doc_id": "d", "text": "x", "access": "all"}', "access is a string, expected a list"),
        ('{"doc_id": "d", "text": "x", "access": ["a", null]}', r"access\[1\] is null"),
        ("[" * 100_000, "not valid JSON"),
        ('{"doc_id": ' + "9" * 5000 + ', "text": "x"}', "not valid JSON"),
    ],
)
def test_a_malformed_line_is_refused_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"doc_id": "a", "text": "x"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"corpus\.jsonl:3: .*{message}"):
        read_corpus(path, IngestConfig())


def test_bytes_of_another_encoding_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"doc_id": "a", "text": "x"}\n{"doc_id": "b", "text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"corpus\.jsonl:2: byte 0xe9 is not utf-8"):
        read_corpus(path, IngestConfig())
    assert read_corpus(path, IngestConfig(encoding="latin-1")).documents.column("text").to_pylist() == ["x", "caf\xe9"]


def test_a_mark_at_the_start_blank_lines_and_nan_elsewhere_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"doc_id": "a", "text": "x", "score": NaN}\r\n\r\n  \n{"doc_id": "b", "text": "y"}')
    assert read_corpus(path, IngestConfig()).documents.num_rows == 2


def test_limit_takes_the_first_documents_and_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"doc_id": "b", "text": "x"}\n{"doc_id": "a", "text": "y"}\nbroken\n', encoding="utf-8")
    assert read_corpus(path, IngestConfig(), limit=2).documents.num_rows == 2
    assert read_corpus(path, IngestConfig(), limit=1).documents.column("doc_id").to_pylist() == ["b"]


def test_memory_stays_near_the_size_of_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for index in range(4000):
            file.write(json.dumps({"doc_id": index, "title": "", "text": f"{index} " + "word " * 1000}) + "\n")
    size = path.stat().st_size
    pool_before = pa.total_allocated_bytes()
    tracemalloc.start()
    corpus = read_corpus(path, IngestConfig())
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert corpus.documents.num_rows == 4000
    assert python_peak < 0.5 * size
    assert pa.total_allocated_bytes() - pool_before < 1.2 * size


_DOCUMENT = st.fixed_dictionaries(
    {
        "doc_id": st.text(st.characters(), min_size=1, max_size=4),
        "title": st.text(st.characters(), max_size=4),
        "text": st.text(st.characters(), max_size=9),
    }
)


@settings(max_examples=50, deadline=None)
@given(st.lists(_DOCUMENT, max_size=8, unique_by=lambda row: row["doc_id"]))
def test_any_unicode_gives_one_row_per_document_or_an_error_that_names_a_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    try:
        corpus = _read(tmp_path_factory.mktemp("corpus"), rows)
    except InputError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "corpus.jsonl:" in message
        return
    assert corpus.documents.num_rows == len(rows) == corpus.report["ok"] + corpus.report["skipped"]
    assert sorted(len(row["text"]) for row in rows) == sorted(map(len, corpus.documents.column("text").to_pylist()))
