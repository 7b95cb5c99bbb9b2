"""Stages on Ray actors: one pool a run, one path for one machine and for a cluster.

A worker opens each engine (encoder, repository) at its first use and keeps it for all later stages of the run. Workers start
only when there is work, and only as many as there are shards; the driver commits, so one process writes the store.

A stage function that raises on a shard does not stop the run: the shard is halved until the row that raises is alone, and that
row gets the state `error`. A worker that dies is replaced, and its shard is tried once more whole before it is halved.
Wrong input (`InputError`), a missing library and an engine that does not start are not a row's fault and end the run.
"""

import logging
import os
import resource
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt

from gpu_rag.engines.require import require
from gpu_rag.errors import EngineError, EngineStartError, GpuRagError, InputError, MissingDependencyError, StoreError
from gpu_rag.schemas import conform
from gpu_rag.stage import RowStage, Tables, TableStage

_ROW_REASON_CHARS = 300
_MAX_DEATHS_IN_A_ROW = 32  # halving a shard of 1,024 down to the one row that kills takes 12
_NOT_A_ROWS_FAULT = (InputError, MissingDependencyError, StoreError, EngineStartError)
_log = logging.getLogger(__name__)


class RunConfig(BaseModel):
    """Where and how wide a run is; nothing here changes what a stage produces."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_workers: PositiveInt | None = None  # None: as many as the cluster's CPUs (or GPUs, if a worker takes one) allow
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: NonNegativeFloat = 0.0
    shard_rows: PositiveInt = 1024
    max_attempts: PositiveInt = 3
    object_store_bytes: PositiveInt = 1 << 29


Openers = Mapping[str, Callable[[], Any]]  # engine name -> a picklable function that opens it in the worker


class StageWorker:
    """The Ray actor: runs stages over shards and keeps the engines it has opened."""

    def __init__(self, openers: Openers) -> None:
        """Remember the openers; an engine is opened at its first use."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._openers = openers
        self._engines: dict[str, Any] = {}

    def run_rows(self, stage: RowStage, config: BaseModel, work: pa.Table) -> tuple[pa.Table, int]:
        """Return the stage's results for one shard and this process's peak memory in bytes."""
        results = stage.run(work, config=config, **self._open(stage.engines))
        expected, got = work.column("work_key").to_pylist(), results.column("work_key").to_pylist()
        if sorted(expected) != sorted(got):
            raise EngineError(f"stage {stage.label} returned {len(got)} rows that do not match its {len(expected)} work keys")
        return conform(results, stage.result_schema), _peak_rss_bytes()

    def run_tables(self, stage: TableStage, config: BaseModel, *tables: Any) -> tuple[dict[str, pa.Table], int]:
        """Return the stage's output tables and this process's peak memory in bytes."""
        inputs = dict(zip(stage.reads, tables, strict=True))
        return stage.run(inputs, config=config, **self._open(stage.engines)), _peak_rss_bytes()

    def _open(self, names: Sequence[str]) -> dict[str, Any]:
        for name in names:
            if name not in self._engines:
                try:
                    self._engines[name] = self._openers[name]()
                except GpuRagError:
                    raise
                except Exception as error:  # whatever a library raises here, it is no row's fault
                    raise EngineStartError(f"engine {name} does not start: {type(error).__name__}: {error}") from error
        return {name: self._engines[name] for name in names}


@dataclass
class _Shard:
    work: pa.Table
    deaths: int = 0


class WorkerPool:
    """The workers of one run; a context manager."""

    def __init__(self, config: RunConfig, openers: Openers, address: str | None = None) -> None:
        """Connect to nothing yet: Ray starts with the first shard, so a run with nothing to compute never pays for it."""
        self._config = config
        self._openers = openers
        self._address = address
        self._ray: Any = None
        self._owns_ray = False
        self._workers: list[Any] = []
        self.peak_rss_bytes = 0  # of any worker, since the last `take_peak`

    def __enter__(self) -> "WorkerPool":
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, and Ray if this pool started it."""
        if self._ray is not None:
            for worker in self._workers:
                self._ray.kill(worker)
            if self._owns_ray:
                self._ray.shutdown()

    def num_workers(self) -> int:
        """Return how many workers the pool may have; starts Ray."""
        self._start_ray()
        resources = self._ray.cluster_resources()
        fits = [
            int(resources.get(name, 0) / each)
            for name, each in (("CPU", self._config.cpus_per_worker), ("GPU", self._config.gpus_per_worker))
            if each
        ]
        if min(fits) < 1:  # Ray would wait for such a worker for ever
            raise EngineError(
                f"no worker fits: run.cpus_per_worker={self._config.cpus_per_worker}, "
                f"run.gpus_per_worker={self._config.gpus_per_worker}, but the cluster has "
                f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
            )
        return min(fits) if self._config.num_workers is None else min(self._config.num_workers, *fits)

    def take_peak(self) -> int:
        """Return the peak memory in bytes of any worker since the last call."""
        peak, self.peak_rss_bytes = self.peak_rss_bytes, 0
        return peak

    def map_rows(self, stage: RowStage, config: BaseModel, shards: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Yield results as shards finish, in any order; a shard that had to be halved comes in parts.

        Raises:
            InputError, MissingDependencyError, StoreError: From the stage: not the fault of a row.
            EngineStartError: If an engine does not start, or worker after worker dies, with the last cause.
        """
        queue = deque(_Shard(work) for work in shards)
        idle: deque[Any] = deque(self._grow(len(queue)))
        running: dict[Any, tuple[Any, _Shard]] = {}
        deaths_in_a_row = 0
        stage_ref, config_ref = self._ray.put(stage), self._ray.put(config)
        while queue or running:
            while queue and idle:
                worker, shard = idle.popleft(), queue.popleft()
                _log.info("%s: %d rows sent", stage.label, shard.work.num_rows)
                running[worker.run_rows.remote(stage_ref, config_ref, shard.work)] = (worker, shard)
            done, _ = self._ray.wait(list(running), num_returns=1)
            worker, shard = running.pop(done[0])
            try:
                results, peak = self._ray.get(done[0])
            except self._ray.exceptions.RayActorError as error:
                idle.append(self._replace(worker))
                shard.deaths += 1
                deaths_in_a_row += 1
                if deaths_in_a_row == _MAX_DEATHS_IN_A_ROW:
                    raise EngineStartError(
                        f"stage {stage.label}: {deaths_in_a_row} workers died in a row, the last with: {_first_line(error)}"
                    ) from error
                _log.warning("stage %s: a worker died on %d rows: %s", stage.label, shard.work.num_rows, _first_line(error))
                if shard.deaths == 1:
                    queue.appendleft(shard)
                else:
                    yield from _halve(shard, queue, stage, "worker died: " + _first_line(error))
                continue
            except self._ray.exceptions.RayTaskError as error:
                idle.append(worker)
                cause = error.cause
                if isinstance(cause, _NOT_A_ROWS_FAULT):
                    raise cause from None
                _log.warning("stage %s failed on %d rows: %s", stage.label, shard.work.num_rows, _first_line(cause))
                yield from _halve(shard, queue, stage, f"{type(cause).__name__}: {_first_line(cause)}")
                continue
            idle.append(worker)
            deaths_in_a_row = 0
            self.peak_rss_bytes = max(self.peak_rss_bytes, peak)
            yield results

    def run_tables(self, stage: TableStage, config: BaseModel, tables: Tables) -> dict[str, pa.Table]:
        """Return the output tables of a stage that needs whole tables; it runs on one worker.

        Raises:
            InputError, MissingDependencyError, StoreError: As the stage raised them.
            EngineError: If the stage failed otherwise, or its worker died twice.
        """
        (worker,) = self._grow(1)[:1]
        refs = [self._ray.put(tables[name]) for name in stage.reads]
        for attempt in (1, 2):
            try:
                outputs, peak = self._ray.get(worker.run_tables.remote(stage, config, *refs))
            except self._ray.exceptions.RayActorError as error:
                worker = self._replace(worker)
                if attempt == 2:
                    raise EngineError(f"stage {stage.label}: its worker died twice: {_first_line(error)}") from error
                _log.warning("stage %s: its worker died: %s", stage.label, _first_line(error))
                continue
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, _NOT_A_ROWS_FAULT):
                    raise error.cause from None
                raise EngineError(f"stage {stage.label} failed: {error}") from error
            break
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak)
        return dict(outputs)

    def _grow(self, wanted: int) -> list[Any]:
        limit = max(1, min(self.num_workers(), wanted))
        while len(self._workers) < limit:
            self._workers.append(self._new_worker())
        return self._workers[:limit]

    def _new_worker(self) -> Any:
        actor = self._ray.remote(num_cpus=self._config.cpus_per_worker, num_gpus=self._config.gpus_per_worker)(StageWorker)
        return actor.remote(self._openers)

    def _replace(self, worker: Any) -> Any:
        self._workers.remove(worker)
        self._workers.append(self._new_worker())
        return self._workers[-1]

    def _start_ray(self) -> None:
        if self._ray is not None:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray = require("ray", extra="cpu")
        if self._ray.is_initialized():
            return
        self._owns_ray = True
        address = self._address or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "configure_logging": False}
        if address == "local":
            options |= {"include_dashboard": False, "object_store_memory": self._config.object_store_bytes}
        ray_log = logging.getLogger("ray")
        level = ray_log.level
        ray_log.setLevel(logging.ERROR)  # its start-up notices are not about this run
        try:
            self._ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            self._owns_ray = False
            raise EngineError(f"Ray does not start at {address}: {error}") from error
        finally:
            ray_log.setLevel(level)


def _halve(shard: _Shard, queue: deque[_Shard], stage: RowStage, cause: str) -> Iterator[pa.Table]:
    """Queue the two halves of a failing shard, or yield the error row of a shard of one."""
    rows = shard.work.num_rows
    if rows > 1:
        queue.appendleft(_Shard(shard.work.slice(rows // 2), shard.deaths))
        queue.appendleft(_Shard(shard.work.slice(0, rows // 2), shard.deaths))
        return
    yield failed_rows(stage.result_schema, shard.work.column("work_key").to_pylist(), "error", cause)


def failed_rows(schema: pa.Schema, keys: Sequence[str], state: str, reason: str) -> pa.Table:
    """Return result rows without payload: null, or for a non-nullable column its type's empty value."""
    columns: dict[str, list[Any]] = {
        "work_key": list(keys),
        "state": [state] * len(keys),
        "reason": [reason[:_ROW_REASON_CHARS]] * len(keys),
    }
    payload: Mapping[str, list[Any]] = {
        field.name: [None if field.nullable else _empty_value(field.type)] * len(keys)
        for field in schema
        if field.name not in columns
    }
    return pa.table({**columns, **payload}, schema=schema)


def _empty_value(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    return False if pa.types.is_boolean(kind) else 0


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["Openers", "RunConfig", "StageWorker", "WorkerPool", "failed_rows"]
