"""The loop that keeps workers busy and survives what they do.

A stage function that raises on a shard does not stop the run: the shard is split, until the row that raises is alone, and
that row gets the state `error`. A worker that dies, that says its engine is dead, or that gives no sign of life is replaced,
and its shard is split likewise. Each split makes up to 16 parts: a row that kills an engine costs three engines in a shard
of 256, where halving would cost nine, and starting one takes minutes.

Wrong input (`InputError`), a missing library and an engine that does not start are not a row's fault and end the run.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from gpu_rag.engines.worker import CONTROL_GROUP, Opened
from gpu_rag.errors import (
    EngineDeadError,
    EngineError,
    EngineStartError,
    GpuRagError,
    InputError,
    MissingDependencyError,
    StoreError,
)
from gpu_rag.stage import RowStage, TableStage
from gpu_rag.store.work import LOST

NOT_A_ROWS_FAULT = (InputError, MissingDependencyError, StoreError, EngineStartError)
_SPLIT = 16
_MAX_DEATHS_IN_A_ROW = 16  # narrowing a shard of 1,024 rows down to the one that kills takes 4
_MAX_START_DEATHS = 3  # workers that die in a row while they open their engines
_MAX_POLL_SECONDS = 1.0
_ROW_REASON_CHARS = 300
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """Rows of one stage that are computed together; `tag` is the caller's own.

    A part of a job that was split is a job whose `whole` is that job. `seconds` is what workers spent on it and its parts.
    """

    stage: RowStage
    config: BaseModel
    work: pa.Table
    tag: Any = None
    whole: "Job | None" = None
    deaths: int = 0
    seconds: float = 0.0


class JobQueue:
    """Jobs that wait, in order."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        """Hold the jobs."""
        self._jobs = deque(jobs)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Put a job at the end."""
        self._jobs.append(job)

    def add_next(self, *jobs: Job) -> None:
        """Put jobs at the front, in this order: the worker that is free next takes the first."""
        self._jobs.extendleft(reversed(jobs))

    def take(self) -> Job:
        """Return the first job."""
        return self._jobs.popleft()


@dataclass(eq=False)
class Worker:
    """One actor, as the driver sees it.

    Attributes:
        actor: The Ray actor.
        engines: Engines it has open.
        rows: Rows it has computed.
        opened: What it said when it opened the last engines.
    """

    actor: Any
    engines: set[str] = field(default_factory=set)
    rows: int = 0
    opened: Opened = field(default_factory=Opened)
    _beats: int = -1
    _pulse: Any = None
    _alive_at: float = 0.0

    def started(self) -> None:
        """Note that it was given something to do."""
        self._alive_at = time.monotonic()

    def silent_for(self, ray: Any) -> float:
        """Return how many seconds ago it gave the last sign of life, asking it without waiting."""
        if self._pulse is None:
            self._pulse = self.actor.pulse.options(concurrency_group=CONTROL_GROUP).remote()
        done, _ = ray.wait([self._pulse], timeout=0)
        if done:
            self._pulse = None
            try:
                beats = ray.get(done[0])
            except ray.exceptions.RayError:  # its death is seen where its result is waited for
                beats = self._beats
            if beats != self._beats:
                self._beats, self._alive_at = beats, time.monotonic()
        return time.monotonic() - self._alive_at


@dataclass(eq=False)
class _Running:
    worker: Worker
    job: Job
    opening: bool
    since: float = field(default_factory=time.monotonic)


class Supervisor:
    """Workers and what they work on."""

    def __init__(
        self,
        ray: Any,
        new_actor: Callable[[], Any],
        *,
        limit: int,
        start_seconds: float,
        silent_seconds: float,
        recycle_rows: int | None,
        whole_gpus: bool,
    ) -> None:
        """Start no worker yet.

        Args:
            ray: The module, connected.
            new_actor: Starts a `StageWorker`.
            limit: Workers at most.
            start_seconds: Deadline for a worker to be placed and to open its engines.
            silent_seconds: Without a sign of life for so long, a worker is replaced.
            recycle_rows: Rows after which a worker is replaced; None: never.
            whole_gpus: Whether each worker has a GPU of its own, which is then checked.
        """
        self._ray = ray
        self._new_actor = new_actor
        self._limit = limit
        self._start_seconds, self._silent_seconds = start_seconds, silent_seconds
        self._recycle_rows = recycle_rows
        self._whole_gpus = whole_gpus
        self._workers: list[Worker] = []
        self._deaths_in_a_row = self._start_deaths = 0
        self._peak_rss_bytes = 0
        self.model_loads = 0

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._ray.kill(worker.actor)

    def take_peak(self) -> int:
        """Return the peak memory in bytes of any worker since the last call."""
        peak, self._peak_rss_bytes = self._peak_rss_bytes, 0
        return peak

    def note_peak(self, rss_bytes: int) -> None:
        """Note the peak memory of a worker in bytes."""
        self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)

    def opened(self, stage: RowStage | TableStage, config: BaseModel) -> Opened:
        """Return what a worker with the stage's engines says of them."""
        return self.ready_worker(stage, config).opened

    def ready_worker(self, stage: RowStage | TableStage, config: BaseModel) -> Worker:
        """Return a worker that has the stage's engines open; all workers must be idle."""
        worker = self._grown(1)[0]
        if not self._ready(worker, stage, config):
            ref = worker.actor.open.remote(stage, config)
            try:
                self._note_opened(worker, stage, config, self._ray.get(ref, timeout=self._start_seconds))
            except self._ray.exceptions.GetTimeoutError as error:
                raise self._late(stage) from error
            except self._ray.exceptions.RayTaskError as error:
                raise _own(error) from None
            except self._ray.exceptions.RayActorError as error:
                raise EngineStartError(f"stage {stage.label}: a worker died while it started: {first_line(error)}") from error
        return worker

    def replace(self, worker: Worker) -> Worker:
        """End a worker and return a new one in its place."""
        self._ray.kill(worker.actor)
        self._workers.remove(worker)
        self._workers.append(Worker(self._new_actor()))
        return self._workers[-1]

    def work_off(self, jobs: JobQueue) -> Iterator[tuple[Job, pa.Table]]:
        """Yield results as they come; see `WorkerPool.work_off`."""
        idle = deque(self._grown(len(jobs)))
        running: dict[Any, _Running] = {}
        poll = min(_MAX_POLL_SECONDS, self._silent_seconds / 4)
        refs: dict[int, tuple[Any, Any]] = {}
        looked_at = time.monotonic()
        while jobs or running:
            while len(self._workers) < min(self._limit, len(jobs) + len(running)):
                self._workers.append(Worker(self._new_actor()))
                idle.append(self._workers[-1])
            while jobs and idle:
                self._send(idle.popleft(), jobs.take(), running, refs)
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=poll)
            if time.monotonic() - looked_at >= poll:
                looked_at = time.monotonic()
                for ref, task in list(running.items()):
                    overdue = "" if ref in done else self._overdue(task)
                    if overdue:
                        del running[ref]
                        yield from self._died(task, overdue, jobs, idle)
            if not done:
                continue
            task = running.pop(done[0])
            try:
                result = self._ray.get(done[0])
            except self._ray.exceptions.RayActorError as error:
                yield from self._died(task, "it died: " + first_line(error), jobs, idle, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
                if isinstance(cause, EngineDeadError):
                    yield from self._died(task, "its engine died: " + first_line(cause), jobs, idle, cause)
                    continue
                if task.opening or isinstance(cause, NOT_A_ROWS_FAULT):
                    raise _own(error) from None
                idle.append(task.worker)
                _log.warning("stage %s failed on %d rows: %s", task.job.stage.label, task.job.work.num_rows, first_line(cause))
                yield from _narrow(task.job, jobs, f"{type(cause).__name__}: {first_line(cause)}", alone=True)
                continue
            if task.opening:
                self._note_opened(task.worker, task.job.stage, task.job.config, result)
                self._send(task.worker, task.job, running, refs)
                continue
            results, peak = result
            self.note_peak(peak)
            self._deaths_in_a_row = 0
            task.worker.rows += results.num_rows
            worn = self._recycle_rows is not None and task.worker.rows >= self._recycle_rows
            idle.appendleft(self.replace(task.worker) if worn else task.worker)
            whole = task.job.whole or task.job
            whole.seconds += time.monotonic() - task.since
            yield whole, results

    def _send(self, worker: Worker, job: Job, running: dict[Any, _Running], refs: dict[int, tuple[Any, Any]]) -> None:
        """Give a worker its job, or first have it open the engines that the job needs."""
        if id(job.stage) not in refs:
            refs[id(job.stage)] = (self._ray.put(job.stage), self._ray.put(job.config))
        stage, config = refs[id(job.stage)]
        ready = self._ready(worker, job.stage, job.config)
        if ready:
            _log.info("%s: %d rows sent", job.stage.label, job.work.num_rows)
            ref = worker.actor.run_rows.remote(stage, config, job.work)
        else:
            ref = worker.actor.open.remote(stage, config)
        worker.started()
        running[ref] = _Running(worker, job, opening=not ready)

    def _overdue(self, task: _Running) -> str:
        """Return why a task is given up, "" if it is not.

        Raises:
            EngineStartError: If an engine is not open in time.
        """
        if task.opening:
            if time.monotonic() - task.since > self._start_seconds:
                raise self._late(task.job.stage)
            return ""
        silent = task.worker.silent_for(self._ray)
        return f"no sign of life for {self._silent_seconds:g} s" if silent > self._silent_seconds else ""

    def _died(
        self, task: _Running, cause: str, jobs: JobQueue, idle: deque[Worker], error: BaseException | None = None
    ) -> Iterator[tuple[Job, pa.Table]]:
        """Replace the worker of a task, and queue the task's job again in parts."""
        idle.append(self.replace(task.worker))
        label = task.job.stage.label
        self._deaths_in_a_row += 1
        self._start_deaths = self._start_deaths + 1 if task.opening else 0
        if self._deaths_in_a_row >= _MAX_DEATHS_IN_A_ROW or self._start_deaths >= _MAX_START_DEATHS:
            num = self._start_deaths or self._deaths_in_a_row
            raise EngineStartError(f"stage {label}: {num} workers died in a row, the last with: {cause}") from error
        _log.warning("stage %s: lost a worker on %d rows: %s", label, task.job.work.num_rows, cause)
        if task.opening:
            jobs.add_next(task.job)
            return
        task.job.deaths += 1
        for failed in _narrow(task.job, jobs, LOST + cause, alone=task.job.deaths > 1):
            if "llm" in task.job.stage.engines_for(task.job.config):
                self._deaths_in_a_row = 0  # its engine was probed when it opened: the row is to blame
            yield failed

    def _late(self, stage: RowStage | TableStage) -> EngineStartError:
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        return EngineStartError(
            f"stage {stage.label}: a worker and its engines did not start within run.start_seconds={self._start_seconds:g}; "
            f"free on the cluster: {free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs, "
            f"{free.get('GPU', 0):g} of {total.get('GPU', 0):g} GPUs"
        )

    def _ready(self, worker: Worker, stage: RowStage | TableStage, config: BaseModel) -> bool:
        return stage.label in worker.engines and worker.engines.issuperset(stage.engines_for(config))

    def _note_opened(self, worker: Worker, stage: RowStage | TableStage, config: BaseModel, opened: Opened) -> None:
        worker.engines |= {stage.label, *stage.engines_for(config)}
        worker.opened = opened
        self.model_loads += "llm" in opened.newly
        if self._whole_gpus and opened.devices:
            holders = [other for other in self._workers if set(other.opened.devices) & set(opened.devices)]
            if len(holders) > 1:
                raise EngineStartError(
                    f"{len(holders)} workers hold the same GPU {', '.join(opened.devices)}, though each was given its own; "
                    "is CUDA_VISIBLE_DEVICES set for the whole cluster?"
                )

    def _grown(self, wanted: int) -> list[Worker]:
        limit = max(1, min(self._limit, wanted))
        while len(self._workers) < limit:
            self._workers.append(Worker(self._new_actor()))
        return self._workers[:limit]


def _narrow(job: Job, jobs: JobQueue, cause: str, *, alone: bool) -> Iterator[tuple[Job, pa.Table]]:
    """Queue the parts of a job that failed; a single row is tried once more, or with `alone` gets the state error."""
    rows = job.work.num_rows
    whole = job.whole or job
    if rows > 1:
        size = -(-rows // _SPLIT)
        parts = [job.work.slice(start, size) for start in range(0, rows, size)]
        jobs.add_next(*(Job(job.stage, job.config, part, job.tag, whole, job.deaths) for part in parts))
    elif alone:
        yield whole, failed_rows(job.stage.result_schema, job.work.column("work_key").to_pylist(), "error", cause)
    else:
        jobs.add_next(Job(job.stage, job.config, job.work, job.tag, whole, job.deaths))


def failed_rows(schema: pa.Schema, keys: Sequence[str], state: str, reason: str) -> pa.Table:
    """Return result rows without payload: null, or for a non-nullable column its type's empty value."""
    columns: dict[str, list[Any]] = {
        "work_key": list(keys),
        "state": [state] * len(keys),
        "reason": [reason[:_ROW_REASON_CHARS]] * len(keys),
    }
    payload: dict[str, list[Any]] = {
        field_.name: [None if field_.nullable else _empty_value(field_.type)] * len(keys)
        for field_ in schema
        if field_.name not in columns
    }
    return pa.table({**columns, **payload}, schema=schema)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, its type's name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _own(error: Any) -> BaseException:
    """Return the error that a worker raised as it was raised there, wrapped if it is none of ours."""
    cause: BaseException = error.cause
    return cause if isinstance(cause, GpuRagError) else EngineError(str(error))


def _empty_value(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    return False if pa.types.is_boolean(kind) else 0


__all__ = ["NOT_A_ROWS_FAULT", "Job", "JobQueue", "Supervisor", "Worker", "failed_rows", "first_line"]
