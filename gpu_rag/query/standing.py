"""Standing questions: the same questions over one generation of an index after another.

    OUT/
      lock, work/           one work cache for all runs
      LATEST                the runs, the last finished one at the end
      <run>/                a RUN folder: its name is the hash of index, config and questions
        changes.parquet     what differs from the run before

A question is answered again only if its evidence is not what it was (see `query.carry`). Another config or encoder answers all.
"""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.errors import ConfigError
from gpu_rag.ids import content_hash
from gpu_rag.query.questions import read_questions
from gpu_rag.query.run import FINGERPRINTS, AnswerResult, answer_over, refuse_index_folder, run_binding
from gpu_rag.schemas import FINAL_STATES
from gpu_rag.spans import source_text
from gpu_rag.stage_report import Progress
from gpu_rag.store import Generation, open_generation, read_json, write_json, write_parquet, writer_lock

Row = dict[str, Any]


@dataclass(frozen=True)
class StandingResult:
    """A run over standing questions, and what differs from the run before.

    Attributes:
        run: Its tables and stages.
        folder: Its RUN folder.
        changes: `schemas.CHANGES`.
    """

    run: AnswerResult
    folder: Path
    changes: pa.Table

    def summary(self) -> str:
        """Return one line: how many were answered again, and what became of them."""
        kinds = Counter(self.changes.column("change").to_pylist())
        again = pc.sum(self.changes.column("answered_again")).as_py() or 0
        lost = sum(len(citations) for citations in self.changes.column("lost_citations").to_pylist())
        names = {
            "answer": "answers changed", "answered": "now answered", "refused": "now refused", "citations": "other citations",
            "new": "new", "unfinished": "unfinished",
        }  # fmt: skip
        parts = [f"{again} of {self.changes.num_rows} questions answered again"]
        parts += [f"{kinds[kind]} {text}" for kind, text in names.items() if kinds[kind]]
        return ", ".join([*parts, f"{lost} citations lost"])


def answer_standing(
    questions: Path,
    index: Path,
    out: Path,
    config: Config,
    *,
    system: str,
    progress: Progress,
    address: str | None = None,
    retry_listed: bool = False,
) -> StandingResult:
    """Answer standing questions over the current generation, and say what differs from the run before.

    Args:
        questions: JSONL or Parquet (see `query.questions`).
        index: INDEX folder.
        out: Folder of the runs, made if missing.
        config: As `answer_questions`.
        system: Name for reports.
        progress: Receives stage events.
        address: Ray cluster; None starts Ray on this machine.
        retry_listed: Try rows again that have used up their attempts.

    Raises:
        InputError: On malformed questions, naming file and line.
        ConfigError: If `out` is an index or a single run, or the encoder is not the index's.
        StoreError: If the index is damaged, or another process writes `out`.
    """
    asked = standing_questions(questions, out)
    generation = open_generation(index)
    binding = run_binding(generation, asked, config)
    folder = out / content_hash("standing run", *(binding[name] for name in sorted(binding)))
    with writer_lock(out):
        runs = _runs(out)
        before = out / runs[-1] if runs else None
        same_config = before is not None and read_json(before / "run.json", "config")["config"] == binding["config"]
        run = answer_over(
            generation, asked, folder, config,
            binding=binding, work=out, system=system, progress=progress, address=address, retry_listed=retry_listed,
            earlier=before if same_config else None,
        )  # fmt: skip
        changes = compare_answers(_answers(before) if before is not None else {}, run, generation)
        write_parquet(folder / "changes.parquet", changes)
        write_json(out / "LATEST", {"runs": [*(name for name in runs if name != folder.name), folder.name]})
    return StandingResult(run, folder, changes)


def standing_questions(questions: Path, out: Path) -> pa.Table:
    """Return `schemas.QUESTIONS`, after a look at where their runs go.

    Raises:
        InputError: On malformed questions, naming file and line.
        ConfigError: If `out` is an index or a single run.
    """
    refuse_index_folder(out)
    if (out / "run.json").exists():
        raise ConfigError(f"{out} is the folder of a single run; choose another one for standing questions")
    return read_questions(questions)


def compare_answers(before: Mapping[str, Row], run: AnswerResult, generation: Generation) -> pa.Table:
    """Return `schemas.CHANGES`: how each answer differs from the one before.

    Args:
        before: Rows of `schemas.ANSWERS` by question id.
        run: The run now.
        generation: What it ran over; citations that stand there no more are lost.
    """
    sources = _Sources(generation)
    rows = []
    for after in run.answers.to_pylist():
        earlier = before.get(after["id"])
        cited = earlier["citations"] if earlier is not None else []
        rows.append(
            {
                "id": after["id"],
                "change": _change(earlier, after),
                "before": earlier["answer"] if earlier is not None else None,
                "after": after["answer"],
                "answered_again": after["id"] not in run.carried,
                "lost_citations": [citation for citation in cited if not sources.has(citation)],
            }
        )
    return schemas.CHANGES.from_rows(rows)


def remove_old_runs(out: Path, keep: int) -> int:
    """Remove all but the last `keep` runs, and the work that only they needed; return how many. It takes the writer lock."""
    with writer_lock(out):
        runs = _runs(out)
        old, kept = runs[: max(0, len(runs) - keep)], runs[-keep:]
        write_json(out / "LATEST", {"runs": kept})
        for name in old:
            shutil.rmtree(out / name)
        needed = {entry for name in kept for entry in read_json(out / name / FINGERPRINTS).items()}
        for folder in (out / "work").glob("*/*"):
            if (folder.parent.name, folder.name) not in needed:
                shutil.rmtree(folder)
    return len(old)


def _runs(out: Path) -> list[str]:
    """Return the folders of the finished runs that are there, in the order in which they were last made."""
    if not (out / "LATEST").exists():
        return []
    return [name for name in read_json(out / "LATEST", "runs")["runs"] if (out / name / FINGERPRINTS).exists()]


def _change(before: Row | None, after: Row) -> str:
    if after["state"] not in FINAL_STATES:
        return "unfinished"
    if before is None or before["state"] not in FINAL_STATES:
        return "new"
    if before["outcome"] != after["outcome"]:
        return str(after["outcome"] or "unfinished")
    if before["answer"] != after["answer"]:
        return "answer"
    return "same" if _cited(before) == _cited(after) else "citations"


def _cited(row: Row) -> list[tuple[str, str]]:
    return sorted((citation["doc_id"], citation["quote"]) for citation in row["citations"])


def _answers(folder: Path) -> dict[str, Row]:
    return {row["id"]: row for row in pq.read_table(folder / "answers.parquet").to_pylist()}


class _Sources:
    """Source texts of a generation, looked up by document."""

    def __init__(self, generation: Generation) -> None:
        self._documents = generation.read(schemas.DOCUMENTS, ["doc_id", "title", "text"])
        self._rows = {doc_id: row for row, doc_id in enumerate(self._documents.column("doc_id").to_pylist())}

    def has(self, citation: Row) -> bool:
        """Return whether a cited document still holds the quote."""
        row = self._rows.get(citation["doc_id"])
        if row is None:
            return False
        title, text = (self._documents.column(name)[row].as_py() for name in ("title", "text"))
        return citation["quote"] in source_text(title, text)
