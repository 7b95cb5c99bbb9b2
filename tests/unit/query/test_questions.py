import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.query.questions import read_questions


def _write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


_FULL = {
    "id": "q1", "question": "Who?", "answers": ["Ann"], "answerable": True, "supporting_doc_ids": ["d", 7],
    "type": "2hop",
    "decomposition": [
        {"question": "Which?", "answer": "it", "support_doc_id": "d"}, {"question": "Who of #1?", "answer": "Ann"},
    ],
    "access": ["b", "a"], "context_doc_ids": ["d"],
}  # fmt: skip


def test_optional_keys_have_defaults_and_others_are_ignored(tmp_path: Path) -> None:
    table = read_questions(_write(tmp_path, [_FULL, {"id": 0, "question": "What?"}]))
    assert schemas.check_table(table, schemas.QUESTIONS).num_rows == 2
    bare, full = table.to_pylist()
    assert bare == {
        "id": "0", "question": "What?", "answers": [], "answerable": None, "supporting_doc_ids": [],
        "decomposition": [], "type": None, "access": [], "state": "ok", "reason": "",
    }  # fmt: skip
    assert full["supporting_doc_ids"] == ["d", "7"]
    assert full["access"] == ["a", "b"]
    assert [step["support_doc_id"] for step in full["decomposition"]] == ["d", ""]


def test_parquet_and_beir_give_the_same_questions(tmp_path: Path) -> None:
    rows = [_FULL | {"supporting_doc_ids": ["d", "7"]}, {"id": "q2", "question": "What?"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "questions.parquet")
    assert read_questions(tmp_path / "questions.parquet").equals(read_questions(_write(tmp_path, rows)))
    beir = read_questions(_write(tmp_path, [{"_id": "q2", "text": "What?", "metadata": {}}]))
    assert beir.column("question").to_pylist() == ["What?"]


@pytest.mark.parametrize("question", ["", "  \n", "\u200b"])
def test_a_blank_question_is_a_skipped_row(tmp_path: Path, question: str) -> None:
    (row,) = read_questions(_write(tmp_path, [{"id": "q", "question": question}])).to_pylist()
    assert (row["state"], row["reason"]) == ("skipped", "empty question")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "x"}, "key id is missing"),
        ({"id": "q"}, "key question is missing"),
        ({"id": "q", "question": None}, "question is null"),
        ({"id": "q", "question": "x", "answers": "Ann"}, "answers is a string, expected a list"),
        ({"id": "q", "question": "x", "answers": ["Ann", ""]}, r"answers\[1\] is an empty gold answer"),  # I3
        ({"id": "q", "question": "x", "answers": ["\u200b "]}, r"answers\[0\] is an empty gold answer"),
        ({"id": "q", "question": "x", "answers": [1]}, r"answers\[0\] is a number"),
        ({"id": "q", "question": "x", "answerable": "yes"}, "answerable is 'yes'"),
        ({"id": "q", "question": "x", "supporting_doc_ids": [None]}, r"supporting_doc_ids\[0\] is None"),
        ({"id": "q", "question": "x", "decomposition": ["y"]}, r"decomposition\[0\] is 'y'"),
        ({"id": "q", "question": "x", "decomposition": [{}]}, r"decomposition\[0\]: key question is missing"),
        ({"id": "q", "question": "x", "access": [1]}, r"access\[0\] is a number"),
        ({"id": "ok", "question": "x"}, r"question id ok stands at .*questions\.jsonl:1 already"),
    ],
)
def test_a_malformed_question_is_refused_by_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = _write(tmp_path, [{"id": "ok", "question": "fine?"}, row])
    with pytest.raises(InputError, match=rf"questions\.jsonl:2: .*{message}"):
        read_questions(path)


def test_no_questions_and_the_first_questions(tmp_path: Path) -> None:
    assert read_questions(_write(tmp_path, [])).num_rows == 0
    path = _write(tmp_path, [{"id": name, "question": "x"} for name in "cab"])
    assert read_questions(path, limit=2).column("id").to_pylist() == ["a", "c"]
    with pytest.raises(InputError, match="no such file"):
        read_questions(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(("name", "count"), [("musique_train100", 100), ("squad2_500", 500), ("novels3", 374)])
def test_the_data_sets_are_read_whole(data_root: Path, name: str, count: int) -> None:
    table = read_questions(data_root / name / "questions.jsonl")
    assert table.num_rows == count
    assert set(table.column("state").to_pylist()) == {"ok"}
