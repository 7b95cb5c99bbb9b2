"""Language-model work on real Ray actors, with an engine that raises, hangs, dies and talks nonsense on demand."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpu_rag.engines.generation import GenerationRequest, Message, TextGenerator
from gpu_rag.engines.llm import LlmConfig, open_llm
from gpu_rag.engines.usage import usage_columns
from gpu_rag.engines.worker import Opened
from gpu_rag.engines.workers import RunConfig, WorkerPool
from gpu_rag.errors import AwaitingAnswersError, EngineStartError
from gpu_rag.pipeline import Executor
from gpu_rag.schemas import STRING, TEXT, TableSchema, column
from gpu_rag.stage import Cardinality, NoConfig, RowStage, Tables
from gpu_rag.stage_report import StageReport
from gpu_rag.store import WorkStore

TEXTS = TableSchema("texts", 1, pa.schema([column("id", STRING), column("text", TEXT)]), key=("id",))
SCHEMA = {
    "type": "object", "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 20}},
    "required": ["word"], "additionalProperties": False,
}  # fmt: skip


class Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


def words_schema(name: str) -> TableSchema:
    fields = [column("id", STRING), column(name, TEXT, nullable=True), column("state", STRING), column("reason", STRING)]
    return TableSchema(name, 1, pa.schema(fields), key=("id",))


def asking_stage(number: int, name: str, reads: TableSchema, source: str) -> RowStage:
    """A stage that asks the model for a word about the column `source` of a table."""
    writes = words_schema(name)

    def content(tables: Tables, config: Any) -> pa.Table:
        table = tables[reads.name]
        ready = table.filter(pc.is_valid(table.column(source)))
        return pa.table({"row_id": ready.column("id"), "text": ready.column(source)})

    def run(work: pa.Table, *, config: NoConfig, llm: TextGenerator) -> pa.Table:
        keys, texts = work.column("work_key").to_pylist(), work.column("text").to_pylist()
        requests = [
            GenerationRequest(key, (Message("user", f"{name}: {text}"),), llm.sampling(16, key), schema=SCHEMA)
            for key, text in zip(keys, texts, strict=True)
        ]
        done = llm.generate(requests)
        results = [done[key] for key in keys]
        columns = {
            "work_key": pa.array(keys, STRING),
            "state": pa.array([r.state for r in results], STRING),
            "reason": pa.array([r.reason for r in results], STRING),
            name: pa.array([f"{os.getpid()} {text}" if r.ok else None for r, text in zip(results, texts, strict=True)], TEXT),
        }
        return pa.table(columns | usage_columns([[r] for r in results]))

    def assemble(tables: Tables, results: pa.Table, config: Any) -> dict[str, pa.Table]:
        return {name: writes.sort(results.rename_columns({"row_id": "id"}).select(writes.schema.names).cast(writes.schema))}

    return RowStage(
        number=number, name=name, version=1, reads=(reads.name,), writes=(writes,), cardinality=Cardinality.ONE_TO_ONE,
        engines=("llm",), payload=pa.schema([column(name, TEXT, nullable=True)]), content=content, run=run, assemble=assemble,
        uses_llm=True,
    )  # fmt: skip


ASK = asking_stage(4, "ask", TEXTS, "text")
CHAIN = (ASK, asking_stage(5, "doubt", words_schema("ask"), "ask"), asking_stage(6, "reply", words_schema("doubt"), "doubt"))

Execute = Callable[..., tuple[dict[str, dict[str, Any]], StageReport]]


@pytest.fixture
def by_value(ray_cluster: None) -> None:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def execute(by_value: None, tmp_path: Path) -> Iterator[Execute]:
    def run(
        tables: Tables, *, retry_listed: bool = False, shard_rows: int = 64, workers: int = 2, silent: float = 60.0,
        attempts: int = 2, recycle: int | None = None, start_seconds: float = 60.0, **script: Any,
    ) -> tuple[dict[str, dict[str, Any]], StageReport]:  # fmt: skip
        config = LlmConfig.model_validate({"engine": "scripted", "scripted": script})
        width = RunConfig(
            num_workers=workers, shard_rows=shard_rows, silent_seconds=silent, max_attempts=attempts, recycle_rows=recycle,
            start_seconds=start_seconds,
        )  # fmt: skip
        with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
            executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet(), retry_listed)
            outputs, report = executor.rows(ASK, NoConfig(), tables)
            return {row["id"]: row for row in outputs["ask"].to_pylist()}, report

    return run


def texts(count: int) -> dict[str, pa.Table]:
    rows = range(count)
    return {"texts": TEXTS.build({"id": [f"r{i:05d}" for i in rows], "text": [f"text number {i}" for i in rows]})}


def test_every_row_ends_in_a_state_whatever_the_engine_does_and_a_retry_touches_exactly_the_listed(execute: Execute) -> None:
    faults = {"raise": 0.01, "hang": 0.01, "truncate": 0.01, "garbage": 0.01, "die": 0.01, "decline": 0.01, "error": 0.01}
    rows, report = execute(texts(500), faults=faults, silent=1.0)
    assert len(rows) == report.rows == sum(report.states.values()) == 500
    assert set(report.states) == {"ok", "error", "truncated", "invalid", "declined"}
    reasons = {row["reason"] for row in rows.values()}
    for cause in ("no sign of life", "it died", "scripted: the engine raised", "429", "declined", "cut at 32", "not JSON"):
        assert any(cause in reason for reason in reasons), cause
    assert report.states["ok"] > 440
    listed = {row["row_id"] for row in report.listed}
    assert listed == {key for key, row in rows.items() if row["state"] != "ok"}
    _, second = execute(texts(500), faults=faults, silent=1.0)
    assert second.computed == len(listed)  # the second attempt
    _, third = execute(texts(500), faults=faults, silent=1.0)
    assert third.computed == 0
    assert third.num_unfinished() == len(listed)
    again, healed = execute(texts(500), retry_listed=True)
    assert healed.computed == len(listed)
    assert healed.states == {"ok": 500}
    assert all(again[key]["ask"] == row["ask"] for key, row in rows.items() if row["state"] == "ok")  # not asked again


def test_tokens_of_rows_add_up_to_what_the_report_says_failures_and_retries_included(execute: Execute, tmp_path: Path) -> None:
    _, report = execute(texts(200), faults={"truncate": 0.1, "garbage": 0.1})
    store = WorkStore(tmp_path, ASK.label, ASK.fingerprint(NoConfig(), {"llm": "m1"}), ASK.result_schema)
    table = store.read(store.status)
    failed = table.filter(pc.not_equal(table.column("state"), "ok"))
    assert failed.num_rows > 20
    assert pc.min(failed.column("llm_calls")).as_py() == 2  # asked again once
    assert pc.min(failed.column("tokens_in")).as_py() > 0
    for name in ("llm_calls", "tokens_in", "tokens_out", "tokens_retried"):
        assert report.metrics[name] == pc.sum(table.column(name)).as_py() > 0
    calls = [call for row in table.column("calls").to_pylist() for call in row]
    assert report.metrics["llm_calls"] == len(calls)
    assert report.metrics["tokens_in"] == sum(call["prompt_tokens"] for call in calls)


def test_an_engine_that_kills_its_worker_at_every_request_ends_the_run_with_the_cause(execute: Execute) -> None:
    with pytest.raises(EngineStartError, match="workers died in a row"):
        execute(texts(50), faults={"die": 1.0})


def test_an_engine_that_raises_at_its_start_ends_the_run_with_its_message(execute: Execute) -> None:
    with pytest.raises(EngineStartError, match="engine llm does not start: RuntimeError: scripted: no memory left"):
        execute(texts(50), start="raise")


def test_an_engine_that_never_starts_ends_the_run_at_the_deadline(execute: Execute) -> None:
    began = time.monotonic()
    with pytest.raises(EngineStartError, match=r"did not start within run\.start_seconds=3"):
        execute(texts(50), start="hang", start_seconds=3)
    assert time.monotonic() - began < 30


def test_an_engine_without_a_grammar_is_refused_before_the_first_row(execute: Execute) -> None:
    with pytest.raises(EngineStartError, match="grammar is not active"):
        execute(texts(50), faults={"garbage": 1.0})


def test_a_worker_is_replaced_after_so_many_rows_and_its_memory_stays_flat(execute: Execute) -> None:
    rows, report = execute(texts(640), shard_rows=32, workers=1, recycle=160)
    assert report.states == {"ok": 640}
    assert len({row["ask"].split()[0] for row in rows.values()}) == 4
    kept, _ = execute(texts(1600), shard_rows=32, workers=1)
    fresh = {row["ask"].split()[0] for key, row in kept.items() if key not in rows}
    assert len(fresh) == 1


def test_the_memory_of_a_worker_stays_flat_over_fifty_shards(by_value: None, tmp_path: Path) -> None:
    width = RunConfig(num_workers=1, shard_rows=32)
    with WorkerPool(width, {"llm": partial(open_llm, LlmConfig(engine="scripted"))}) as pool:
        executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet())
        peaks = [executor.rows(ASK, NoConfig(), texts(count))[1].peak_rss_bytes for count in (320, 640, 1600)]
    assert peaks[0] > 50e6
    assert peaks[2] - peaks[0] < 20e6, peaks


def test_a_chain_takes_each_group_through_all_stages_on_one_worker(by_value: None, tmp_path: Path) -> None:
    config = LlmConfig.model_validate({"engine": "scripted"})
    width = RunConfig(num_workers=2, shard_rows=16)
    seen: list[Opened] = []

    def sixteen(opened: Opened, work: pa.Table) -> int:
        seen.append(opened)
        return 16

    with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
        executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet())
        outputs, reports = executor.chain(CHAIN, [NoConfig()] * 3, texts(100), sixteen)
        assert pool.model_loads == 2
    assert len(seen) == 1
    assert [report.states for report in reports] == [{"ok": 100}] * 3
    pids = [table.column(name).to_pylist() for name, table in outputs.items()]
    assert all(len({value.split()[0] for value in row}) == 1 for row in zip(*pids, strict=True))
    with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
        again, reports = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet()).chain(
            CHAIN, [NoConfig()] * 3, texts(100), sixteen
        )
        assert pool.model_loads == 0
    assert [(report.rows, report.cached, report.computed) for report in reports] == [(100, 100, 0)] * 3
    assert all(again[name].equals(outputs[name]) for name in outputs)


def test_a_chain_whose_first_stage_is_done_still_commits_the_others_group_by_group(by_value: None, tmp_path: Path) -> None:
    config = LlmConfig.model_validate({"engine": "scripted"})
    width = RunConfig(num_workers=2, shard_rows=16)
    with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
        executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet())
        executor.rows(ASK, NoConfig(), texts(100))
        executor.chain(CHAIN, [NoConfig()] * 3, texts(100), lambda opened, work: 16)
    doubts = next((tmp_path / "work" / "05_doubt").iterdir())
    rows = [json.loads(path.read_text(encoding="utf-8"))["rows"] for path in doubts.glob("[!.]*.json")]
    assert sum(rows) == 100
    assert max(rows) == 16


def test_a_row_that_fails_in_a_chain_stops_there_and_the_others_go_on(by_value: None, tmp_path: Path) -> None:
    config = LlmConfig.model_validate({"engine": "scripted", "scripted": {"faults": {"error": 0.1, "raise": 0.05}}})
    width = RunConfig(num_workers=2, shard_rows=16)
    with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
        executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet())
        outputs, reports = executor.chain(CHAIN, [NoConfig()] * 3, texts(100), lambda opened, work: 20)
    ok = [report.states["ok"] for report in reports]
    assert 100 > ok[0] > ok[1] > ok[2] > 40
    assert [report.rows for report in reports] == [100, ok[0], ok[1]]
    assert [outputs[name].num_rows for name in ("ask", "doubt", "reply")] == [100, ok[0], ok[1]]


def test_a_worker_that_finds_no_place_ends_the_run_at_the_deadline_saying_what_is_free(
    by_value: None, execute: Execute
) -> None:
    import ray

    holder = ray.remote(num_cpus=2)(Quiet).remote()
    ray.get(holder.advanced.remote("", 0))
    try:
        with pytest.raises(EngineStartError, match=r"free on the cluster: 0 of 2 CPUs"):
            execute(texts(20), start_seconds=2)
    finally:
        ray.kill(holder)


def test_rows_that_wait_for_a_batch_service_are_not_committed_and_their_requests_stand_in_a_file(
    by_value: None, tmp_path: Path
) -> None:
    folder = tmp_path / "batch"
    config = LlmConfig.model_validate({"engine": "batch-file", "folder": str(folder), "api": "vllm"})
    width = RunConfig(num_workers=2, shard_rows=16)

    def run() -> list[dict[str, pa.Table]]:
        with WorkerPool(width, {"llm": partial(open_llm, config)}) as pool:
            executor = Executor(tmp_path, pool, width, {"llm": "m1"}, Quiet(), batch_folder=folder)
            outputs, reports = executor.chain(CHAIN, [NoConfig()] * 3, texts(40), lambda opened, work: 16)
            assert [report.states for report in reports] == [{"ok": 40}] * 3
        return [outputs]

    for stage in ("04_ask", "05_doubt", "06_reply"):
        with pytest.raises(AwaitingAnswersError, match=rf"requests-{stage}-\w+\.jsonl \(40 requests\)") as raised:
            run()
        (path,) = folder.glob(f"requests-{stage}-*.jsonl")
        assert str(path) in str(raised.value)
        assert "run the same command again" in str(raised.value)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert len({line["custom_id"] for line in lines}) == 40
        answers = [
            {"custom_id": line["custom_id"], "error": None, "response": {"status_code": 200, "body": {
                "choices": [{"message": {"role": "assistant", "content": '{"word":"yes"}'}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2},
            }}}
            for line in lines
        ]  # fmt: skip
        (folder / "answers").mkdir(exist_ok=True)
        text = "".join(json.dumps(answer) + "\n" for answer in answers)
        (folder / "answers" / f"{stage}.jsonl").write_text(text, encoding="utf-8")
    assert set(run()[0]["reply"].column("state").to_pylist()) == {"ok"}


def test_what_failed_tries_cost_stays_in_the_account_after_the_row_was_healed(execute: Execute) -> None:
    _, first = execute(texts(100), faults={"garbage": 0.2})
    _, healed = execute(texts(100), retry_listed=True)
    failed = 100 - first.states["ok"]
    assert healed.states == {"ok": 100}
    assert healed.metrics["llm_calls"] == first.metrics["llm_calls"] + failed == 100 + 2 * failed
    assert healed.metrics["llm_invalid"] == 2 * failed
    assert healed.metrics["tokens_in"] > first.metrics["tokens_in"]


GPUS = """
import sys
import ray
ray.init(
    num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 27,
    runtime_env={{"env_vars": {environment}}},
)
from ray import cloudpickle
from tests_ray_supervision import ASK, Quiet, texts
cloudpickle.register_pickle_by_value(sys.modules["tests_ray_supervision"])
from functools import partial
from pathlib import Path
from gpu_rag.engines.llm import LlmConfig, open_llm
from gpu_rag.engines.workers import RunConfig, WorkerPool
from gpu_rag.pipeline import Executor
from gpu_rag.stage import NoConfig
width = RunConfig(num_workers=2, gpus_per_worker=1, shard_rows=16)
opener = partial(open_llm, LlmConfig.model_validate({{"engine": "scripted", "scripted": {{"seconds": 0.02}}}}))
with WorkerPool(width, {{"llm": opener}}) as pool:
    outputs, report = Executor(Path(sys.argv[1]), pool, width, {{"llm": "m1"}}, Quiet()).rows(ASK, NoConfig(), texts(64))
    print(report.states, sorted(worker.opened.devices for worker in pool._supervisor._workers))
"""


def run_on_gpus(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run two workers with a GPU each, on a Ray that was told of two; the scripted engine names the GPUs that it sees."""
    shutil.copy(__file__, tmp_path / "tests_ray_supervision.py")
    return subprocess.run(
        [sys.executable, "-c", GPUS.format(environment=environment), str(tmp_path / "run")],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip


def test_workers_with_a_gpu_each_hold_different_ones(tmp_path: Path) -> None:
    done = run_on_gpus(tmp_path)
    assert done.stdout.splitlines()[-1] == "{'ok': 64} [('0',), ('1',)]", done.stderr


def test_two_workers_on_one_gpu_are_refused_at_the_start(tmp_path: Path) -> None:
    done = run_on_gpus(tmp_path, RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    assert done.returncode != 0
    assert "2 workers hold the same GPU 0" in done.stderr
