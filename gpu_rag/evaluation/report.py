"""The HTML report of a run: one static page with metrics, plots, run identity, and the lineage of every question.

The page loads nothing: styles and script stand in it, and its content security policy forbids every request and every
script but its own. All text of corpus and questions passes the template's escaping, control characters become visible.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gpu_rag.evaluation import plots
from gpu_rag.evaluation.boundary import CLASSES
from gpu_rag.evaluation.definitions import NOTES, definition, format_value, grouped
from gpu_rag.evaluation.lineage_view import Limits, question_view
from gpu_rag.evaluation.passages import Passage, shorten
from gpu_rag.evaluation.retrieval import RECALL_DEPTHS, distinct
from gpu_rag.schemas import FINAL_STATES, RANKINGS
from gpu_rag.spans import clean_text
from gpu_rag.store import write_atomically

MAX_QUESTIONS = 1000  # lineages printed; the rest stands in the run's tables
_FEW_QUESTIONS = 250
_FEW = Limits(passage_chars=1600, num_candidates=25)
_MANY = Limits(passage_chars=600, num_candidates=8)
_TILES = ("answered", "refused", "recall@5", "f1", "strict", "lenient", "correct_refusal", "bbs")
_CONFIGS = ("config", "index_config")  # folded away: long
_NUM_LISTED = 50
_BY_TYPE = ("recall@5", "exact_match", "f1", "lenient")
# C0 controls become their Unicode pictures; C1 controls and bidirectional overrides (they reorder a page) U+FFFD.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | dict.fromkeys(
    [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)


def write_report(
    path: Path,
    *,
    metrics: dict[str, float | None],
    per_question: Sequence[Mapping[str, Any]],
    questions: pa.Table,
    answers: pa.Table,
    rankings: pa.Table,
    lineages: pa.Table,
    chunks: Mapping[str, Passage],
    run_info: Mapping[str, Any],
) -> None:
    """Write the report; the same inputs give the same bytes.

    Args:
        path: Where report.html goes.
        metrics: As `metrics.evaluate_run` gives them, with whatever else the run reports.
        per_question: As `metrics.per_question` gives them.
        questions: `schemas.QUESTIONS`.
        answers: `schemas.ANSWERS`.
        rankings: `schemas.RANKINGS`.
        lineages: `schemas.LINEAGES`; a question without one says so.
        chunks: Passages by chunk id, at least those the lineages name (`passages.passages`).
        run_info: Identity of the run (system, hashes, versions, encoder, ...), `stages` and `index_stages`.
    """
    environment = Environment(
        loader=PackageLoader("gpu_rag.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"metric_of": _metric_of, "number": _number, "seconds": _seconds, "bytes": _bytes}
    templates = Path(__file__).with_name("templates")
    script = (templates / "report.js").read_text(encoding="utf-8")
    shown = _shown(per_question)
    html = environment.get_template("report.html.j2").render(
        style=Markup((templates / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        system=str(run_info.get("system", "")),
        identity=_identity({key: value for key, value in run_info.items() if key not in _CONFIGS}),
        identity_map=dict(_identity(run_info)),
        configs=[(key, _identity(run_info[key])) for key in _CONFIGS if key in run_info],
        tiles=[(name, metrics[name]) for name in _TILES if metrics.get(name) is not None],
        groups=_groups(metrics),
        undefined=[name for name, value in metrics.items() if value is None],
        metrics=metrics,
        definition=definition,
        notes=NOTES,
        recall_depths=RECALL_DEPTHS,
        curve=plots.recall_curve(metrics),
        outcomes=plots.outcome_bars(per_question),
        types=_by_type(per_question),
        type_metrics=_BY_TYPE,
        stage_groups=[
            (label, _stages(run_info.get(key, ())), plots.seconds_bars(run_info.get(key, ())))
            for label, key in (("index", "index_stages"), ("query", "stages"))
            if run_info.get(key)
        ],
        final_states=FINAL_STATES,
        classes=[(name, sum(row["class"] == name for row in shown)) for name in CLASSES],
        num_questions=len(per_question),
        questions=_views(shown, questions, answers, rankings, lineages, chunks),
    )
    data = html.encode("utf-8")
    write_atomically(path, lambda temporary: _write_bytes(temporary, data))


def _views(
    shown: Sequence[Mapping[str, Any]],
    questions: pa.Table,
    answers: pa.Table,
    rankings: pa.Table,
    lineages: pa.Table,
    chunks: Mapping[str, Passage],
) -> list[dict[str, Any]]:
    limits = _FEW if len(shown) <= _FEW_QUESTIONS else _MANY
    ids = pa.array([row["id"] for row in shown], pa.string())
    golds, given, traces = (
        {row["id"]: row for row in table.filter(pc.is_in(table.column("id"), value_set=ids)).to_pylist()}
        for table in (questions, answers, lineages)
    )
    ranked: dict[str, list[str]] = {}
    ordered = RANKINGS.sort(rankings.filter(pc.is_in(rankings.column("id"), value_set=ids)))
    for id_, doc_id in zip(ordered.column("id").to_pylist(), ordered.column("doc_id").to_pylist(), strict=True):
        ranked.setdefault(id_, []).append(doc_id)
    titles = {passage.doc_id: passage.title for passage in chunks.values()}
    return [
        question_view(
            row,
            gold=golds[row["id"]],
            answer=given[row["id"]],
            ranking=distinct(ranked.get(row["id"], [])),
            lineage=traces.get(row["id"]),
            chunks=chunks,
            titles=titles,
            limits=limits,
        )
        for row in shown
    ]


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows whose lineages are printed: all, or `MAX_QUESTIONS` spread evenly over classes and ids."""
    if len(rows) <= MAX_QUESTIONS:
        return list(rows)
    by_class = sorted(rows, key=lambda row: (CLASSES.index(row["class"]), row["id"]))
    spread = [by_class[index * len(rows) // MAX_QUESTIONS] for index in range(MAX_QUESTIONS)]
    return sorted(spread, key=lambda row: row["id"])


def _groups(metrics: dict[str, float | None]) -> dict[str, list[str]]:
    """Return the metrics to list, by group: defined ones, without retrieval (own card) and states without a row."""
    listed = {
        name: value
        for name, value in metrics.items()
        if value is not None and (value or not name.startswith("rows_")) and definition(name).group != "retrieval"
    }
    return grouped(listed)


def _by_type(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return size and mean metrics of each question type, none if there is one type only."""
    types = sorted({row["type"] or "(none)" for row in rows})
    if len(types) < 2:
        return []
    result = []
    for type_ in types:
        members = [row for row in rows if (row["type"] or "(none)") == type_]
        means = {}
        for name in _BY_TYPE:
            values = [row[name] for row in members if row[name] is not None]
            means[name] = sum(values) / len(values) if values else None
        refused = sum(row["outcome"] == "refused" for row in members)
        result.append({"type": type_, "count": len(members), "refused": refused / len(members), "means": means})
    return result


def _stages(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = ("label", "rows", "distinct", "cached", "computed", "seconds", "peak_rss_bytes")
    views = []
    for stage in stages:
        states = stage.get("states", {})
        views.append(
            {name: stage.get(name) for name in names}
            | {"states": states, "metrics": stage.get("metrics", {}), "listed": stage.get("listed", [])[:_NUM_LISTED]}
            | {"num_listed": sum(count for state, count in states.items() if state not in FINAL_STATES)}
        )
    return views


def _identity(run_info: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the run's identity as (name, value), nested mappings flattened, stages left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in run_info.items():
        if isinstance(value, Mapping):
            pairs += _identity(value, f"{prefix}{name}.")
        elif name not in ("stages", "index_stages"):
            pairs.append((prefix + name, shorten(str(value), 400)))
    return pairs


def _printable(value: Any) -> Any:
    """Return what the template prints for a value: text without lone surrogates and invisible controls."""
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return clean_text(value).translate(_VISIBLE)
    return value


def _metric_of(value: float | None, name: str) -> str:
    return format_value(name, value)


def _number(value: float | None) -> str:
    """Return a number as short text, a dash for None."""
    if value is None:
        return "\u2013"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.0f} s" if value >= 100 else f"{value:.2f} s"


def _bytes(value: int | None) -> str:
    return f"{value / 2**20:,.0f} MiB" if value else "\u2013"


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
