"""What a stage is: a number, a name, tables in and out, and one pure function.

Two kinds. A `RowStage` works row by row: its function reads only the *content* of a row, never ids or offsets, so equal
content is computed once, kept in the work cache by key, and joined back to every row that has it. A `TableStage` needs whole
tables at once (alignment, graph); its output is kept as one artifact, keyed by the content of its inputs.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.schemas import STRING, USAGE_COLUMNS, USAGE_METRICS, TableSchema, column

Tables = Mapping[str, pa.Table]

WORK_COLUMNS = (column("work_key", STRING), column("state", STRING), column("reason", STRING))


class NoConfig(BaseModel):
    """The config of a stage that has nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Cardinality(enum.Enum):
    """How many output rows one input row may give."""

    ONE_TO_ONE = "1:1"
    ONE_TO_MANY = "1:n"
    MANY_TO_MANY = "n:m"


@dataclass(frozen=True)
class Resources:
    """What one worker needs while it runs the stage; `gpus` counts only where the hardware config offers GPUs."""

    cpus: int = 1
    gpus: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _StageBase:
    number: int
    name: str
    version: int  # raised by hand when the code changes what it produces
    reads: tuple[str, ...]  # table names
    writes: tuple[TableSchema, ...]
    cardinality: Cardinality
    # Keywords under which engines enter `run`: encoder, repository, llm; a function of the config where it decides.
    engines: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    resources: Resources = field(default_factory=Resources)
    # Of the config, what the work of a row does not depend on, or an engine's identity stands for: pydantic's `exclude`; a
    # function of the config where it decides.
    not_keyed: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] = field(default_factory=dict)
    # Texts outside code and config that decide the output, such as prompts and schemas, by name.
    texts: Callable[[Any], Mapping[str, str]] | None = None

    @property
    def label(self) -> str:
        """Return the name of module, artifact folder and log line, such as `04_extract`."""
        return f"{self.number:02d}_{self.name}"

    def engines_for(self, config: BaseModel) -> tuple[str, ...]:
        """Return the engines that `run` gets under this config."""
        return self.engines(config) if callable(self.engines) else self.engines

    def fingerprint(self, config: BaseModel, identities: Mapping[str, str]) -> str:
        """Return the hash of all that decides the stage's output besides the content it reads.

        Args:
            config: The part of the config that the stage reads.
            identities: Identity of each engine in `engines` (model, tokenizer, backend; for a repository its content hash).
        """
        not_keyed = self.not_keyed(config) if callable(self.not_keyed) else self.not_keyed
        parts = {
            "stage": self.label,
            "version": self.version,
            "config": config.model_dump(mode="json", exclude=dict(not_keyed)),
            "engines": {name: identities[name] for name in self.engines_for(config)},
        }
        texts = dict(self.texts(config)) if self.texts is not None else {}
        if texts:  # without any, the fingerprint is that of a stage that never had texts
            parts["texts"] = texts
        return content_hash("fingerprint", canonical_json(parts))


@dataclass(frozen=True, kw_only=True)
class RowStage(_StageBase):
    """A stage whose work is keyed by content.

    Attributes:
        payload: Columns of one result row besides `work_key, state, reason`; 1:n output stands in lists.
        content: (tables, config) -> one row per row of work: `row_id` and the content columns that `run` reads.
        run: (work, *, config, **engines) -> `work_key, state, reason` and the payload, one row per work row, in any order.
            `work` has `work_key` and the content columns.
        assemble: (tables, results, config) -> output tables; `results` has `row_id, state, reason`, the payload and what is
            `passed`, one row per row of `content`, in its order.
        unkeyed: Columns of `content` that are no content: no part of the key, and not seen by `run`.
        passed: Columns of `content` that `assemble` gets, so that nothing is worked out twice.
        metrics: Payload columns of numbers whose sums go into the run report.
        uses_llm: Whether it may ask a language model; results then have the usage columns too.
    """

    payload: pa.Schema
    content: Callable[[Tables, Any], pa.Table]
    run: Callable[..., pa.Table]
    assemble: Callable[[Tables, pa.Table, Any], dict[str, pa.Table]]
    unkeyed: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    uses_llm: bool = False

    @property
    def result_schema(self) -> pa.Schema:
        """Return the schema of what `run` returns."""
        return pa.schema([*WORK_COLUMNS, *self.payload, *(USAGE_COLUMNS if self.uses_llm else ())])

    def metrics_for(self, config: BaseModel) -> tuple[str, ...]:
        """Return the numbers that are summed under this config: tokens only where a model is asked."""
        return (*self.metrics, *(USAGE_METRICS if "llm" in self.engines_for(config) else ()))


@dataclass(frozen=True, kw_only=True)
class TableStage(_StageBase):
    """A stage that needs whole tables.

    Attributes:
        run: (tables, *, config, **engines) -> output tables.
        narrow: (tables) -> the rows and columns of them that `run` reads, so that no more of them travels to a worker; `run`
            gives the same from whole tables.
    """

    run: Callable[..., dict[str, pa.Table]]
    narrow: Callable[[Tables], Tables] | None = None


Stage = RowStage | TableStage


def work_keys(content: pa.Table, fingerprint: str, unkeyed: Sequence[str] = ()) -> list[str]:
    """Return one key per row: the hash of the fingerprint and of every content column (not of `row_id` and `unkeyed`)."""
    columns = [content.column(name).to_pylist() for name in content.schema.names if name not in ("row_id", *unkeyed)]
    keys = []
    for values in zip(*columns, strict=True) if columns else ():
        parts = [value if isinstance(value, str) else canonical_json(value) for value in values]
        keys.append(content_hash("work", fingerprint, *parts))
    return keys


def run_here(stage: RowStage, config: BaseModel, tables: Tables, **engines: Any) -> dict[str, pa.Table]:
    """Return the stage's output tables, computed in this process without workers or store, for benchmarks and estimates.

    Args:
        stage: Row stage.
        config: Its section.
        tables: Its inputs.
        engines: More than the stage's own may be given.
    """
    content = stage.content(tables, config)
    work = _renamed(content.drop_columns(list(stage.unkeyed)), "row_id", "work_key")
    wanted = stage.engines_for(config)
    results = stage.run(work, config=config, **{name: engine for name, engine in engines.items() if name in wanted})
    results = _renamed(results, "work_key", "row_id")
    if stage.passed:
        results = results.take(pc.index_in(content.column("row_id"), value_set=results.column("row_id")))
    return dict(stage.assemble(tables, with_passed(results, content, stage), config))


def with_passed(results: pa.Table, content: pa.Table, stage: RowStage) -> pa.Table:
    """Return results in the order of `content` with the columns of it that the stage's `assemble` gets."""
    for name in stage.passed:
        results = results.append_column(content.schema.field(name), content.column(name))
    return results


def _renamed(table: pa.Table, old: str, new: str) -> pa.Table:
    return table.rename_columns([new if name == old else name for name in table.column_names])
