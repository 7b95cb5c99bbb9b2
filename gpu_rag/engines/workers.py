"""Stages on Ray actors: one pool a run, one path for one machine and for a cluster.

Workers start only when there is work, and only as many as there are jobs; the driver commits, so one process writes the store.
How failures are handled stands in `supervision`.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat, PositiveInt

from gpu_rag.engines.require import require
from gpu_rag.engines.supervision import NOT_A_ROWS_FAULT, Job, JobQueue, Supervisor, first_line
from gpu_rag.engines.worker import CONTROL_GROUP, Opened, Openers, StageWorker
from gpu_rag.errors import EngineError
from gpu_rag.stage import RowStage, Tables, TableStage

_SAID_BY_US = "A worker died or was killed"  # Ray prints it on stdout, between the lines for schedulers
_log = logging.getLogger(__name__)


class RunConfig(BaseModel):
    """Where and how wide a run is, and how patient; nothing here changes what a stage produces.

    Attributes:
        num_workers: None: as many as the cluster's CPUs (or GPUs, if a worker takes one) allow.
        cpus_per_worker: CPUs that Ray sets aside for a worker.
        gpus_per_worker: GPUs, or a share of one.
        shard_rows: Rows that are computed and committed together, at most.
        shard_bytes: Bytes of text that are, at most; a longer row is a shard of its own.
        max_attempts: How often a row that fails is tried, over all runs.
        object_store_bytes: Ray's shared memory, where this program starts Ray.
        start_seconds: Deadline for a worker to be placed and to open the engines of a stage.
        silent_seconds: A worker without a sign of life for so long is taken to hang and is replaced. Signs come with every
            answer of a language model and every tile of an encoder; a stage without such engines must finish a shard in it.
        recycle_rows: A worker is replaced after so many rows, against libraries that leak; None: never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_workers: PositiveInt | None = None
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: NonNegativeFloat = 0.0
    shard_rows: PositiveInt = 1024
    shard_bytes: PositiveInt = 1 << 24
    max_attempts: PositiveInt = 3
    object_store_bytes: PositiveInt = 1 << 29
    start_seconds: PositiveFloat = 900.0
    silent_seconds: PositiveFloat = 900.0
    recycle_rows: PositiveInt | None = None


class WorkerPool:
    """The workers of one run; a context manager.

    Attributes:
        model_loads: How often a worker opened a language model.
    """

    def __init__(self, config: RunConfig, openers: Openers, address: str | None = None) -> None:
        """Connect to nothing yet: Ray starts with the first job, so a run with nothing to compute never pays for it."""
        self._config = config
        self._openers = openers
        self._address = address
        self._ray: Any = None
        self._owns_ray = False
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> "WorkerPool":
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, and Ray if this pool started it."""
        if self._supervisor is not None:
            self._supervisor.end()
        if self._ray is not None and self._owns_ray:
            self._ray.shutdown()

    @property
    def model_loads(self) -> int:
        """How often a worker opened a language model."""
        return self._supervisor.model_loads if self._supervisor else 0

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
        return self._supervisor.take_peak() if self._supervisor else 0

    def opened(self, stage: RowStage, config: BaseModel) -> Opened:
        """Return what a worker with the stage's engines says of them; starts it."""
        return self._supervise().opened(stage, config)

    def work_off(self, jobs: JobQueue) -> Iterator[tuple[Job, pa.Table]]:
        """Yield results as shards finish, in any order; jobs may be added meanwhile, those at the front go first.

        A job that had to be split comes in parts, under the job it was split from.

        Raises:
            InputError, MissingDependencyError, StoreError: From the stage: not the fault of a row.
            EngineStartError: If an engine does not start in time, or worker after worker dies, with the last cause.
        """
        yield from self._supervise().work_off(jobs)

    def run_tables(self, stage: TableStage, config: BaseModel, tables: Tables) -> dict[str, pa.Table]:
        """Return the output tables of a stage that needs whole tables; it runs on one worker, without a deadline.

        Raises:
            InputError, MissingDependencyError, StoreError: As the stage raised them.
            EngineError: If the stage failed otherwise, or its worker died twice.
        """
        supervisor = self._supervise()
        refs = [self._ray.put(tables[name]) for name in stage.reads]
        for attempt in (1, 2):
            worker = supervisor.ready_worker(stage, config)
            try:
                outputs, peak = self._ray.get(worker.actor.run_tables.remote(stage, config, *refs))
            except self._ray.exceptions.RayActorError as error:
                supervisor.replace(worker)
                if attempt == 2:
                    raise EngineError(f"stage {stage.label}: its worker died twice: {first_line(error)}") from error
                _log.warning("stage %s: its worker died: %s", stage.label, first_line(error))
                continue
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, NOT_A_ROWS_FAULT):
                    raise error.cause from None
                raise EngineError(f"stage {stage.label} failed: {error}") from error
            break
        supervisor.note_peak(peak)
        return dict(outputs)

    def _supervise(self) -> Supervisor:
        if self._supervisor is None:
            limit = self.num_workers()
            actors = self._ray.remote(
                num_cpus=self._config.cpus_per_worker,
                num_gpus=self._config.gpus_per_worker,
                concurrency_groups={CONTROL_GROUP: 1},
            )(StageWorker)
            self._supervisor = Supervisor(
                self._ray,
                lambda: actors.remote(self._openers),
                limit=limit,
                start_seconds=self._config.start_seconds,
                silent_seconds=self._config.silent_seconds,
                recycle_rows=self._config.recycle_rows,
                whole_gpus=self._config.gpus_per_worker >= 1,
            )
        return self._supervisor

    def _start_ray(self) -> None:
        if self._ray is not None:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _SAID_BY_US)
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


__all__ = ["Job", "JobQueue", "Opened", "Openers", "RunConfig", "WorkerPool"]
