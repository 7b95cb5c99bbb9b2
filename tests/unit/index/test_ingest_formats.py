import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from gpu_rag.errors import ConfigError, InputError
from gpu_rag.index.readers import Format
from gpu_rag.index.s01_ingest import IngestConfig, read_corpus

_ROWS = [{"doc_id": "b", "title": "B", "text": "two"}, {"doc_id": "a", "title": None, "text": "one"}]


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _texts(path: Path, format_: Format = "auto") -> dict[str, tuple[str, str]]:
    rows = read_corpus(path, IngestConfig(format=format_)).documents.to_pylist()
    return {row["doc_id"]: (row["title"], row["text"]) for row in rows}


def test_all_formats_give_the_same_documents(tmp_path: Path) -> None:
    expected = {"b": ("B", "two"), "a": ("", "one")}
    (tmp_path / "c.jsonl").write_bytes(_lines(_ROWS))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(_lines(_ROWS)))
    pq.write_table(pa.Table.from_pylist(_ROWS), tmp_path / "c.parquet")
    beir = [{"_id": row["doc_id"], "title": row["title"], "text": row["text"], "metadata": {}} for row in _ROWS]
    (tmp_path / "beir.jsonl").write_bytes(_lines(beir))
    hippo = [{"idx": row["doc_id"], "title": row["title"], "text": row["text"]} for row in _ROWS]
    (tmp_path / "c.json").write_text(json.dumps(hippo), encoding="utf-8")
    for name in ("c.jsonl", "c.jsonl.gz", "c.parquet", "beir.jsonl", "c.json"):
        assert _texts(tmp_path / name) == expected, name
    assert _texts(tmp_path / "beir.jsonl", "beir") == expected


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet", "corpus.json"])
def test_a_folder_with_a_corpus_file_is_that_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("not this", encoding="utf-8")
    row = {"doc_id": "a", "idx": "a", "title": "", "text": "one"}
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    else:
        data = json.dumps([row] if name.endswith(".json") else row).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert _texts(tmp_path) == {"a": ("", "one")}
    assert set(_texts(tmp_path, "folder")) == {"notes.txt"}


def test_hipporag_ids_come_from_idx_or_content_and_never_from_the_place(tmp_path: Path) -> None:
    passages = [{"title": "T", "text": "one"}, {"title": "T", "text": "two"}, {"title": "N", "text": "x", "idx": 5}]
    path = tmp_path / "corpus.json"
    path.write_text(json.dumps(passages), encoding="utf-8")
    there = _texts(path)
    path.write_text(json.dumps(passages[::-1]), encoding="utf-8")
    assert _texts(path) == there
    assert there["5"] == ("N", "x")
    path.write_text(json.dumps([passages[0], passages[0]]), encoding="utf-8")
    assert read_corpus(path, IngestConfig()).report["repeated"] == 1


def test_equal_file_names_in_two_folders_are_two_documents(tmp_path: Path) -> None:  # D1
    for folder in ("a", "b", "a/.hidden"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "readme.md").write_text(f"# Read {folder}\n\nIn {folder}.\n", encoding="utf-8")
    (tmp_path / "z.TXT").write_text("# no heading here\r\nline\r\n", encoding="utf-8", newline="")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    assert _texts(tmp_path) == {
        "a/readme.md": ("Read a", "# Read a\n\nIn a.\n"),
        "b/readme.md": ("Read b", "# Read b\n\nIn b.\n"),
        "z.TXT": ("", "# no heading here\r\nline\r\n"),
    }
    assert read_corpus(tmp_path, IngestConfig()).report["other_files"] == 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("intro\n## Second ##\n# First", "Second"),
        ("```sh\n# comment\n```\n# Title", "Title"),
        ("#hashtag\n", ""),
        ("# \n# Real", ""),
        ("", ""),
    ],
)
def test_the_first_markdown_heading_is_the_title(tmp_path: Path, text: str, title: str) -> None:
    (tmp_path / "x.md").write_text(text, encoding="utf-8")
    assert _texts(tmp_path) == {"x.md": (title, text)}


def test_a_folder_without_a_text_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.txt.*only 0 others"):
        _texts(tmp_path)
    (tmp_path / "report.pdf").write_bytes(b"%PDF")
    with pytest.raises(InputError, match=r"\.txt.*only 1 others"):
        _texts(tmp_path)


def test_unreadable_text_file_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(InputError, match=r"x\.txt:2: byte 0xff"):
        _texts(tmp_path)


def test_malformed_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "c.json").write_text('[{"title": "T",\n "text": }]', encoding="utf-8")
    (tmp_path / "d.json").write_text('{"docs": []}', encoding="utf-8")
    (tmp_path / "e.json").write_text('[{"title": "T"}]', encoding="utf-8")
    (tmp_path / "c.csv").write_text("a,b", encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(b"not gzip")
    pq.write_table(pa.table({"doc_id": ["a"], "body": ["x"]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"doc_id": ["a", "b"], "text": ["x", None]}), tmp_path / "e.parquet")
    for name, message in {
        "c.parquet": "not a readable Parquet file",
        "c.json": r"c\.json:2: not valid JSON",
        "d.json": "an object, expected a list",
        "e.json": "item 1: key text is missing",
        "c.csv": "unknown file type",
        "c.jsonl.gz": "cannot be read",
        "d.parquet": "row 1: key text is missing",
        "e.parquet": "row 2: text is null",
        "absent.jsonl": "no such file",
    }.items():
        with pytest.raises(InputError, match=message):
            _texts(tmp_path / name)


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(_lines(_ROWS))
    with pytest.raises(InputError, match=r"looks like jsonl, but ingest\.format is parquet"):
        _texts(tmp_path, "parquet")
    pq.write_table(pa.Table.from_pylist(_ROWS), tmp_path / "corpus.parquet")
    with pytest.raises(InputError, match=r"found corpus\.jsonl, corpus\.parquet"):
        _texts(tmp_path)
    with pytest.raises(ConfigError, match="utf-16"):
        read_corpus(tmp_path / "corpus.jsonl", IngestConfig(encoding="utf-16"))
    with pytest.raises(ValidationError):
        IngestConfig.model_validate({"formats": "auto"})


def _with_recorded(folder: Path, chunks: list[dict[str, Any]], openie: list[dict[str, Any]]) -> Path:
    (folder / "corpus.jsonl").write_bytes(_lines([{"doc_id": "d", "title": "", "text": "one two three"}]))
    (folder / "chunks.jsonl").write_bytes(_lines(chunks))
    (folder / "openie.jsonl").write_bytes(_lines(openie))
    return folder


def test_recorded_files_of_a_folder_are_read_and_what_is_too_much_is_counted_and_left_out(tmp_path: Path) -> None:
    chunks = [
        {"doc_id": "d#10", "text": "three"},
        {"doc_id": "d#9", "text": "two"},
        {"doc_id": "x", "parent_doc_id": "gone", "text": "two"},
    ]
    openie = [
        {
            "doc_id": "d#9",
            "entities": ["A", None, 3, {"x": 1}],
            "triples": [["a", "b", "c"], ["a", "b"], "abc", ["a", None, "c"]],
        },
        {"doc_id": "nowhere"},
    ]
    corpus = read_corpus(_with_recorded(tmp_path, chunks, openie), IngestConfig())
    assert [(row["chunk_id"], row["order"]) for row in corpus.recorded_chunks.to_pylist()] == [
        ("d#9", 0), ("d#10", 1),
    ]  # fmt: skip
    assert corpus.recorded_extraction.to_pylist() == [  # B8
        {"item_id": "d#9", "entities": ["A", "3"], "triples": [["a", "b", "c"], ["a", "b"]]},
    ]
    counts = {key: value for key, value in corpus.report.items() if key.startswith("recorded")}
    assert counts == {
        "recorded_chunks": 3,
        "recorded_chunks_without_document": 1,
        "recorded_extraction": 2,
        "recorded_extraction_without_item": 1,
        "recorded_extraction_left_out": 4,
    }
    beside = read_corpus(tmp_path / "corpus.jsonl", IngestConfig())
    assert beside.recorded_chunks.num_rows == 0


@pytest.mark.parametrize(
    ("chunks", "openie", "message"),
    [
        (
            [{"doc_id": "d#0", "text": "a"}, {"doc_id": "d#0", "text": "b"}],
            [],
            r"chunks\.jsonl:2: id d#0 stands at .*:1 already",
        ),
        ([{"doc_id": "d", "text": "a"}], [], r"chunks\.jsonl:1: chunk d names no document"),
        ([{"doc_id": "d#0", "text": " "}], [], r"chunks\.jsonl:1: chunk d#0 has no text"),
        ([], [{"doc_id": "d"}, {"doc_id": "d"}], r"openie\.jsonl:2: id d stands at"),
        ([], [{"doc_id": "d", "entities": "A"}], r"openie\.jsonl:1: entities is a string, expected a list"),
    ],
)
def test_malformed_recorded_files_are_refused_by_line(
    tmp_path: Path, chunks: list[dict[str, Any]], openie: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_corpus(_with_recorded(tmp_path, chunks, openie), IngestConfig())


def test_the_data_sets_are_read_whole(data_root: Path) -> None:
    musique = read_corpus(data_root / "musique_train100", IngestConfig())
    assert musique.report["ok"] == 1890 == musique.report["recorded_extraction"]
    assert musique.report["recorded_extraction_without_item"] == 0
    novels = read_corpus(data_root / "novels3", IngestConfig())
    assert (novels.report["ok"], novels.report["recorded_chunks"], novels.recorded_extraction.num_rows) == (3, 86, 86)
