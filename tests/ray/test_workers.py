"""The pool and the executor over real Ray actors, with small stages that misbehave on demand."""

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag.engines.workers import RunConfig, WorkerPool
from gpu_rag.errors import EngineError, EngineStartError, InputError
from gpu_rag.pipeline import Executor
from gpu_rag.schemas import STRING, TEXT, TableSchema, column
from gpu_rag.stage import Cardinality, NoConfig, RowStage, Tables
from gpu_rag.stage_report import StageReport
from gpu_rag.store import WorkStore

TEXTS = TableSchema("texts", 1, pa.schema([column("id", STRING), column("text", TEXT)]), key=("id",))
LENGTHS = TableSchema(
    "lengths", 1,
    pa.schema([column("id", STRING), column("length", pa.int64(), nullable=True), column("state", STRING), column("reason", STRING)]),
    key=("id",),
)  # fmt: skip
PAYLOAD = pa.schema([column("length", pa.int64(), nullable=True), column("pid", pa.int64(), nullable=True)])


class Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


def measure(work: pa.Table, *, config: NoConfig) -> pa.Table:
    """Return the length of each text, in reverse order; texts with instructions make it misbehave."""
    keys, texts = work.column("work_key").to_pylist(), work.column("text").to_pylist()
    for text in texts:
        if text == "raise":
            raise RuntimeError("cannot measure this")
        if text == "wrong input":
            raise InputError("file.txt:3: not a text")
        if text.startswith("die now"):
            os._exit(1)
        if text.startswith("die once ") and not Path(text[9:]).exists():
            Path(text[9:]).write_text("died")
            os._exit(1)
        if text == "hang":
            time.sleep(3600)
        if text.startswith("sleep"):
            time.sleep(0.3)
    rows = [(key, "ok", "", len(text), os.getpid()) for key, text in zip(keys, texts, strict=True)][::-1]
    names = ["work_key", "state", "reason", "length", "pid"]
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def content(tables: Tables, config: Any) -> pa.Table:
    return tables["texts"].rename_columns(["row_id", "text"])


def assemble(tables: Tables, results: pa.Table, config: Any) -> dict[str, pa.Table]:
    table = results.rename_columns({"row_id": "id"}).select(["id", "length", "state", "reason"])
    return {"lengths": LENGTHS.sort(table.cast(LENGTHS.schema))}


STAGE = RowStage(
    number=9, name="measure", version=1, reads=("texts",), writes=(LENGTHS,), cardinality=Cardinality.ONE_TO_ONE,
    payload=PAYLOAD, content=content, run=measure, assemble=assemble,
)  # fmt: skip


@pytest.fixture
def pool(ray_cluster: None) -> Iterator[WorkerPool]:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with WorkerPool(RunConfig(num_workers=2), {}) as workers:
        yield workers


def texts(**rows: str) -> dict[str, pa.Table]:
    return {"texts": TEXTS.build({"id": list(rows), "text": list(rows.values())})}


def execute(root: Path, pool: WorkerPool, tables: Tables, **run: int) -> tuple[dict[str, dict[str, Any]], StageReport]:
    executor = Executor(root, pool, RunConfig(shard_rows=32, **run), {}, Quiet())
    outputs, report = executor.rows(STAGE, NoConfig(), tables)
    return {row["id"]: row for row in outputs["lengths"].to_pylist()}, report


def test_results_join_by_id_whatever_order_they_arrive_in(tmp_path: Path, pool: WorkerPool) -> None:
    many = {f"r{i:03d}": ("sleep" if i % 40 == 0 else "") + "x" * i for i in range(200)}
    rows, report = execute(tmp_path, pool, texts(**many))
    assert {key: row["length"] for key, row in rows.items()} == {key: len(text) for key, text in many.items()}
    assert report.states == {"ok": 200}
    assert report.rows == 200


def test_equal_texts_are_one_piece_of_work_with_a_row_each(tmp_path: Path, pool: WorkerPool) -> None:
    rows, report = execute(tmp_path, pool, texts(a="same", b="same", c="other"))
    assert (report.rows, report.distinct, report.computed) == (3, 2, 2)
    assert rows["a"]["length"] == rows["b"]["length"] == 4


def test_a_second_run_computes_only_what_is_new(tmp_path: Path, pool: WorkerPool) -> None:
    execute(tmp_path, pool, texts(a="one", b="three"))
    _, report = execute(tmp_path, pool, texts(b="three", renamed="one", c="newcomer"))
    assert (report.cached, report.computed) == (2, 1)


def test_one_bad_row_is_alone_in_its_state_and_is_tried_again_next_time(tmp_path: Path, pool: WorkerPool) -> None:
    tables = texts(**{f"r{i}": f"text {i}" for i in range(70)}, bad="raise")
    rows, report = execute(tmp_path, pool, tables)
    assert report.states == {"error": 1, "ok": 70}
    assert rows["bad"]["reason"] == "RuntimeError: cannot measure this"
    assert report.listed == [{"row_id": "bad", "state": "error", "reason": "RuntimeError: cannot measure this"}]
    _, again = execute(tmp_path, pool, tables)
    assert again.computed == 1
    _, third = execute(tmp_path, pool, tables, max_attempts=2)
    assert third.computed == 0
    assert third.num_unfinished() == 1


def test_a_row_that_kills_its_worker_is_alone_in_its_state(tmp_path: Path, pool: WorkerPool) -> None:
    rows, report = execute(tmp_path, pool, texts(**{f"r{i}": f"text {i}" for i in range(8)}, bad="die now"))
    assert report.states == {"error": 1, "ok": 8}
    assert rows["bad"]["reason"].startswith("worker lost")


def test_a_row_that_hangs_a_stage_without_a_model_is_alone_in_its_state(tmp_path: Path, ray_cluster: None) -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with WorkerPool(RunConfig(num_workers=2, silent_seconds=1.5), {}) as workers:
        rows, report = execute(tmp_path, workers, texts(**{f"r{i}": f"text {i}" for i in range(40)}, bad="hang"))
    assert report.states == {"error": 1, "ok": 40}
    assert rows["bad"]["reason"] == "worker lost: no sign of life for 1.5 s"


def test_a_worker_that_dies_once_costs_no_row(tmp_path: Path, pool: WorkerPool) -> None:
    _, report = execute(tmp_path, pool, texts(a="one", b=f"die once {tmp_path / 'mark'}"))
    assert report.states == {"ok": 2}


def test_wrong_input_ends_the_run_and_keeps_what_is_done(tmp_path: Path, pool: WorkerPool) -> None:
    good = {f"r{i}": f"text {i}" for i in range(64)}
    execute(tmp_path, pool, texts(**good))
    with pytest.raises(InputError, match=r"file\.txt:3"):
        execute(tmp_path, pool, texts(**good, bad="wrong input"))
    _, report = execute(tmp_path, pool, texts(**good))
    assert report.computed == 0


def test_no_rows_need_no_worker(tmp_path: Path) -> None:
    with WorkerPool(RunConfig(), {}) as idle:
        rows, report = execute(tmp_path, idle, texts())
        assert rows == {}
        assert report.rows == 0
        assert idle._ray is None


def test_rows_and_distinct_keys_agree_after_a_rerun_over_another_shard_size(tmp_path: Path, pool: WorkerPool) -> None:
    tables = texts(**{f"r{i}": f"text {i}" for i in range(100)})
    execute(tmp_path, pool, tables)
    executor = Executor(tmp_path, pool, RunConfig(shard_rows=7), {}, Quiet())
    outputs, report = executor.rows(STAGE, NoConfig(), tables)
    assert report.computed == 0
    assert outputs["lengths"].num_rows == 100
    fingerprint = STAGE.fingerprint(NoConfig(), {})
    assert len(WorkStore(tmp_path, STAGE.label, fingerprint, STAGE.result_schema).status) == 100


def broken_engine() -> None:
    raise RuntimeError("no memory left on the device")


def test_an_engine_that_does_not_start_ends_the_run_and_is_no_rows_fault(tmp_path: Path, ray_cluster: None) -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    stage = dataclasses.replace(STAGE, engines=("encoder",))
    with WorkerPool(RunConfig(num_workers=1), {"encoder": broken_engine}) as workers:
        executor = Executor(tmp_path, workers, RunConfig(), {"encoder": "e1"}, Quiet())
        with pytest.raises(EngineStartError, match="engine encoder does not start: RuntimeError: no memory left"):
            executor.rows(stage, NoConfig(), texts(a="one", b="two"))
        assert (
            WorkStore(tmp_path, stage.label, stage.fingerprint(NoConfig(), {"encoder": "e1"}), stage.result_schema).status == {}
        )


def test_workers_that_only_die_end_the_run(tmp_path: Path, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.engines.supervision._MAX_DEATHS_IN_A_ROW", 3)
    with pytest.raises(EngineStartError, match="3 workers died in a row"):
        execute(tmp_path, pool, texts(a="die now", b="die now too"))


def test_a_worker_larger_than_the_cluster_is_refused(ray_cluster: None) -> None:
    with WorkerPool(RunConfig(cpus_per_worker=64), {}) as workers, pytest.raises(EngineError, match=r"cpus_per_worker=64"):
        workers.num_workers()
