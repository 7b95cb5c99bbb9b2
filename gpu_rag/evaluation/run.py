"""Evaluate a RUN folder: metrics.json and report.html, written into it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from gpu_rag import schemas
from gpu_rag.errors import InputError, StoreError
from gpu_rag.evaluation.metrics import evaluate_run, per_question
from gpu_rag.evaluation.passages import passages
from gpu_rag.evaluation.report import write_report
from gpu_rag.evaluation.terminal import metrics_table
from gpu_rag.query.questions import asked_hash, read_questions
from gpu_rag.schemas import USAGE_METRICS, TableSchema, check_table, conform
from gpu_rag.spans import source_text
from gpu_rag.store import file_checksum, open_generation, read_json, write_json, write_parquet


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_folder` wrote and measured."""

    metrics: dict[str, float | None]
    table: Table
    report: Path


def evaluate_folder(run: Path, questions: Path) -> Evaluation:
    """Evaluate the answers in a RUN folder against the gold in `questions`.

    Raises:
        StoreError: If the run is not finished, or its index is gone or has another content.
        InputError: If the questions are not those of the run, naming ids.
    """
    run_info = read_json(run / "report.json", "files", "asked_hash", "limit", "index", "index_generation", "stages")
    tables = (schemas.ANSWERS, schemas.RANKINGS, schemas.LINEAGES)
    answers, rankings, lineages = (_read(run, schema, run_info["files"]) for schema in tables)
    gold = read_questions(questions, run_info["limit"])
    if asked_hash(gold) != run_info["asked_hash"]:
        raise InputError(f"{questions} does not ask what run {run} answered: another id or wording among its questions")
    generation = open_generation(Path(run_info["index"]), generation_id=run_info["index_generation"])
    documents = generation.read(schemas.DOCUMENTS, ["doc_id", "title", "text"])
    sources = {row["doc_id"]: source_text(row["title"], row["text"]) for row in documents.to_pylist()}
    metrics = evaluate_run(gold, answers, rankings, lineages, sources.get)
    metrics |= _stage_metrics(run_info)
    rows = per_question(gold, answers, rankings, lineages)
    write_json(run / "metrics.json", metrics)
    write_parquet(run / "per_question.parquet", pa.Table.from_pylist(rows))
    write_report(
        run / "report.html",
        metrics=metrics,
        per_question=rows,
        questions=gold,
        answers=answers,
        rankings=rankings,
        lineages=lineages,
        chunks=passages(generation.read(schemas.CHUNKS), lineages),
        run_info=run_info,
    )
    return Evaluation(metrics, metrics_table(metrics, run_info), run / "report.html")


def _stage_metrics(run_info: dict[str, Any]) -> dict[str, float | None]:
    """Return what the stages counted besides rows, and the seconds of both pipelines."""
    stages = {"index": run_info["index_stages"], "query": run_info["stages"]}
    metrics: dict[str, float | None] = {
        f"seconds_{name}": sum(stage["seconds"] for stage in reports) for name, reports in stages.items()
    }
    for stage in (*stages["index"], *stages["query"]):
        for name, value in stage["metrics"].items():
            metrics[f"{stage['label']}_{name}"] = value
    return metrics | _llm_metrics(run_info)


def _llm_metrics(run_info: dict[str, Any]) -> dict[str, float | None]:
    """Return what the query stages spent on a language model; nothing where none was asked."""
    counted = [stage["metrics"] for stage in run_info["stages"] if "llm_calls" in stage["metrics"]]
    if not counted:
        return {}
    total = {name: sum(metrics[name] for metrics in counted) for name in USAGE_METRICS}
    calls, tokens_in = total["llm_calls"], total["tokens_in"]
    return {
        **total,
        "llm_valid_rate": 1 - total["llm_invalid"] / calls if calls else None,
        "prefix_cache_share": total["tokens_cached"] / tokens_in if tokens_in else None,
        "tokens_per_question": (tokens_in + total["tokens_out"]) / max(1, run_info["stages"][0]["rows"]),
        "model_loads": run_info["model_loads"],
    }


def _read(run: Path, schema: TableSchema, checksums: dict[str, str]) -> pa.Table:
    """Return a table of the run; the report, written last, says which files belong together."""
    path = run / f"{schema.name}.parquet"
    if not path.exists():
        raise StoreError(f"{path} is missing: run `gpu-rag answer` to its end first")
    if file_checksum(path) != checksums[path.name]:
        raise StoreError(f"{path} does not match {run / 'report.json'}: run `gpu-rag answer` to its end again")
    try:
        return check_table(conform(pq.read_table(path), schema.schema), schema)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
