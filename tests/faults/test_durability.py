"""Crashes, damaged files and failed reruns: an index is whole and old, or whole and new, and nothing is lost or doubled."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag import schemas
from gpu_rag.config import load_config
from gpu_rag.errors import ConfigError, GpuRagError, InputError, StoreError
from gpu_rag.evaluation.run import evaluate_folder
from gpu_rag.query.run import answer_questions
from gpu_rag.schemas import STRING, TableSchema, column
from gpu_rag.stage import WORK_COLUMNS
from gpu_rag.store import ArtifactStore, WorkStore, open_generation, publish_generation, writer_lock
from gpu_rag.store.files import TEMPORARY

ITEMS = TableSchema("items", 1, pa.schema([column("id", STRING)]), key=("id",))
RESULT = pa.schema(WORK_COLUMNS)


class Crash(BaseException):
    """Stands for the death of the process: nothing below handles it."""


@contextmanager
def crash_after(monkeypatch: pytest.MonkeyPatch, renames: int) -> Iterator[list[int]]:
    """Let so many files be renamed into place and die at the next one; yields a list of the renames left."""
    import os

    real, left = os.replace, [renames]

    def replace(source: Any, target: Any) -> None:
        if left[0] == 0:
            raise Crash
        left[0] -= 1
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", replace)
        yield left


def write_all(root: Path, ids: list[str]) -> None:
    """Commit work, write two artifacts and publish them, as a run does."""
    with writer_lock(root):
        work = WorkStore(root, "04_extract", "f", RESULT)
        for key in work.wanted(ids, 3):
            work.commit(pa.table({"work_key": [key], "state": ["ok"], "reason": [""]}, schema=RESULT))
        store = ArtifactStore(root)
        tables = {"items": ITEMS.build({"id": ids})}
        artifacts = {
            label: store.find(label, "-".join(ids)) or store.write(label, "-".join(ids), tables, (ITEMS,), files)
            for label, files in (("04_extract", None), ("07_graph", lambda folder: (folder / "indptr.npy").write_bytes(b"0")))
        }
        publish_generation(
            root, artifacts, config={"ids": ids}, encoder={"model": "m", "identity": "i"}, corpus_hash="c",
            counts={"items": len(ids)}, code_version="0", unfinished={},
        )  # fmt: skip


def test_a_crash_at_any_rename_leaves_the_old_generation_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path / "old", ["a"])
    write_all(tmp_path / "new", ["a", "b"])
    old, new = open_generation(tmp_path / "old").content_hash, open_generation(tmp_path / "new").content_hash
    seen = set()
    for renames in range(100):
        root = tmp_path / str(renames)
        shutil.copytree(tmp_path / "old", root)
        with crash_after(monkeypatch, renames) as left, suppress(Crash):
            write_all(root, ["a", "b"])
        seen.add(open_generation(root).content_hash)
        write_all(root, ["a", "b"])
        assert open_generation(root).content_hash == new
        assert not list(root.rglob(TEMPORARY + "*"))
        if left[0]:
            break
    assert renames > 8
    assert seen == {old, new}


def test_runs_that_crash_at_ever_later_points_end_with_the_content_of_one_that_does_not(
    finished: Any, copied: Any, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    added = {"doc_id": "new", "title": "Harl", "text": "Harl lies south of Pell. Its mill was built by Anna Voss in 1790."}
    before = copied.hash()
    renames, crashes, computed = 1, 0, 0
    while True:
        with crash_after(monkeypatch, renames):
            try:
                result = copied.index([*documents, added], "run.shard_rows=1")
                break
            except Crash:
                crashes += 1
        computed += copied.computed.get("04_extract", 0)
        assert copied.hash() == before
        renames = 2 * renames + 1
    assert crashes >= 3
    assert computed + copied.computed["04_extract"] == 1
    assert result.generation.content_hash == copied.hash() != before
    assert result.generation.manifest["counts"]["documents"] == len(documents) + 1
    fresh = type(copied)(copied.folder / "fresh")
    assert fresh.index([*documents, added]).generation.content_hash == copied.hash()


def files_of(generation: Any) -> Iterator[tuple[str, Path]]:
    for label, entry in generation.manifest["artifacts"].items():
        for name in entry["files"]:
            yield label, generation.artifact(label).folder / name


def test_any_one_file_that_is_deleted_or_altered_is_named_on_opening(finished: Any, copied: Any) -> None:
    files = list(files_of(copied.generation()))
    assert len(files) > 15
    for label, path in files:
        whole = path.read_bytes()
        for damaged in (None, whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b"\0", b""):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(StoreError, match=path.name) as raised:
                copied.generation()
            assert f"rebuild stage {label}" in str(raised.value)
        path.write_bytes(whole)
    assert copied.hash() == finished.hash()


@pytest.mark.parametrize("name", ["CURRENT", "generations/*.json"])
@pytest.mark.parametrize("damage", ["cut", "delete"])
def test_a_damaged_manifest_is_named_and_the_next_run_writes_it_again_from_what_is_committed(
    finished: Any, copied: Any, documents: list[dict[str, Any]], name: str, damage: str
) -> None:
    path = next(copied.root.glob(name))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    with pytest.raises(StoreError, match=r"CURRENT|holds no published index" if name == "CURRENT" else path.name):
        copied.generation()
    copied.index(documents)
    assert copied.recomputed() == {}
    assert copied.hash() == finished.hash()


def test_a_file_lost_in_each_artifact_in_turn_is_rebuilt_without_computing_a_row_again(
    finished: Any, copied: Any, documents: list[dict[str, Any]]
) -> None:
    for _, path in {label: (label, path) for label, path in files_of(copied.generation())}.values():
        path.unlink()
    copied.index(documents)
    assert copied.hash() == finished.hash()
    assert {label for label, rows in copied.recomputed().items() if rows} <= {
        "06_govern",
        "07_graph",
        "08_communities",
        "10_publish",
    }


def test_rows_without_their_entry_and_entries_without_their_rows_are_computed_again_and_no_others(
    finished: Any, copied: Any, documents: list[dict[str, Any]]
) -> None:
    entries = sorted((copied.root / "work" / "04_extract").rglob("*.json"))
    rows = sum(json.loads(entry.read_text())["rows"] for entry in entries)
    for entry in entries:
        entry.unlink()
    shard = next((copied.root / "work" / "03_chunk").rglob("*.parquet"))
    chunked = pq.read_metadata(shard).num_rows
    shard.unlink()
    copied.index(documents)
    assert copied.recomputed() == {"03_chunk": chunked, "04_extract": rows}
    assert copied.hash() == finished.hash()


def test_partial_and_foreign_files_that_no_manifest_lists_are_never_read(
    finished: Any, copied: Any, documents: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    for shard in list(copied.root.rglob("*.parquet")):
        half = shard.read_bytes()[: shard.stat().st_size // 2]
        shard.with_name(TEMPORARY + shard.name).write_bytes(half)
        shard.with_name(f"part-{shard.name}").write_bytes(half)
    shutil.copytree(next((copied.root / "artifacts").iterdir()), copied.root / "artifacts" / f"{TEMPORARY}99_half-0")
    (copied.folder / "run" / f"{TEMPORARY}answers.parquet").write_bytes(b"PAR1")
    assert copied.hash() == finished.hash()
    copied.index(documents)
    copied.answer(questions)
    assert copied.recomputed() == {}
    assert copied.hash() == finished.hash()
    assert copied.answers() == finished.answers()
    assert not list(copied.root.rglob(TEMPORARY + "*"))


@pytest.mark.parametrize(
    ("corpus", "settings", "error"),
    [
        ([{"doc_id": "x"}], (), InputError),
        ([{"doc_id": "x", "text": "a"}, {"doc_id": "x", "text": "b"}], (), InputError),
        ([{"doc_id": "x", "text": "A new text."}], ("extract.methods=[recorded]",), InputError),
        ([{"doc_id": "x", "text": "A new text."}], ("extract.methods=[no.such:function]",), ConfigError),
        ([{"doc_id": "x", "text": "A new text."}], ("embed.encoder.model=/no/such/folder",), GpuRagError),
    ],
)
def test_a_failed_rerun_leaves_the_published_index_its_report_and_its_runs_as_they_were(
    copied: Any, corpus: list[dict[str, Any]], settings: tuple[str, ...], error: type[Exception]
) -> None:
    def state() -> dict[str, bytes]:
        files = [path for path in copied.folder.rglob("*") if path.is_file() and "work" not in path.parts]
        kept = (path for path in files if path.name not in ("lock", "corpus.jsonl"))
        return {str(path): path.read_bytes() for path in kept if "03_chunk" not in str(path)}

    before = state()
    with pytest.raises(error):
        copied.index(corpus, *settings)
    after = state()
    assert {path: after.get(path) for path in before} == before
    copied.evaluate()


def test_ten_shards_rerun_into_the_same_folder_hold_every_row_once(job: Any) -> None:
    corpus = [{"doc_id": f"d{i:02d}", "text": f"Entry {i} of the list names Pell and Orme."} for i in range(40)]
    for _ in range(2):
        job.index(corpus, "run.shard_rows=4", "embed.kinds=[chunk]")
        assert job.generation().manifest["counts"]["documents"] == 40
        assert job.generation().read(schemas.CHUNKS).num_rows == 40
        assert len(set(job.generation().read(schemas.CHUNKS).column("doc_id").to_pylist())) == 40
    assert len(list((job.root / "work" / "03_chunk").rglob("*.json"))) == 10


def test_a_run_whose_tables_are_not_of_one_writing_is_not_evaluated(finished: Any, copied: Any) -> None:
    for name in ("answers", "rankings", "lineages"):
        path = copied.folder / "run" / f"{name}.parquet"
        whole = path.read_bytes()
        pq.write_table(pq.read_table(path).slice(1), path)
        with pytest.raises(StoreError, match=rf"{name}\.parquet does not match .*run `gpu-rag answer`"):
            copied.evaluate()
        path.write_bytes(whole)
    copied.evaluate()


def test_an_answering_run_that_crashes_while_writing_its_tables_ends_with_the_same_bytes(
    finished: Any, copied: Any, questions: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = sorted(path.name for path in (finished.folder / "run").glob("*.parquet") if path.name != "per_question.parquet")
    assert tables == ["answers.parquet", "lineages.parquet", "rankings.parquet"]
    for renames in range(4):
        shutil.rmtree(copied.folder / "again", ignore_errors=True)
        shutil.copytree(finished.folder / "run", copied.folder / "again")
        for name in (*tables, "report.json"):
            (copied.folder / "again" / name).unlink()
        with crash_after(monkeypatch, renames), pytest.raises(Crash):
            copied.answer(questions, run="again")
        with pytest.raises(StoreError, match=r"report\.json is missing"):
            copied.evaluate("again")
    copied.answer(questions, run="again")
    assert copied.recomputed() == {}
    for name in tables:
        assert (copied.folder / "again" / name).read_bytes() == (finished.folder / "run" / name).read_bytes()


def test_an_index_is_not_written_into_a_run_nor_a_run_into_an_index(copied: Any, questions: list[dict[str, Any]]) -> None:
    config = load_config(system="embedded")
    asked = copied.folder / "run.jsonl"
    with pytest.raises(ConfigError, match="is an index folder"):
        answer_questions(asked, copied.root, copied.root, config, system="embedded", progress=copied)
    copied.root = copied.folder / "run"
    with pytest.raises(ConfigError, match="is a run folder"):
        copied.index([{"doc_id": "x", "text": "y"}])
    evaluate_folder(copied.folder / "run", asked)
