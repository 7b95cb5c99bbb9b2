"""One row stage within a run: what there is to compute, and what comes of it once that is committed."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from gpu_rag.errors import InputError
from gpu_rag.schemas import FINAL_STATES, STRING, USAGE_METRICS, check_table, column
from gpu_rag.stage import RowStage, Tables, with_passed, work_keys
from gpu_rag.stage_report import StageReport
from gpu_rag.store import WorkStore, state_counts


@dataclass(frozen=True)
class Plan:
    """What a stage has to do for its input tables: `keys` per row of `content`, and the `work` that is not committed."""

    content: pa.Table
    keys: list[str]
    work: pa.Table

    @property
    def num_rows(self) -> int:
        """Rows that came in."""
        return len(self.keys)

    @property
    def num_wanted(self) -> int:
        """Different pieces of work to compute."""
        return int(self.work.num_rows)


class StageRun:
    """One stage of a run: its store, and what was reported of it over all of its plans."""

    def __init__(
        self, root: Path, stage: RowStage, config: BaseModel, identities: Mapping[str, str], max_attempts: int
    ) -> None:
        """Open the stage's work cache in the folder `root`; rows tried `max_attempts` times are not tried again."""
        self.stage, self.config = stage, config
        self.fingerprint = stage.fingerprint(config, identities)
        self.store = WorkStore(root, stage.label, self.fingerprint, stage.result_schema)
        self.report = StageReport(stage.label)
        self.pending: list[str] = []
        self._max_attempts = max_attempts

    def plan(self, tables: Tables) -> Plan:
        """Return what there is to do: equal content once, what failed before first, then longest first.

        Failed rows come first so that a night that is cut short has at least tried them again, and long ones before short
        ones so that none is left for the end.
        """
        content = self.stage.content(tables, self.config)
        keys = work_keys(content, self.fingerprint, self.stage.unkeyed)
        wanted = self.store.wanted(keys, self._max_attempts)
        read = content.drop_columns(list(self.stage.unkeyed))
        return Plan(content, keys, _distinct_work(read, keys, wanted, self.store.status))

    def count(self, plan: Plan) -> None:
        """Add a plan's rows to the report."""
        distinct = len(set(plan.keys))
        self.report.rows += plan.num_rows
        self.report.distinct += distinct
        self.report.computed += plan.num_wanted
        self.report.cached += distinct - plan.num_wanted

    def outputs(self, plan: Plan, tables: Tables) -> dict[str, pa.Table]:
        """Return the output tables for a plan, all of whose work is committed."""
        results = _join(self.store, plan.keys, plan.content)
        metrics = self.stage.metrics_for(self.config)
        _add_to_report(self.report, results, metrics)
        spent = [name for name in metrics if name in USAGE_METRICS]
        if spent:  # what failed tries cost was spent too
            for name, value in self.store.sums_of_earlier_tries(set(plan.keys), spent).items():
                self.report.metrics[name] += value
        outputs = self.stage.assemble(tables, with_passed(results, plan.content, self.stage), self.config)
        return {schema.name: check_table(outputs[schema.name], schema) for schema in self.stage.writes}


def _distinct_work(content: pa.Table, keys: list[str], wanted: list[str], tried: Container[str]) -> pa.Table:
    """Return one row per wanted key, those tried before first, then longest first: `work_key` and the content columns."""
    first: dict[str, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    rows = pa.array([first[key] for key in wanted], pa.int64())
    work = content.select([name for name in content.schema.names if name != "row_id"]).take(rows)
    work = work.add_column(0, column("work_key", STRING), pa.array(wanted, STRING))
    order = sorted(_longest_first(work), key=lambda row: wanted[row] not in tried)
    return work.take(pa.array(order, pa.int64()))


def row_bytes(work: pa.Table) -> npt.NDArray[np.int64]:
    """Return the size of each row of work, int64 (rows,): bytes of its texts, items of its lists."""
    sizes = np.zeros(work.num_rows, dtype=np.int64)
    for field_ in work.schema:
        if pa.types.is_string(field_.type) or pa.types.is_large_string(field_.type):
            sizes += pc.fill_null(pc.binary_length(work.column(field_.name)), 0).to_numpy()
        elif pa.types.is_list(field_.type):
            sizes += pc.fill_null(pc.list_value_length(work.column(field_.name)), 0).to_numpy()
    return sizes


def _longest_first(work: pa.Table) -> list[int]:
    """Return the rows of work by falling size, equal ones in key order."""
    return [int(row) for row in np.argsort(-row_bytes(work), kind="stable")]


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
