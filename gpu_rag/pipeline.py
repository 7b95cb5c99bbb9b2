"""The executor: the keys wanted, minus the keys committed, then compute, then commit.

That one mechanism is resume, retry of failed rows, incremental update and cache. It serves both pipelines (index and query)
and knows nothing of what their stages do.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from gpu_rag.engines.generation import PENDING
from gpu_rag.engines.workers import Job, JobQueue, Opened, RunConfig, WorkerPool
from gpu_rag.errors import AwaitingAnswersError, InputError
from gpu_rag.ids import content_hash
from gpu_rag.schemas import FINAL_STATES, STRING, USAGE_METRICS, check_table, column
from gpu_rag.stage import RowStage, Tables, TableStage, work_keys
from gpu_rag.store import Artifact, ArtifactStore, WorkStore, state_counts, table_hash

_MIN_SHARD_ROWS = 16
_LISTED_IN_REPORT = 20
_log = logging.getLogger(__name__)


class Progress(Protocol):
    """Where the executor says how far it is."""

    def stage_started(self, label: str, total: int) -> None:
        """Say that a stage begins with `total` pieces of work to compute."""

    def advanced(self, label: str, rows: int) -> None:
        """Say that so many pieces of work are committed."""

    def stage_finished(self, report: "StageReport") -> None:
        """Say that a stage is done."""


@dataclass
class StageReport:
    """What one stage did with every row.

    Attributes:
        label: Stage, such as `04_extract`.
        rows: Rows that came in; `states` adds up to it.
        distinct: Different pieces of work among them.
        cached: Of these, committed by an earlier run.
        computed: Of these, computed now, or again after an earlier failure.
        states: Rows per state.
        seconds: Wall time of the stage.
        peak_rss_bytes: Peak memory of any worker so far, 0 if none ran.
        metrics: Sums over the rows, such as `cut_tokens`.
        listed: The rows that did not reach a final state, with state and reason.
    """

    label: str
    rows: int = 0
    distinct: int = 0
    cached: int = 0
    computed: int = 0
    states: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    listed: list[dict[str, str]] = field(default_factory=list)

    def num_unfinished(self) -> int:
        """Return how many rows did not reach a final state."""
        return sum(count for state, count in self.states.items() if state not in FINAL_STATES)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values, the first rows of `listed` only."""
        return asdict(self) | {"listed": self.listed[:_LISTED_IN_REPORT]}


@dataclass
class Executor:
    """Runs stages over one folder's store.

    Attributes:
        root: INDEX or RUN folder; its writer lock is held by the caller.
        pool: Workers.
        run: Width and patience of the run.
        identities: Identity of each engine, for fingerprints.
        progress: Receives events.
        retry_listed: Try rows again that have used up their attempts.
        batch_folder: Where requests go that a batch service is to answer.
    """

    root: Path
    pool: WorkerPool
    run: RunConfig
    identities: Mapping[str, str]
    progress: Progress
    retry_listed: bool = False
    batch_folder: Path | None = None

    def rows(self, stage: RowStage, config: BaseModel, tables: Tables) -> tuple[dict[str, pa.Table], StageReport]:
        """Return the stage's output tables and its report; what is committed already is not computed again.

        Raises:
            AwaitingAnswersError: If a batch service has to answer first; what does not wait for it is committed.
        """
        run = self._stage_run(stage, config)
        started = time.perf_counter()
        plan = run.plan(tables)
        run.count(plan)
        self.progress.stage_started(stage.label, plan.num_wanted)
        if plan.num_wanted:
            for _, results in self.pool.work_off(JobQueue(self._jobs(run, plan))):
                self._commit(run, results)
        self._refuse_pending([run])
        outputs = run.outputs(plan, tables)
        run.report.seconds = time.perf_counter() - started
        self._finish(run)
        return outputs, run.report

    def chain(
        self,
        stages: Sequence[RowStage],
        configs: Sequence[BaseModel],
        tables: Tables,
        num_rows_at_once: Callable[[Opened, pa.Table], int],
    ) -> tuple[dict[str, pa.Table], list[StageReport]]:
        """Return the outputs and reports of 1:1 stages that follow one another, rows passing through all of them in groups.

        A group goes through all stages on one worker before the next group starts there, so that an engine finds what the
        stage before left in its cache. Rows whose content is equal for the first stage are in one group. The seconds of a
        stage are those its jobs took, over the number of workers.

        Args:
            stages: In order; every table they read and write has a row per `id`.
            configs: One per stage.
            tables: Inputs of the first stage, and whatever later ones read besides.
            num_rows_at_once: (what a worker says of its engines, the work of the first stage) -> rows of a group, at most.

        Raises:
            AwaitingAnswersError: As `rows`.
        """
        runs = [self._stage_run(stage, config) for stage, config in zip(stages, configs, strict=True)]
        first = runs[0].plan(tables)
        size = self.run.shard_rows
        if first.num_wanted:  # else Ray may not be needed at all
            facts = self.pool.opened(stages[0], configs[0])
            size = min(self._shard_rows(first.num_wanted), max(1, num_rows_at_once(facts, first.work)))
        groups = [_Group(part, number) for number, part in enumerate(_groups(first, tables, stages[0], size))]
        for run in runs:
            self.progress.stage_started(run.stage.label, first.num_wanted)
        jobs = JobQueue()
        for group in groups:
            if job := self._advance(group, runs):
                jobs.add(job)
        for job, results in self.pool.work_off(jobs) if jobs else ():
            group = groups[job.tag]
            run = runs[group.at]
            group.num_open -= results.num_rows
            group.pending |= self._commit(run, results)
            if not group.num_open:
                run.report.seconds += job.seconds / self.pool.num_workers()
            if not group.num_open and not group.pending:
                group.finish(run)
                if following := self._advance(group, runs):
                    jobs.add_next(following)
        self._refuse_pending(runs)
        outputs = {}
        for run in runs:
            for schema in run.stage.writes:
                parts = pa.concat_tables([group.tables[schema.name] for group in groups])
                outputs[schema.name] = check_table(schema.sort(parts), schema)
            self._finish(run)
        return outputs, [run.report for run in runs]

    def _jobs(self, run: "_StageRun", plan: "_Plan") -> Iterator[Job]:
        """Yield the plan's work in shards; last and alone, rows that were taken to kill workers in an earlier run."""
        suspects = pa.array([run.store.is_suspect(key) for key in plan.work.column("work_key").to_pylist()], pa.bool_())
        work = plan.work.filter(pc.invert(suspects))
        for shard in _cut(work, self._shard_rows(work.num_rows)):
            yield Job(run.stage, run.config, shard)
        for row in _cut(plan.work.filter(suspects), 1):
            yield Job(run.stage, run.config, row, deaths=1)

    def _advance(self, group: "_Group", runs: "Sequence[_StageRun]") -> Job | None:
        """Return the group's next job; stages without anything to compute are passed through."""
        while group.at < len(runs):
            run = runs[group.at]
            plan = group.plan = run.plan(group.tables)
            run.count(plan)
            if plan.num_wanted:
                group.num_open = plan.work.num_rows
                return Job(run.stage, run.config, plan.work, group.number)
            group.finish(run)
        return None

    def _stage_run(self, stage: RowStage, config: BaseModel) -> "_StageRun":
        return _StageRun(self.root, stage, config, self.identities, 2**31 if self.retry_listed else self.run.max_attempts)

    def _commit(self, run: "_StageRun", results: pa.Table) -> bool:
        """Commit what is decided; return whether rows wait for answers of a batch service."""
        waits = pc.equal(results.column("state"), PENDING)
        decided = results.filter(pc.invert(waits))
        if decided.num_rows:
            run.store.commit(decided)
            _log.info("%s: %d rows committed", run.stage.label, decided.num_rows)
            self.progress.advanced(run.stage.label, decided.num_rows)
        if decided.num_rows == results.num_rows:
            return False
        for calls in results.filter(waits).column("calls").to_pylist():
            run.pending += [call["text"] for call in calls if call["finish_reason"] == PENDING]
        return True

    def _refuse_pending(self, runs: "Sequence[_StageRun]") -> None:
        """End the run if a batch service has to answer, with its requests in a file."""
        waiting = [run for run in runs if run.pending]
        if not waiting:
            return
        from gpu_rag.engines.llm_batch_file import write_batch

        assert self.batch_folder is not None  # the engine that makes rows wait has a folder
        written = [(write_batch(self.batch_folder, run.stage.label, run.pending), len(set(run.pending))) for run in waiting]
        files = ", ".join(f"{path} ({count} requests)" for path, count in written)
        raise AwaitingAnswersError(
            f"requests wait for a batch service: {files}. Have them answered, put the answer file (.jsonl) into "
            f"{self.batch_folder}/answers, and run the same command again"
        )

    def _finish(self, run: "_StageRun") -> None:
        run.report.peak_rss_bytes = self.pool.take_peak()
        self.progress.stage_finished(run.report)

    def _shard_rows(self, num_rows: int) -> int:
        """Return how many rows a shard has: at most `shard_rows`, and few enough to give all workers some."""
        even = max(1, -(-num_rows // self.pool.num_workers()))
        return max(min(_MIN_SHARD_ROWS, self.run.shard_rows), min(self.run.shard_rows, even))

    def tables(
        self, stage: TableStage, config: BaseModel, tables: Tables, input_hash: str
    ) -> tuple[dict[str, pa.Table], Artifact, StageReport]:
        """Return the output tables, their artifact and the report of a stage that needs whole tables."""
        started = time.perf_counter()
        report = StageReport(stage.label, distinct=1)
        key = content_hash("artifact", stage.fingerprint(config, self.identities), input_hash)
        artifacts = ArtifactStore(self.root)
        artifact = artifacts.find(stage.label, key)
        self.progress.stage_started(stage.label, 0 if artifact else 1)
        if artifact:
            report.cached = 1
            outputs = {schema.name: artifact.read(schema) for schema in stage.writes}
        else:
            report.computed = 1
            outputs = self.pool.run_tables(stage, config, {name: tables[name] for name in stage.reads})
            artifact = artifacts.write(stage.label, key, outputs, stage.writes)
        report.rows = sum(table.num_rows for table in outputs.values())
        report.states = {"ok": report.rows}
        report.seconds = time.perf_counter() - started
        report.peak_rss_bytes = self.pool.take_peak()
        self.progress.stage_finished(report)
        return outputs, artifact, report

    def keep(self, stage: RowStage, config: BaseModel, outputs: Mapping[str, pa.Table]) -> Artifact:
        """Write a row stage's assembled tables as an artifact, keyed by their content, unless it is there."""
        hashes = [table_hash(outputs[schema.name], schema) for schema in stage.writes]
        key = content_hash("artifact", *hashes, *(self.identities[name] for name in stage.engines_for(config)))
        artifacts = ArtifactStore(self.root)
        return artifacts.find(stage.label, key) or artifacts.write(stage.label, key, outputs, stage.writes)


@dataclass(frozen=True)
class _Plan:
    """What a stage has to do for its input tables: `keys` per row of `content`, and the `work` that is not committed."""

    content: pa.Table
    keys: list[str]
    work: pa.Table

    @property
    def num_rows(self) -> int:
        return len(self.keys)

    @property
    def num_wanted(self) -> int:
        return int(self.work.num_rows)


class _StageRun:
    """One stage of a run: its store, and what was reported of it over all of its plans."""

    def __init__(
        self, root: Path, stage: RowStage, config: BaseModel, identities: Mapping[str, str], max_attempts: int
    ) -> None:
        self.stage, self.config = stage, config
        self.fingerprint = stage.fingerprint(config, identities)
        self.store = WorkStore(root, stage.label, self.fingerprint, stage.result_schema)
        self.report = StageReport(stage.label)
        self.pending: list[str] = []
        self._max_attempts = max_attempts

    def plan(self, tables: Tables) -> _Plan:
        """Return what there is to do: equal content once, longest first, so that no long row is left for the end."""
        content = self.stage.content(tables, self.config)
        keys = work_keys(content, self.fingerprint)
        wanted = self.store.wanted(keys, self._max_attempts)
        return _Plan(content, keys, _distinct_work(content, keys, wanted))

    def count(self, plan: _Plan) -> None:
        """Add a plan's rows to the report."""
        distinct = len(set(plan.keys))
        self.report.rows += plan.num_rows
        self.report.distinct += distinct
        self.report.computed += plan.num_wanted
        self.report.cached += distinct - plan.num_wanted

    def outputs(self, plan: _Plan, tables: Tables) -> dict[str, pa.Table]:
        """Return the output tables for a plan, all of whose work is committed."""
        results = _join(self.store, plan.keys, plan.content)
        metrics = self.stage.metrics_for(self.config)
        _add_to_report(self.report, results, metrics)
        spent = [name for name in metrics if name in USAGE_METRICS]
        if spent:  # what failed tries cost was spent too
            for name, value in self.store.sums_of_earlier_tries(set(plan.keys), spent).items():
                self.report.metrics[name] += value
        outputs = self.stage.assemble(tables, results, self.config)
        return {schema.name: check_table(outputs[schema.name], schema) for schema in self.stage.writes}


@dataclass
class _Group:
    """Rows that go through a chain of stages together; `at` is the stage they have come to."""

    tables: dict[str, pa.Table]
    number: int
    at: int = 0
    plan: _Plan | None = None
    num_open: int = 0
    pending: bool = False

    def finish(self, run: _StageRun) -> None:
        """Add the outputs of the stage that all rows of the group have passed."""
        assert self.plan is not None
        self.tables |= run.outputs(self.plan, self.tables)
        self.at += 1


def _groups(plan: _Plan, tables: Tables, stage: RowStage, size: int) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of each group: rows whose work is equal together, `size` pieces of work to a group.

    What the first stage has to compute comes first, longest first. Rows that are no work of it, having stopped before, are
    with the first group.
    """
    wanted = plan.work.column("work_key").to_pylist()
    position = {key: row for row, key in enumerate([*wanted, *sorted(set(plan.keys).difference(wanted))])}
    group_of: dict[str, int] = {}
    for row_id, key in zip(plan.content.column("row_id").to_pylist(), plan.keys, strict=True):
        group_of[row_id] = position[key] // size
    for number in range(max(group_of.values(), default=0) + 1):
        part = {}
        for name, table in tables.items():
            mine = [group_of.get(row_id, 0) == number for row_id in table.column("id").to_pylist()]
            part[name] = table.filter(pa.array(mine, pa.bool_()))
        yield part


def _cut(work: pa.Table, rows: int) -> Iterator[pa.Table]:
    """Yield the work in shards of so many rows."""
    for start in range(0, work.num_rows, rows):
        yield work.slice(start, rows)


def _distinct_work(content: pa.Table, keys: list[str], wanted: list[str]) -> pa.Table:
    """Return one row per wanted key, longest first: `work_key` and the content columns."""
    first: dict[str, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    rows = pa.array([first[key] for key in wanted], pa.int64())
    work = content.select([name for name in content.schema.names if name != "row_id"]).take(rows)
    work = work.add_column(0, column("work_key", STRING), pa.array(wanted, STRING))
    return work.take(pa.array(_longest_first(work), pa.int64()))


def _longest_first(work: pa.Table) -> list[int]:
    """Return the rows of work by falling size of their text columns, equal ones in key order."""
    sizes = np.zeros(work.num_rows, dtype=np.int64)
    for field_ in work.schema:
        if pa.types.is_string(field_.type) or pa.types.is_large_string(field_.type):
            sizes += pc.fill_null(pc.binary_length(work.column(field_.name)), 0).to_numpy()
        elif pa.types.is_list(field_.type):
            sizes += pc.fill_null(pc.list_value_length(work.column(field_.name)), 0).to_numpy()
    return [int(row) for row in np.argsort(-sizes, kind="stable")]


def _join(store: WorkStore, keys: list[str], content: pa.Table) -> pa.Table:
    """Return `row_id, state, reason` and the payload, one row per row of content, in its order."""
    results = store.read(keys)
    position = {key: row for row, key in enumerate(results.column("work_key").to_pylist())}
    missing = [key for key in keys if key not in position]
    if missing:
        raise InputError(f"stage store {store.folder}: {len(missing)} rows were never committed, first {missing[0]}")
    joined = results.drop_columns(["work_key", "attempts"]).take(pa.array([position[key] for key in keys], pa.int64()))
    return joined.add_column(0, column("row_id", STRING), content.column("row_id").cast(STRING))


def _add_to_report(report: StageReport, results: pa.Table, metrics: Sequence[str]) -> None:
    for state, count in state_counts(results.column("state").to_pylist()).items():
        report.states[state] = report.states.get(state, 0) + count
    report.states = dict(sorted(report.states.items()))
    for name in metrics:
        report.metrics[name] = report.metrics.get(name, 0.0) + float(pc.sum(results.column(name)).as_py() or 0)
    unfinished = pc.invert(pc.is_in(results.column("state"), value_set=pa.array(FINAL_STATES)))
    rows = results.select(["row_id", "state", "reason"]).filter(unfinished)
    report.listed += rows.to_pylist()
