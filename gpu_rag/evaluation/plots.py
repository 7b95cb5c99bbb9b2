"""Coordinates of the report's small plots; the template draws them as inline SVG. Units are SVG user units (pixels)."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_rag.evaluation.boundary import CLASSES
from gpu_rag.evaluation.retrieval import RECALL_DEPTHS

_CURVE = {"left": 44.0, "right": 436.0, "top": 14.0, "bottom": 176.0}
_BAR_X, _BAR_WIDTH = 150.0, 400.0
_GROUPS = ((True, "answerable"), (False, "unanswerable"), (None, "unlabelled"))


def recall_curve(metrics: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Return points of recall@k and of the highest recall@k attainable, None without gold documents.

    Depths stand at equal distances (they grow roughly by powers of two).
    """
    lines = {}
    for prefix in ("recall", "max_recall"):
        values = [metrics.get(f"{prefix}@{k}") for k in RECALL_DEPTHS]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        lines[prefix] = [
            {"k": k, "x": round(_depth_x(i), 1), "y": round(_share_y(value), 1), "value": value}
            for i, (k, value) in enumerate(zip(RECALL_DEPTHS, known, strict=True))
        ]
    ticks = [{"y": round(_share_y(share), 1), "label": f"{share:.0%}"} for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return {"lines": lines, "ticks": ticks, **_CURVE}


def seconds_bars(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one bar per stage: label, seconds, width; the longest stage has the full width."""
    longest = max((float(stage.get("seconds") or 0.0) for stage in stages), default=0.0)
    return [
        {
            "label": stage["label"],
            "seconds": float(stage.get("seconds") or 0.0),
            "width": round(_BAR_WIDTH * float(stage.get("seconds") or 0.0) / longest, 1) if longest else 0.0,
        }
        for stage in stages
    ]


def outcome_bars(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one stacked bar per group of questions that occurs: its label, size, and parts by outcome class."""
    bars = []
    for answerable, label in _GROUPS:
        classes = [row["class"] for row in rows if row["answerable"] is answerable]
        parts: list[dict[str, Any]] = []
        x = 0.0
        for name in CLASSES:
            count = classes.count(name)
            if count:
                width = _BAR_WIDTH * count / len(classes)
                parts.append({"class": name, "count": count, "x": round(_BAR_X + x, 1), "width": round(width, 1)})
                x += width
        if classes:
            bars.append({"label": label, "count": len(classes), "parts": parts})
    return bars


def meter(score: float, threshold: float) -> dict[str, float] | None:
    """Return where score and threshold stand on a scale from 0 to 200, None unless both are finite."""
    if not all(abs(value) < float("inf") for value in (score, threshold)):
        return None
    low, high = min(0.0, score, threshold), max(1.0, score, threshold)
    return {
        "score": round(200 * (score - low) / (high - low), 1),
        "threshold": round(200 * (threshold - low) / (high - low), 1),
    }


def _depth_x(index: int) -> float:
    return _CURVE["left"] + 24 + (_CURVE["right"] - _CURVE["left"] - 48) * index / (len(RECALL_DEPTHS) - 1)


def _share_y(share: float) -> float:
    return _CURVE["bottom"] - share * (_CURVE["bottom"] - _CURVE["top"])
