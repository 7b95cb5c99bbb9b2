"""The query pipeline: questions in, answers with citations, or refusals, out.

The order of the stages stands in `QUERY`. A RUN folder belongs to one index, one config and one question file; a rerun with
the same three resumes it, anything else is refused by name.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import __version__, schemas
from gpu_rag.config import QUERY_SECTIONS, Config, asks_llm, llm_identities
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.engines.encoder_files import encoder_identity
from gpu_rag.engines.llm import llm_report, open_llm
from gpu_rag.engines.workers import Opened, WorkerPool
from gpu_rag.errors import ConfigError, StoreError
from gpu_rag.ids import content_hash
from gpu_rag.pipeline import Executor
from gpu_rag.query import s01_demand, s03_retrieve, s04_merge, s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.carry import CARRIED, Carry, carry_from, keep_for_carry
from gpu_rag.query.outputs import answer_table, lineage_table, ranking_table
from gpu_rag.query.questions import asked_hash, read_questions
from gpu_rag.query.repository import open_repository
from gpu_rag.stage import RowStage
from gpu_rag.stage_report import Progress, StageReport
from gpu_rag.store import (
    Generation,
    file_checksum,
    open_generation,
    read_json,
    table_hash,
    write_json,
    write_parquet,
    writer_lock,
)

FINGERPRINTS = "fingerprints.json"  # stage -> fingerprint, of a run that shares its work cache
_log = logging.getLogger(__name__)

QUERY: tuple[RowStage, ...] = (
    s01_demand.STAGE,
    s03_retrieve.STAGE,
    s04_merge.STAGE,
    s05_select.STAGE,
    s06_ground.STAGE,
    s07_suffice.STAGE,
    s08_answer.STAGE,
)
# These ask a language model about the same passages, so a group of questions goes through all of them at once.
READING: tuple[RowStage, ...] = (s06_ground.STAGE, s07_suffice.STAGE, s08_answer.STAGE)
_CHARS_PER_TOKEN = 4  # of English, for the size of groups alone
_OTHER_TOKENS = 500  # of a prompt besides its passages


@dataclass(frozen=True)
class AnswerResult:
    """The tables of a run and what every stage did.

    Attributes:
        answers: `schemas.ANSWERS`.
        rankings: `schemas.RANKINGS`.
        reports: One per stage.
        carried: Ids of the questions whose answers come from an earlier run.
    """

    answers: pa.Table
    rankings: pa.Table
    reports: tuple[StageReport, ...]
    carried: frozenset[str] = frozenset()

    def num_unfinished(self) -> int:
        """Return how many questions did not reach a final state."""
        return sum(state not in schemas.FINAL_STATES for state in self.answers.column("state").to_pylist())


def answer_questions(
    questions: Path,
    index: Path,
    out: Path,
    config: Config,
    *,
    system: str,
    progress: Progress,
    address: str | None = None,
    limit: int | None = None,
    retry_listed: bool = False,
) -> AnswerResult:
    """Answer a question file over an index and write the RUN folder.

    Args:
        questions: JSONL or Parquet (see `query.questions`).
        index: INDEX folder; every file of its generation is checked before it is used.
        out: RUN folder, made if missing.
        config: Sections `QUERY_SECTIONS` decide the answers; `embed.encoder` must be the index's own.
        system: Name for reports.
        progress: Receives stage events.
        address: Ray cluster; None starts Ray on this machine.
        limit: Answer only the first questions, for a trial run.
        retry_listed: Try rows again that have used up their attempts.

    Raises:
        InputError: On malformed questions, naming file and line.
        ConfigError: If `out` belongs to another index, config or question file or is an index itself, or the encoder is
            not the index's.
        StoreError: If an artifact of the index is missing or altered.
    """
    refuse_index_folder(out)
    asked = read_questions(questions, limit)
    generation = open_generation(index)
    binding = run_binding(generation, asked, config)  # before the folder is made: a wrong model leaves nothing behind
    with writer_lock(out):
        return answer_over(
            generation, asked, out, config,
            binding=binding, work=out, system=system, progress=progress, address=address, limit=limit,
            retry_listed=retry_listed,
        )  # fmt: skip


def refuse_index_folder(out: Path) -> None:
    """Refuse to put a run into an INDEX folder."""
    if (out / "CURRENT").exists():
        raise ConfigError(f"{out} is an index folder; choose another --out for the run")


def run_binding(generation: Generation, asked: pa.Table, config: Config) -> dict[str, str]:
    """Return what a RUN folder is tied to: the hashes of its index, config and questions.

    Raises:
        ConfigError: If the encoder is not the index's.
    """
    return {
        "index": generation.content_hash,
        "config": content_hash(
            "run config",
            config.hash(QUERY_SECTIONS),
            _query_encoder(generation, config),
            *llm_identities(config, QUERY).values(),
        ),
        "questions": table_hash(asked, schemas.QUESTIONS),
    }


def answer_over(
    generation: Generation,
    asked: pa.Table,
    out: Path,
    config: Config,
    *,
    binding: dict[str, str],
    work: Path,
    system: str,
    progress: Progress,
    address: str | None = None,
    limit: int | None = None,
    retry_listed: bool = False,
    earlier: Path | None = None,
) -> AnswerResult:
    """Answer questions over a generation and write the RUN folder; the caller holds the writer lock of `work`.

    Args:
        generation: Open, and checked.
        asked: `schemas.QUESTIONS`.
        out: RUN folder, made if missing.
        config: As `answer_questions`.
        binding: As `run_binding`.
        work: Folder of the work cache: `out`, or one that several runs share.
        system: As `answer_questions`.
        progress: As `answer_questions`.
        address: As `answer_questions`.
        limit: How `asked` was limited, for the report.
        retry_listed: As `answer_questions`.
        earlier: RUN folder, over another generation, whose answers are carried over where the evidence is the same.
    """
    if generation.manifest["unfinished"]:
        _log.warning("index %s was published with rows that failed: %s", generation.root, generation.manifest["unfinished"])
    encoder = _query_encoder(generation, config)
    llm = llm_identities(config, QUERY)
    carry = carry_from(earlier, generation) if earlier is not None else None
    _bind(out, binding)
    openers: dict[str, Callable[[], Any]] = {
        "encoder": partial(open_encoder, config.embed.encoder),
        "repository": partial(open_repository, generation.root.resolve(), generation.id),
        "llm": partial(open_llm, config.llm),
    }
    identities = {"encoder": encoder, "repository": generation.content_hash, **llm}
    tables = {"questions": asked}
    with WorkerPool(config.run, openers, address) as pool:
        executor = Executor(work, pool, config.run, identities, progress, retry_listed, config.llm.batch_folder)
        reports = _run_stages(executor, tables, config, generation, carry)
        model_loads = pool.model_loads
    carried = carry.carried if carry is not None else frozenset[str]()
    result = AnswerResult(answer_table(tables), ranking_table(tables), tuple(reports), carried)
    written = {"answers": result.answers, "rankings": result.rankings, "lineages": lineage_table(tables)}
    for name, table in written.items():
        write_parquet(out / f"{name}.parquet", table)
    files = {f"{name}.parquet": file_checksum(out / f"{name}.parquet") for name in written}
    run_info = _run_info(generation, config, system, result.reports, limit)
    run_info |= {"llm": llm_report(config.llm) | llm if llm else None, "model_loads": model_loads}
    bound = {"config_hash": binding["config"], "asked_hash": asked_hash(asked), "files": files}
    write_json(out / "report.json", run_info | bound)
    if work != out:
        keep_for_carry(out, tables, generation)
        fingerprints = {label: fingerprint for label, (fingerprint, _) in executor.work_keys.items()}
        write_json(out / FINGERPRINTS, fingerprints)
    return result


def _run_stages(
    executor: Executor, tables: dict[str, pa.Table], config: Config, generation: Generation, carry: Carry | None
) -> list[StageReport]:
    """Run all stages, adding their outputs to `tables`, and return their reports.

    The stages that read passages run as a chain where a language model reads them. Those in `CARRIED` compute only the
    questions that are not carried over.
    """
    reports: list[StageReport] = []
    chained = asks_llm(config, READING)
    every = tables
    for stage in QUERY:
        if stage.name == CARRIED[0] and carry is not None:
            tables = carry.rest(tables)
        if chained and stage in READING:
            continue
        outputs, report = executor.rows(stage, getattr(config, stage.name), tables)
        tables |= outputs
        reports.append(report)
    if chained:
        configs = [getattr(config, stage.name) for stage in READING]
        tokens = _passage_tokens(generation) * config.select.k + _OTHER_TOKENS

        def num_rows_at_once(engines: Opened, work: pa.Table) -> int:
            return engines.kv_cache_tokens // tokens or work.num_rows

        outputs, read = executor.chain(READING, configs, tables, num_rows_at_once)
        tables |= outputs
        reports += read
    if carry is not None:
        every |= {schema.name: tables[schema.name] for stage in QUERY for schema in stage.writes if schema.name not in every}
        carry.add(every, reports)
    return reports


def _passage_tokens(generation: Generation) -> int:
    """Return the mean length of a passage in tokens, roughly."""
    chars = pc.mean(pc.utf8_length(generation.read(schemas.CHUNKS, ["text"]).column("text"))).as_py()
    return int(chars or 0) // _CHARS_PER_TOKEN + 1


def _query_encoder(generation: Generation, config: Config) -> str:
    """Return the identity of the encoder as questions use it."""
    identity = _check_encoder(generation, config)
    return content_hash("query encoder", identity, config.embed.encoder.query_instruction)


def _check_encoder(generation: Generation, config: Config) -> str:
    """Return the encoder's identity, which must be the one that the index was built with."""
    built = generation.manifest["encoder"]
    identity = encoder_identity(config.embed.encoder)
    if identity != built["identity"]:
        raise ConfigError(
            f"index {generation.root} was embedded with {built['model']!r} ({built['identity']}), the config asks for "
            f"{config.embed.encoder.model!r} ({identity}); use the same encoder, or index the corpus again with this one"
        )
    return identity


def _bind(out: Path, binding: dict[str, str]) -> None:
    """Tie the RUN folder to its index, config and questions, or refuse it if it is tied to others."""
    path = out / "run.json"
    if not path.exists():
        write_json(path, binding)
        return
    bound = read_json(path, *binding)
    names = {"index": "another index", "config": "another config", "questions": "another question file"}
    other = [text for key, text in names.items() if bound.get(key) != binding[key]]
    if other:
        raise ConfigError(f"run folder {out} belongs to {' and '.join(other)}; choose another --out")


def _run_info(
    generation: Generation, config: Config, system: str, reports: tuple[StageReport, ...], limit: int | None
) -> dict[str, Any]:
    """Return what identifies and accounts for the run: printed in reports, never read back by a stage."""
    report_path = generation.root / "report.json"
    try:
        index_report = read_json(report_path, "generation", "stages")
    except StoreError as error:  # only the seconds of its stages are lost with it
        _log.warning("the run's report has no index stages: %s", error)
        index_report = {}
    of_generation = index_report.get("generation") == generation.manifest["id"]
    return {
        "system": system,
        "code_version": __version__,
        "config": config.sections(QUERY_SECTIONS),
        "index_config": generation.manifest["config"],
        "index_content_hash": generation.content_hash,
        "index_counts": generation.manifest["counts"],
        "corpus_hash": generation.manifest["corpus_hash"],
        "encoder": generation.manifest["encoder"] | {"query_instruction": config.embed.encoder.query_instruction},
        "limit": limit,
        "index": str(generation.root.resolve()),
        "index_generation": generation.manifest["id"],
        "index_unfinished": generation.manifest["unfinished"],
        "stages": [report.as_dict() for report in reports],
        "index_stages": index_report["stages"] if of_generation else [],
    }
