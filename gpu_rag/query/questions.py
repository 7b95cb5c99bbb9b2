"""Questions of the user: JSONL or Parquet, gold answers and other evaluation columns where there are any.

Keys: `id` (or BEIR's `_id`), `question` (or `text`); optional `answers, answerable, supporting_doc_ids,
decomposition, type, access`; others are ignored. A blank question is a row that is `skipped`. A gold answer that is
empty is refused by name: by containment it would make every answer right.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag import schemas
from gpu_rag.ids import content_hash
from gpu_rag.records import Record, read_records
from gpu_rag.spans import clean_text, is_blank


def read_questions(path: Path, limit: int | None = None) -> pa.Table:
    """Return `schemas.QUESTIONS`, sorted by id.

    Args:
        path: .jsonl (also gzipped) or .parquet.
        limit: Read only the first questions in file order.

    Raises:
        InputError: On anything malformed, naming file and line; on an id that repeats, naming both lines.
    """
    places: dict[str, str] = {}
    rows = []
    for record in islice(read_records(path), limit):
        row = _question(record)
        if row["id"] in places:
            raise record.error(f"question id {row['id']} stands at {places[row['id']]} already")
        places[row["id"]] = record.where
        rows.append(row)
    return schemas.QUESTIONS.from_rows(rows)


def _question(record: Record) -> dict[str, Any]:
    question = record.text("question", "text")
    blank = is_blank(question)
    return {
        "id": record.identifier("id", "_id"),
        "question": question,
        "answers": _answers(record),
        "answerable": _answerable(record),
        "supporting_doc_ids": _doc_ids(record),
        "decomposition": _decomposition(record),
        "type": record.optional_text("type"),
        "access": sorted(set(record.texts("access"))),
        "state": "skipped" if blank else "ok",
        "reason": "empty question" if blank else "",
    }


def _answers(record: Record) -> list[str]:
    answers = record.texts("answers")
    for index, answer in enumerate(answers):
        if is_blank(answer):
            raise record.error(f"answers[{index}] is an empty gold answer")
    return answers


def asked_hash(questions: pa.Table) -> str:
    """Return the hash of what is asked: ids and wording, without gold labels, in key order."""
    asked = (questions.column(name).to_pylist() for name in ("id", "question"))
    return content_hash("asked", *(part for pair in sorted(zip(*asked, strict=True)) for part in pair))


def _answerable(record: Record) -> bool | None:
    value = record.values.get("answerable")
    if value is not None and not isinstance(value, bool):
        raise record.error(f"answerable is {value!r}, expected true, false or null")
    return value


def _doc_ids(record: Record) -> list[str]:
    """Return the gold document ids; integers as text, as in the corpus."""
    ids = []
    for index, value in enumerate(record.items("supporting_doc_ids")):
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise record.error(f"supporting_doc_ids[{index}] is {value!r}, expected a string or an integer")
        ids.append(clean_text(str(value)))
    return ids


def _decomposition(record: Record) -> list[dict[str, str]]:
    steps = []
    for index, value in enumerate(record.items("decomposition")):
        if not isinstance(value, dict):
            raise record.error(f"decomposition[{index}] is {value!r}, expected an object")
        step = Record(f"{record.where}: decomposition[{index}]", value)
        support = step.identifier("support_doc_id") if step.values.get("support_doc_id") not in (None, "") else ""
        steps.append(
            {"question": step.text("question"), "answer": step.optional_text("answer") or "", "support_doc_id": support}
        )
    return steps
