"""The Ray actor: runs stages over shards, keeps the engines it has opened, and answers whether it is alive."""

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from gpu_rag.engines import heartbeat
from gpu_rag.engines.usage import with_usage
from gpu_rag.errors import EngineError, EngineStartError, GpuRagError
from gpu_rag.schemas import conform
from gpu_rag.stage import RowStage, TableStage

CONTROL_GROUP = "control"  # Ray's concurrency group of `pulse`, which answers while the other methods work

Openers = Mapping[str, Callable[[], Any]]  # engine name -> a picklable function that opens it in the worker


@dataclass(frozen=True)
class Opened:
    """What a worker says when its engines are open.

    Attributes:
        newly: Names of the engines that this call opened.
        devices: Names of the accelerators that its language model holds, empty on a CPU.
        kv_cache_tokens: Tokens that its language model can have in work at once, 0 where unknown or without a model.
    """

    newly: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    kv_cache_tokens: int = 0


@dataclass
class StageWorker:
    """Runs stages; an engine is opened before the first stage that needs it and kept for all later ones."""

    openers: Openers
    _engines: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep tokenizers from forking threads of their own."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def open(self, stage: RowStage | TableStage, config: BaseModel) -> Opened:
        """Open the engines of a stage that are not open yet.

        Raises:
            EngineStartError: If a library raises; an error of this package is passed on.
        """
        newly = [name for name in stage.engines_for(config) if name not in self._engines]
        for name in newly:
            try:
                self._engines[name] = self.openers[name]()
            except GpuRagError:
                raise
            except Exception as error:  # whatever a library raises here, it is no row's fault
                raise EngineStartError(f"engine {name} does not start: {type(error).__name__}: {error}") from error
        model = getattr(self._engines.get("llm"), "engine", None)
        return Opened(tuple(newly), *((model.devices, model.kv_cache_tokens) if model else ()))

    def run_rows(self, stage: RowStage, config: BaseModel, work: pa.Table) -> tuple[pa.Table, int]:
        """Return the stage's results for one shard and this process's peak memory in bytes."""
        heartbeat.beat()
        results = stage.run(work, config=config, **self._engines_of(stage.engines_for(config)))
        expected, got = work.column("work_key").to_pylist(), results.column("work_key").to_pylist()
        if sorted(expected) != sorted(got):
            raise EngineError(f"stage {stage.label} returned {len(got)} rows that do not match its {len(expected)} work keys")
        if stage.uses_llm:
            results = with_usage(results)
        return conform(results, stage.result_schema), _peak_rss_bytes()

    def run_tables(self, stage: TableStage, config: BaseModel, *tables: Any) -> tuple[dict[str, pa.Table], int]:
        """Return the stage's output tables and this process's peak memory in bytes."""
        inputs = dict(zip(stage.reads, tables, strict=True))
        return stage.run(inputs, config=config, **self._engines_of(stage.engines_for(config))), _peak_rss_bytes()

    def pulse(self) -> int:
        """Return a count that grows while work goes on."""
        return heartbeat.count()

    def _engines_of(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._engines[name] for name in names}


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["CONTROL_GROUP", "Opened", "Openers", "StageWorker"]
