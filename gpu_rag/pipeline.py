"""The executor: the keys wanted, minus the keys committed, then compute, then commit.

That one mechanism is resume, retry of failed rows, incremental update and cache. It serves both pipelines (index and query)
and knows nothing of what their stages do.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from gpu_rag.engines.generation import PENDING
from gpu_rag.engines.workers import Job, JobQueue, Opened, RunConfig, WorkerPool
from gpu_rag.errors import AwaitingAnswersError
from gpu_rag.ids import content_hash
from gpu_rag.schemas import check_table
from gpu_rag.stage import RowStage, Tables, TableStage
from gpu_rag.stage_report import Progress, StageReport
from gpu_rag.stage_run import Plan, StageRun, row_bytes
from gpu_rag.store import Artifact, ArtifactStore, table_hash

_MIN_SHARD_ROWS = 16
_log = logging.getLogger(__name__)


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
        work_keys: Stage label -> (fingerprint, keys) of all work that the tables of row stages were made from so far.
    """

    root: Path
    pool: WorkerPool
    run: RunConfig
    identities: Mapping[str, str]
    progress: Progress
    retry_listed: bool = False
    batch_folder: Path | None = None
    work_keys: dict[str, tuple[str, set[str]]] = field(default_factory=dict)

    def rows(self, stage: RowStage, config: BaseModel, tables: Tables) -> tuple[dict[str, pa.Table], StageReport]:
        """Return the stage's output tables and its report; what is committed already is not computed again.

        Raises:
            AwaitingAnswersError: If a batch service has to answer first; what does not wait for it is committed.
        """
        run = self._stage_run(stage, config)
        started = time.perf_counter()
        plan = run.plan(tables)
        run.count(plan)
        self.work_keys[stage.label] = (run.fingerprint, set(plan.keys))
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
        self.work_keys |= {run.stage.label: (run.fingerprint, set()) for run in runs}
        first = runs[0].plan(tables)
        size = self.run.shard_rows
        if first.num_wanted:  # else Ray may not be needed at all
            facts = self.pool.opened(stages[0], configs[0])
            size = min(self._shard_rows(first.num_wanted), max(1, num_rows_at_once(facts, first.work)))
        read = {name: table for name, table in tables.items() if any(name in stage.reads for stage in stages)}
        groups = [_Group(part, number) for number, part in enumerate(_groups(first, read, size))]
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

    def _jobs(self, run: StageRun, plan: Plan) -> Iterator[Job]:
        """Yield the plan's work in shards; last and alone, rows that were taken to kill workers in an earlier run."""
        suspects = pa.array([run.store.is_suspect(key) for key in plan.work.column("work_key").to_pylist()], pa.bool_())
        work = plan.work.filter(pc.invert(suspects))
        for shard in _cut(work, self._shard_rows(work.num_rows), self.run.shard_bytes):
            yield Job(run.stage, run.config, shard)
        for row in _cut(plan.work.filter(suspects), 1, self.run.shard_bytes):
            yield Job(run.stage, run.config, row, deaths=1)

    def _advance(self, group: "_Group", runs: Sequence[StageRun]) -> Job | None:
        """Return the group's next job; stages without anything to compute are passed through."""
        while group.at < len(runs):
            run = runs[group.at]
            plan = group.plan = run.plan(group.tables)
            run.count(plan)
            self.work_keys[run.stage.label][1].update(plan.keys)
            if plan.num_wanted:
                group.num_open = plan.work.num_rows
                return Job(run.stage, run.config, plan.work, group.number)
            group.finish(run)
        return None

    def _stage_run(self, stage: RowStage, config: BaseModel) -> StageRun:
        return StageRun(self.root, stage, config, self.identities, 2**31 if self.retry_listed else self.run.max_attempts)

    def _commit(self, run: StageRun, results: pa.Table) -> bool:
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

    def _refuse_pending(self, runs: Sequence[StageRun]) -> None:
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

    def _finish(self, run: StageRun) -> None:
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
            read: Tables = {name: tables[name] for name in stage.reads}
            outputs = self.pool.run_tables(stage, config, stage.narrow(read) if stage.narrow else read)
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


@dataclass
class _Group:
    """Rows that go through a chain of stages together; `at` is the stage they have come to."""

    tables: dict[str, pa.Table]
    number: int
    at: int = 0
    plan: Plan | None = None
    num_open: int = 0
    pending: bool = False

    def finish(self, run: StageRun) -> None:
        """Add the outputs of the stage that all rows of the group have passed."""
        assert self.plan is not None
        self.tables |= run.outputs(self.plan, self.tables)
        self.at += 1


def _groups(plan: Plan, tables: Tables, size: int) -> list[dict[str, pa.Table]]:
    """Return the tables of each group: rows whose work is equal together, `size` pieces of work to a group.

    What the first stage has to compute comes first, longest first. Rows that are no work of it, having stopped before, are
    with the first group.
    """
    wanted = plan.work.column("work_key").to_pylist()
    position = {key: row for row, key in enumerate([*wanted, *sorted(set(plan.keys).difference(wanted))])}
    row_ids = plan.content.column("row_id").to_pylist()
    group_of = {row_id: position[key] // size for row_id, key in zip(row_ids, plan.keys, strict=True)}
    parts: list[dict[str, pa.Table]] = [{} for _ in range(max(group_of.values(), default=0) + 1)]
    for name, table in tables.items():
        numbers = np.array([group_of.get(row_id, 0) for row_id in table.column("id").to_pylist()], dtype=np.int64)
        sorted_rows = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[sorted_rows], np.arange(len(parts) + 1))
        for number, part in enumerate(parts):
            part[name] = table.take(sorted_rows[bounds[number] : bounds[number + 1]])
    return parts


def _cut(work: pa.Table, rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Yield the work in shards of at most so many rows and bytes; a row that is larger than that is alone."""
    ends = np.cumsum(row_bytes(work))
    start = 0
    while start < work.num_rows:
        before = ends[start - 1] if start else 0
        fits = int(np.searchsorted(ends, before + max_bytes, side="right")) - start
        length = min(rows, max(1, fits))
        yield work.slice(start, length)
        start += length
