"""The index pipeline: a corpus in, a published generation out.

The order of the stages stands in `INDEX`. Whatever an earlier run, killed or finished, has committed in the INDEX folder is
not computed again; another corpus or config makes a new generation there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag import __version__, schemas
from gpu_rag.config import INDEX_SECTIONS, Config, llm_identities
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.engines.encoder_files import encoder_identity
from gpu_rag.engines.llm import llm_report, open_llm
from gpu_rag.engines.token_counter import open_token_counter, tokenizer_identity
from gpu_rag.engines.workers import WorkerPool
from gpu_rag.errors import ConfigError, EngineError
from gpu_rag.ids import content_hash
from gpu_rag.index import (
    published_graph,
    s02_profile,
    s03_chunk,
    s04_extract,
    s05_embed,
    s06_govern,
    s07_graph,
    s08_communities,
    s09_summarize,
    s10_publish,
)
from gpu_rag.index.s01_ingest import Corpus, read_corpus
from gpu_rag.pipeline import Executor
from gpu_rag.stage import NoConfig, RowStage, Stage
from gpu_rag.stage_report import Progress, StageReport
from gpu_rag.store import (
    WORK_KEYS,
    Artifact,
    ArtifactStore,
    Generation,
    keep_work_keys,
    publish_generation,
    state_counts,
    table_hash,
    write_json,
    writer_lock,
)

INDEX: tuple[Stage, ...] = (
    s02_profile.STAGE,
    s03_chunk.STAGE,
    s04_extract.STAGE,
    s05_embed.STAGE,
    s06_govern.STAGE,
    s07_graph.STAGE,
    s08_communities.STAGE,
    s09_summarize.STAGE,
    s10_publish.STAGE,
)
_INGEST = "01_ingest"
RECORDED = "01_recorded"  # what was read beside the corpus, for the next update
_SCHEMAS = {schema.name: schema for stage in INDEX for schema in stage.writes} | {
    schema.name: schema for schema in (schemas.DOCUMENTS, schemas.RECORDED_CHUNKS, schemas.RECORDED_EXTRACTION)
}


@dataclass(frozen=True)
class IndexResult:
    """A published generation and what every stage did."""

    generation: Generation
    reports: tuple[StageReport, ...]

    def num_unfinished(self) -> int:
        """Return how many rows of all stages did not reach a final state."""
        return sum(report.num_unfinished() for report in self.reports)


def build_index(
    corpus: Path,
    out: Path,
    config: Config,
    *,
    progress: Progress,
    address: str | None = None,
    limit: int | None = None,
    retry_listed: bool = False,
) -> IndexResult:
    """Index a corpus into the folder `out`, reusing what is committed there, and publish the generation.

    Args:
        corpus: A file, or a folder (see `s01_ingest`).
        out: INDEX folder, made if missing.
        config: Sections `INDEX_SECTIONS` decide the content; `run` the width.
        progress: Receives stage events.
        address: Ray cluster; None starts Ray on this machine.
        limit: Read only the first documents, for a trial run.
        retry_listed: Try rows again that have used up their attempts.

    Raises:
        InputError: On a malformed corpus, naming file and line.
        ConfigError: If `out` is a RUN folder.
        StoreError: If another process writes `out`.
    """
    refuse_run_folder(out)
    with writer_lock(out):
        source = read_corpus(corpus, config.ingest, limit)
        return build_generation(source, out, config, progress=progress, address=address, retry_listed=retry_listed)


def refuse_run_folder(out: Path) -> None:
    """Refuse to make a RUN folder an index."""
    if (out / "run.json").exists():
        raise ConfigError(f"{out} is a run folder; choose another --out for the index")


def index_pool(config: Config, address: str | None = None) -> WorkerPool:
    """Return workers for index stages; they start with the first work."""
    openers: dict[str, Callable[[], Any]] = {
        "encoder": partial(open_encoder, config.embed.encoder),
        "tokenizer": partial(open_token_counter, config.embed.encoder),
        "llm": partial(open_llm, config.llm),
    }
    return WorkerPool(config.run, openers, address)


def build_generation(
    source: Corpus,
    out: Path,
    config: Config,
    *,
    progress: Progress,
    address: str | None = None,
    retry_listed: bool = False,
    pool: WorkerPool | None = None,
) -> IndexResult:
    """Make and publish the generation of a corpus; the caller holds the writer lock of `out`.

    Whoever adds, changes or deletes documents comes here with all documents there are then: an update is a build that finds
    most of its work done.

    Args:
        source: All documents.
        out: INDEX folder.
        config: As `build_index`.
        progress: Receives stage events.
        address: As `build_index`.
        retry_listed: As `build_index`.
        pool: Workers that are there already and stay; None starts some and ends them.
    """
    ingest = _ingest_report(source)
    progress.stage_finished(ingest)
    identity = encoder_identity(config.embed.encoder)
    llm = llm_identities(config, INDEX)
    with index_pool(config, address) if pool is None else nullcontext(pool) as workers:
        identities = {"encoder": identity, "tokenizer": tokenizer_identity(config.embed.encoder), **llm}
        executor = Executor(out, workers, config.run, identities, progress, retry_listed, config.llm.batch_folder)
        artifacts, reports, counts = _run_stages(executor, source, config)
        _refuse_lost_stage(reports)
        model_loads = workers.model_loads
    generation = publish_generation(
        out,
        artifacts,
        config=config.sections(INDEX_SECTIONS),
        encoder={"model": config.embed.encoder.model, "identity": identity},
        corpus_hash=table_hash(source.documents, schemas.DOCUMENTS),
        counts=counts,
        code_version=__version__,
        unfinished={report.label: report.num_unfinished() for report in reports if report.num_unfinished()},
    )
    result = IndexResult(generation, (ingest, *reports))
    stages = [report.as_dict() for report in result.reports]
    report = {"generation": generation.manifest["id"], "stages": stages, "model_loads": model_loads}
    write_json(out / "report.json", report | {"llm": llm_report(config.llm) | llm if llm else None})
    return result


def _run_stages(
    executor: Executor, source: Corpus, config: Config
) -> tuple[dict[str, Artifact], list[StageReport], dict[str, int]]:
    tables: dict[str, pa.Table] = {
        "documents": source.documents,
        "recorded_chunks": source.recorded_chunks,
        "recorded_extraction": source.recorded_extraction,
    }
    artifacts = {_INGEST: _keep_documents(executor.root, source.documents), RECORDED: _keep_recorded(executor.root, source)}
    hashes = {file["table"]: file["content_hash"] for artifact in artifacts.values() for file in _tables_of(artifact)}
    reports = []
    for at, stage in enumerate(INDEX):
        section = getattr(config, stage.name, NoConfig())
        if isinstance(stage, RowStage):
            outputs, report = executor.rows(stage, section, tables)
            artifacts[stage.label] = executor.keep(stage, section, outputs)
        else:
            inputs = [hashes[name] for name in stage.reads]
            if any(_SCHEMAS[name].computed for name in stage.reads):  # floats that their table's hash leaves out
                inputs.append(executor.identities["encoder"])
            input_hash = content_hash("inputs", *inputs)
            outputs, artifacts[stage.label], report = executor.tables(stage, section, tables, input_hash)
        tables |= outputs
        hashes |= {file["table"]: file["content_hash"] for file in _tables_of(artifacts[stage.label])}
        reports.append(report)
        if stage is s07_graph.STAGE:
            edges_key = artifacts[stage.label].manifest["key"]
            artifacts[published_graph.LABEL] = published_graph.keep_published_graph(executor.root, tables, edges_key)
        _forget_read(tables, INDEX[at + 1 :])
    artifacts[WORK_KEYS] = keep_work_keys(executor.root, executor.work_keys)
    counts = {str(row["table"]): int(row["rows"]) for row in tables["counts"].to_pylist()}
    return artifacts, reports, counts


def _forget_read(tables: dict[str, pa.Table], following: Sequence[Stage]) -> None:
    """Let go of what no later stage reads: memory follows what is in use, not all that was made."""
    for name in list(tables):
        readers = [stage for stage in following if name in stage.reads]
        if readers == [s10_publish.STAGE]:
            tables[name] = s10_publish.references_of(name, tables[name])
        elif not readers and name != "counts":
            del tables[name]


def _tables_of(artifact: Artifact) -> Iterator[dict[str, Any]]:
    """Yield the entries of an artifact's files that are tables."""
    return (file for file in artifact.manifest["files"].values() if "table" in file)


def _refuse_lost_stage(reports: list[StageReport]) -> None:
    """Publish nothing if a stage lost every row: that is no bad row but a broken engine or extractor."""
    for report in reports:
        if report.rows and report.num_unfinished() == report.rows:
            raise EngineError(
                f"stage {report.label}: all {report.rows} rows failed, the first with {report.listed[0]['reason']!r}; "
                "nothing is published, an earlier generation stays; the same command tries again"
            )


def _keep_documents(root: Path, documents: pa.Table) -> Artifact:
    store = ArtifactStore(root)
    key = table_hash(documents, schemas.DOCUMENTS)
    return store.find(_INGEST, key) or store.write(_INGEST, key, {"documents": documents}, (schemas.DOCUMENTS,))


def _keep_recorded(root: Path, source: Corpus) -> Artifact:
    store = ArtifactStore(root)
    tables = {"recorded_chunks": source.recorded_chunks, "recorded_extraction": source.recorded_extraction}
    written = (schemas.RECORDED_CHUNKS, schemas.RECORDED_EXTRACTION)
    key = content_hash("recorded", *(table_hash(tables[schema.name], schema) for schema in written))
    return store.find(RECORDED, key) or store.write(RECORDED, key, tables, written)


def _ingest_report(source: Corpus) -> StageReport:
    states = state_counts(source.documents.column("state").to_pylist())
    rows = source.documents.num_rows
    duplicates = rows - source.documents.column("duplicate_of").null_count
    metrics = {name: float(count) for name, count in source.report.items() if name not in ("rows", "ok", "skipped")}
    return StageReport(
        _INGEST, rows=rows, distinct=rows, computed=rows, states=states, metrics=metrics | {"duplicates": float(duplicates)}
    )
