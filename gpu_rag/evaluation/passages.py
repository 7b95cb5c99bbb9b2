"""Passages as the report shows them: text cut around the spans that matter, spans marked in place.

Offsets are code points in a document's source text; a passage knows at which one it starts.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

ELLIPSIS = "\u2026"
_SNAP_CHARS = 16  # how far a cut may move to fall between two words


class Passage(NamedTuple):
    """One chunk: title, text, and where the text starts in the source text of its document."""

    title: str
    text: str
    doc_id: str
    start: int


class Span(NamedTuple):
    """A marked stretch [start, end) of a passage's text, why it is marked, and whether the answer cites it."""

    start: int
    end: int
    label: str
    cited: bool


class Segment(NamedTuple):
    """A piece of shown text: `plain`, `span`, `cited` or `gap` (text left out here)."""

    text: str
    kind: str
    label: str


def passages(chunks: pa.Table, lineages: pa.Table) -> dict[str, Passage]:
    """Return the passages that the lineages name, by chunk id.

    Args:
        chunks: `schemas.CHUNKS` of the index that answered.
        lineages: `schemas.LINEAGES`.
    """
    named = [
        pc.struct_field(lineages.column(column).combine_chunks().flatten(), "chunk_id")
        for column in ("pool", "selection", "annotations")
    ]
    wanted = pc.unique(pa.concat_arrays(named))
    table = chunks.filter(pc.is_in(chunks.column("chunk_id"), value_set=wanted))
    columns = (table.column(name).to_pylist() for name in ("chunk_id", *Passage._fields))
    return {chunk_id: Passage(*values) for chunk_id, *values in zip(*columns, strict=True)}


def shorten(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters with an ellipsis if it is longer."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + ELLIPSIS


def highlight(text: str, spans: Sequence[Span], limit: int) -> list[Segment]:
    """Return the text in segments, spans marked; of a text longer than `limit`, about that much around the spans.

    Overlapping spans give segments with both labels; spans outside the text are not shown. At most 2 * `limit`
    characters of text come back, however long the spans are.
    """
    inside = sorted(
        Span(max(0, span.start), min(len(text), span.end), span.label, span.cited)
        for span in spans
        if max(0, span.start) < min(len(text), span.end)
    )
    segments: list[Segment] = []
    shown_until = 0
    for start, end in _windows(text, inside, limit):
        if start > shown_until:
            segments.append(Segment(ELLIPSIS, "gap", ""))
        segments += _marked(text, start, end, inside)
        shown_until = end
    if shown_until < len(text):
        segments.append(Segment(ELLIPSIS, "gap", ""))
    return segments


def _windows(text: str, spans: list[Span], limit: int) -> list[tuple[int, int]]:
    """Return the stretches of text to show, in order, apart from each other."""
    if len(text) <= limit:
        return [(0, len(text))] if text else []
    if not spans:
        return [(0, _snap_back(text, limit))]
    context = max(40, (limit - sum(span.end - span.start for span in spans)) // (2 * len(spans)))
    merged: list[tuple[int, int]] = []
    for span in spans:
        start = _snap_back(text, max(0, span.start - context))
        end = _snap_on(text, min(len(text), span.end + context))
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    left = 2 * limit
    windows = []
    for start, end in merged:
        if left > 0:
            windows.append((start, min(end, start + left)))
            left -= windows[-1][1] - start
    return windows


def _marked(text: str, start: int, end: int, spans: list[Span]) -> list[Segment]:
    """Return text[start:end] cut wherever a span starts or ends."""
    inside = [span for span in spans if span.start < end and span.end > start]
    edges = sorted({start, end, *(at for span in inside for at in span[:2] if start < at < end)})
    segments = []
    for left, right in pairwise(edges):
        over = [span for span in inside if span.start <= left and span.end >= right]
        kind = "cited" if any(span.cited for span in over) else "span" if over else "plain"
        label = "; ".join(dict.fromkeys(span.label for span in over))
        segments.append(Segment(text[left:right], kind, label))
    return segments


def _snap_back(text: str, at: int) -> int:
    """Return the start of the word at `at` if it is near, else `at`."""
    return text.rfind(" ", max(0, at - _SNAP_CHARS), at) + 1 or at if at else 0


def _snap_on(text: str, at: int) -> int:
    """Return the end of the word at `at` if it is near, else `at`."""
    space = text.find(" ", at, at + _SNAP_CHARS)
    return space if space >= 0 else at
