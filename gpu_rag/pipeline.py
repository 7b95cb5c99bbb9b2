"""The executor: the keys wanted, minus the keys committed, then compute, then commit.

That one mechanism is resume, retry of failed rows, incremental update and cache. It serves both pipelines (index and query)
and knows nothing of what their stages do.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from gpu_rag.engines.workers import RunConfig, WorkerPool
from gpu_rag.errors import InputError
from gpu_rag.ids import content_hash
from gpu_rag.schemas import FINAL_STATES, STRING, check_table, column
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
    """

    root: Path
    pool: WorkerPool
    run: RunConfig
    identities: Mapping[str, str]
    progress: Progress
    retry_listed: bool = False

    def rows(self, stage: RowStage, config: BaseModel, tables: Tables) -> tuple[dict[str, pa.Table], StageReport]:
        """Return the stage's output tables and its report; what is committed already is not computed again."""
        started = time.perf_counter()
        report = StageReport(stage.label)
        content = stage.content(tables, config)
        fingerprint = stage.fingerprint(config, self.identities)
        keys = work_keys(content, fingerprint)
        store = WorkStore(self.root, stage.label, fingerprint, stage.result_schema)
        wanted = store.wanted(keys, self.run.max_attempts if not self.retry_listed else 2**31)
        report.rows, report.distinct, report.computed = len(keys), len(set(keys)), len(wanted)
        report.cached = report.distinct - report.computed
        self.progress.stage_started(stage.label, len(wanted))
        if wanted:
            work = _distinct_work(content, keys, wanted)
            for results in self.pool.map_rows(stage, config, list(self._shards(work))):
                store.commit(results)
                _log.info("%s: %d rows committed", stage.label, results.num_rows)
                self.progress.advanced(stage.label, results.num_rows)
        results = _join(store, keys, content)
        outputs = stage.assemble(tables, results, config)
        outputs = {schema.name: check_table(outputs[schema.name], schema) for schema in stage.writes}
        _fill_report(report, results, stage)
        report.seconds = time.perf_counter() - started
        report.peak_rss_bytes = self.pool.take_peak()
        self.progress.stage_finished(report)
        return outputs, report

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

    def keep(self, stage: RowStage, outputs: Mapping[str, pa.Table]) -> Artifact:
        """Write a row stage's assembled tables as an artifact, keyed by their content, unless it is there."""
        hashes = [table_hash(outputs[schema.name], schema) for schema in stage.writes]
        key = content_hash("artifact", *hashes, *(self.identities[name] for name in stage.engines))
        artifacts = ArtifactStore(self.root)
        return artifacts.find(stage.label, key) or artifacts.write(stage.label, key, outputs, stage.writes)

    def _shards(self, work: pa.Table) -> Iterator[pa.Table]:
        """Cut the work into equal shards: at most `shard_rows` rows, and enough shards for all workers."""
        even = -(-work.num_rows // self.pool.num_workers())
        rows = max(min(_MIN_SHARD_ROWS, self.run.shard_rows), min(self.run.shard_rows, even))
        for start in range(0, work.num_rows, rows):
            yield work.slice(start, rows)


def _distinct_work(content: pa.Table, keys: list[str], wanted: list[str]) -> pa.Table:
    """Return one row per wanted key, in key order: `work_key` and the content columns."""
    first: dict[str, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    rows = pa.array([first[key] for key in wanted], pa.int64())
    work = content.select([name for name in content.schema.names if name != "row_id"]).take(rows)
    return work.add_column(0, column("work_key", STRING), pa.array(wanted, STRING))


def _join(store: WorkStore, keys: list[str], content: pa.Table) -> pa.Table:
    """Return `row_id, state, reason` and the payload, one row per row of content, in its order."""
    results = store.read(keys)
    position = {key: row for row, key in enumerate(results.column("work_key").to_pylist())}
    missing = [key for key in keys if key not in position]
    if missing:
        raise InputError(f"stage store {store.folder}: {len(missing)} rows were never committed, first {missing[0]}")
    joined = results.drop_columns(["work_key", "attempts"]).take(pa.array([position[key] for key in keys], pa.int64()))
    return joined.add_column(0, column("row_id", STRING), content.column("row_id").cast(STRING))


def _fill_report(report: StageReport, results: pa.Table, stage: RowStage) -> None:
    states = results.column("state").to_pylist()
    report.states = state_counts(states)
    report.metrics = {name: float(pc.sum(results.column(name)).as_py() or 0) for name in stage.metrics}
    unfinished = pc.invert(pc.is_in(results.column("state"), value_set=pa.array(FINAL_STATES)))
    rows = results.select(["row_id", "state", "reason"]).filter(unfinished)
    report.listed = rows.to_pylist()
