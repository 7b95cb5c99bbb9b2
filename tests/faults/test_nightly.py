"""Nights: standing questions are answered again only where their evidence changed, and every night says what it did."""

import json

import pyarrow.parquet as pq
import pytest

from gpu_rag.cli import main
from gpu_rag.config import load_config
from gpu_rag.errors import ConfigError, InputError, StoreError
from gpu_rag.nightly import NightlyResult, StandingQuestions, nightly
from gpu_rag.store import history, writer_lock
from tests.faults.conftest import QUESTIONS, Job, Row

FAIR_IN_MAY: Row = {
    "doc_id": "village",
    "title": "Pell",
    "text": "Pell is a village of 300 people. Its fair is held every May.",
}
UNRELATED: Row = {"doc_id": "ore", "title": "Zinc ore", "text": "Zinc ore was mined by hand with iron picks."}
ALWAYS = "answer.policy=always"


@pytest.fixture
def job(copied: Job) -> Job:
    """A published index over `DOCUMENTS`."""
    return copied


def night(
    job: Job, coming: list[Row] | None = None, delete: tuple[str, ...] = (), *, questions: list[Row] = QUESTIONS,
    settings: tuple[str, ...] = (ALWAYS,), keep: int = 7,
) -> NightlyResult:  # fmt: skip
    corpus = job.write("coming.jsonl", coming) if coming is not None else None
    built_with = job.generation().manifest["config"]
    config = load_config(settings=("run.num_workers=1",), base=built_with)
    asking = load_config(system="embedded", settings=("run.num_workers=1", *settings), base={"embed": built_with["embed"]})
    standing = StandingQuestions(job.write("standing.jsonl", questions), job.folder / "runs", "embedded", asking)
    job.computed.clear()
    return nightly(corpus, job.root, config, delete=delete, standing=standing, keep=keep, progress=job)


def changes(result: NightlyResult) -> dict[str, Row]:
    assert result.standing is not None
    return {row["id"]: row for row in result.standing.changes.to_pylist()}


def test_only_questions_whose_evidence_changed_are_answered_again(job: Job) -> None:
    first = changes(night(job))
    assert {row["change"] for row in first.values()} == {"new"}
    assert all(row["answered_again"] for row in first.values())
    second = night(job, [FAIR_IN_MAY], settings=(ALWAYS, "select.k=1", "retrieve.depth=20"))
    assert all(row["answered_again"] for row in changes(second).values())  # another config
    third = night(
        job,
        [{**FAIR_IN_MAY, "text": FAIR_IN_MAY["text"].replace("May", "June")}],
        settings=(ALWAYS, "select.k=1", "retrieve.depth=20"),
    )
    found = changes(third)
    assert found["fair"]["answered_again"]
    assert not found["climb"]["answered_again"]
    assert job.computed["06_ground"] == job.computed["08_answer"] == sum(row["answered_again"] for row in found.values()) < 3
    assert [citation["doc_id"] for citation in found["fair"]["lost_citations"]] == ["village"]
    assert third.standing is not None
    assert "1 citations lost" in third.summary()


def test_a_carried_answer_is_what_answering_anew_gives(job: Job) -> None:
    night(job)
    result = night(job, [UNRELATED])
    assert result.standing is not None
    assert result.standing.run.carried
    fresh = job.answer(QUESTIONS, ALWAYS, run="anew")
    assert result.standing.run.answers.equals(fresh.answers)


def test_a_night_in_which_nothing_changed_computes_nothing(job: Job) -> None:
    night(job)
    result = night(job)
    assert job.recomputed() == {}
    assert {row["change"] for row in changes(result).values()} == {"same"}
    assert result.num_unfinished() == 0


def test_a_citation_whose_document_is_deleted_is_lost(job: Job) -> None:
    cited = {row["id"]: row["citations"] for row in night(job).standing.run.answers.to_pylist()}  # type: ignore[union-attr]
    doc_id = cited["climb"][0]["doc_id"]
    found = changes(night(job, None, (doc_id,)))
    assert found["climb"]["answered_again"]
    assert doc_id in {citation["doc_id"] for citation in found["climb"]["lost_citations"]}


def test_a_new_question_is_new_and_the_others_are_carried(job: Job) -> None:
    night(job)
    asked = [*QUESTIONS, {"id": "reed", "question": "Who built Orme Bridge?"}]
    found = changes(night(job, questions=asked))
    assert {name: row["change"] for name, row in found.items()} == {
        "climb": "same", "fair": "same", "stadium": "same", "reed": "new"
    }  # fmt: skip
    assert [name for name, row in found.items() if row["answered_again"]] == ["reed"]


def test_generations_and_runs_are_kept_by_count(job: Job) -> None:
    for number in range(4):
        night(job, [{**UNRELATED, "text": f"Zinc ore was mined {number} times."}], keep=2)
    assert len(history(job.root)) == 2
    runs = sorted(path.parent.name for path in (job.folder / "runs").glob("*/run.json"))
    assert sorted(json.loads((job.folder / "runs" / "LATEST").read_text(encoding="utf-8"))["runs"]) == runs
    assert len(runs) == 2
    for stage in (job.folder / "runs" / "work").iterdir():
        assert len(list(stage.iterdir())) <= 2


def test_overlapping_nights_exclude_each_other(job: Job) -> None:
    with writer_lock(job.root), pytest.raises(StoreError, match="is being written by process"):
        night(job)
    (job.folder / "runs").mkdir()
    with writer_lock(job.folder / "runs"), pytest.raises(StoreError, match="is being written by process"):
        night(job, [UNRELATED])
    assert {row["change"] for row in changes(night(job)).values()} == {"new"}


def test_the_folder_of_a_single_run_or_of_an_index_is_refused(job: Job) -> None:
    asking = load_config(system="embedded", base={"embed": job.generation().manifest["config"]["embed"]})
    config = load_config(base=job.generation().manifest["config"])
    for folder in (job.folder / "run", job.root):
        standing = StandingQuestions(job.folder / "run.jsonl", folder, "embedded", asking)
        with pytest.raises(ConfigError, match="folder"):
            nightly(None, job.root, config, standing=standing, keep=1, progress=job)


def test_wrong_questions_are_refused_before_the_update(job: Job) -> None:
    before = job.hash()
    with pytest.raises(InputError, match=r"standing\.jsonl:2"):
        night(job, [UNRELATED], questions=[QUESTIONS[0], {"id": "no text"}])
    assert job.hash() == before
    assert job.computed == {}


def test_the_command_says_in_its_last_line_what_the_night_did(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    coming, asked = job.write("coming.jsonl", [UNRELATED]), job.write("standing.jsonl", QUESTIONS)
    delete = job.folder / "delete.txt"
    delete.write_text("bridge\nnowhere\n\n", encoding="utf-8")
    runs = job.folder / "runs"
    arguments = ["nightly", str(coming), "--index", str(job.root), "--delete", str(delete), "--questions", str(asked)]
    main_exits(0, *arguments, "--runs", str(runs), "--keep", "2", "--set", "run.num_workers=1", "--set", "answer.policy=always")
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith(
        "nightly: 1 added, 0 changed, 1 deleted, 1 to delete were not there; 3 of 3 questions answered again"
    )
    assert last.endswith("0 rows unfinished; 0 old generations removed")
    (folder,) = (path.parent for path in runs.glob("*/run.json"))
    assert pq.read_table(folder / "changes.parquet").num_rows == 3
    main_exits(2, *arguments)


def main_exits(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    assert (done.value.code or 0) == code
