"""Chunks of a long document as its profile asks: by section, then paragraph, then sentence, up to a number of tokens.

No chunk reaches over the start of a section. Within one, whole sentences are packed until the next would not fit, and a cut
moves back to the end of a paragraph if one lies in the second half. What a section holds decides its chunks alone, so an edit
elsewhere leaves them as they are.

Tokens are those of the text that is embedded: title, line feed and chunk, or the chunk alone where it begins in the title. A
title so long that less than a quarter of `max_tokens` would be left leaves that quarter nevertheless.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpu_rag.engines.token_counter import TokenCounter
from gpu_rag.index.sentences import Span, covering_sentences
from gpu_rag.spans import is_blank

_SPEAKER = re.compile(r"\s*[A-Z][A-Z .'-]{1,30}[.:]\s*")


class Limits(NamedTuple):
    """Upper bounds of a chunk, and how much of its end the next one may repeat."""

    max_tokens: int
    max_chars: int
    overlap_tokens: int


class _Unit(NamedTuple):
    """What is not cut any more: a sentence, or a part of one that is too long; together they cover the text."""

    start: int
    end: int
    num_tokens: int
    opens: bool  # begins a paragraph


def packed_spans(
    source: str, title: str, body: int, cuts: Sequence[int], limits: Limits, tokenizer: TokenCounter
) -> list[Span]:
    """Return the spans of a document's chunks, in order; together they cover all that is not blank.

    Args:
        source: The document's source text.
        title: Its title.
        body: Where the text begins in `source`.
        cuts: Starts of the sections that no chunk may reach over, ascending.
        limits: Upper bounds and overlap.
        tokenizer: Counts.
    """
    measure = _Measure(source, title, body, limits, tokenizer)
    if measure.fits([(0, len(source))])[0]:
        return [(0, len(source))] if not is_blank(source) else []
    regions = list(pairwise([0, *(cut for cut in cuts if 0 < cut < len(source)), len(source)]))
    units = _units(source, regions, measure)
    spans: list[Span] = []
    at = 0
    for _, end in regions:
        first = at
        while at < len(units) and units[at].start < end:
            at += 1
        spans += _pack(units[first:at], measure)
    return _bounded([span for span in spans if not is_blank(source[slice(*span)])], measure)


class _Measure:
    """Counts tokens of spans as they are embedded."""

    def __init__(self, source: str, title: str, body: int, limits: Limits, tokenizer: TokenCounter) -> None:
        self.source, self.limits, self.tokenizer = source, limits, tokenizer
        self._title, self._body = title, body
        self.special, with_title = tokenizer.count(["", f"{title}\n"])
        least = max(1, limits.max_tokens // 4)
        self._room_with_title = max(limits.max_tokens - self.special, least)
        self._room = max(limits.max_tokens - with_title, least) if title else self._room_with_title
        self._most = max(limits.max_tokens, with_title + least)

    def room(self, start: int) -> int:
        """Return the tokens that a chunk from `start` on may have."""
        return self._room_with_title if start < self._body else self._room

    def tokens(self, spans: Sequence[Span]) -> list[int]:
        """Return the tokens of each span alone, without special ones."""
        return [count - self.special for count in self.tokenizer.count([self.source[start:end] for start, end in spans])]

    def fits(self, spans: Sequence[Span]) -> list[bool]:
        """Return whether each span is within the bounds as it is embedded; what is too long in characters is not counted."""
        short = [end - start <= self.limits.max_chars for start, end in spans]
        counts = iter(self.tokenizer.count([self._embedded(*span) for span, fits in zip(spans, short, strict=True) if fits]))
        return [fits and next(counts) <= (self._most if start >= self._body else max(self.limits.max_tokens, 3))
                for fits, (start, _) in zip(short, spans, strict=True)]  # fmt: skip

    def _embedded(self, start: int, end: int) -> str:
        text = self.source[start:end]
        return text if start < self._body or not self._title else f"{self._title}\n{text}"


def _units(source: str, regions: Sequence[Span], measure: _Measure) -> list[_Unit]:
    sentences = [
        (start + a, start + b, opens) for start, end in regions for a, b, opens in covering_sentences(source[start:end])
    ]
    counts = measure.tokens([(start, end) for start, end, _ in sentences])
    most = measure.room(len(source))
    units: list[_Unit] = []
    for (start, end, opens), count in zip(sentences, counts, strict=True):
        if count <= most and end - start <= measure.limits.max_chars:
            units.append(_Unit(start, end, count, opens))
            continue
        parts = _parts(source, start, end, most, measure)
        for (a, b), tokens in zip(parts, measure.tokens(parts), strict=True):
            units.append(_Unit(a, b, tokens, opens and a == start))
    return units


def _parts(source: str, start: int, end: int, most: int, measure: _Measure) -> list[Span]:
    """Return parts of a long sentence, of `most` tokens at most, cut between words where the second half has any."""
    starts = measure.tokenizer.starts(source[start:end]) + start
    parts = []
    while start < end:
        first = int(np.searchsorted(starts, start))
        limit = min(start + measure.limits.max_chars, end)
        if first + most < len(starts):
            limit = min(limit, int(starts[first + most]))
        cut = max(limit, start + 1)
        if cut < end:
            spaced = starts[
                int(np.searchsorted(starts, (start + cut) // 2, side="right")) : int(np.searchsorted(starts, cut, side="right"))
            ]
            between = [int(at) for at in spaced if source[at - 1].isspace()]
            cut = between[-1] if between else cut
        parts.append((start, cut))
        start = cut
    return parts


def _pack(units: Sequence[_Unit], measure: _Measure) -> list[Span]:
    """Return the chunks of one section."""
    max_chars = measure.limits.max_chars
    spans: list[Span] = []
    left = sum(unit.num_tokens for unit in units)  # tokens from `first` on
    first = done = 0
    while done < len(units):
        last, size = first, 0
        room = measure.room(units[first].start)
        # What is left for two chunks is shared evenly, so that the last one is no mere tail.
        most = room if left <= room or 2 * left >= 3 * room else (left + 1) // 2
        while last < len(units) and units[last].end - units[first].start <= max_chars and (
            last <= done or size + units[last].num_tokens <= most
        ):  # fmt: skip
            size += units[last].num_tokens
            last += 1
        if last < len(units):
            last = _paragraph_end(units, first, max(done, first), last, size)
            while last - 1 > max(done, first) and _SPEAKER.fullmatch(
                measure.source, units[last - 1].start, units[last - 1].end
            ):
                last -= 1  # who speaks stays with what is said
        spans.append((units[first].start, units[last - 1].end))
        done = last
        following = done - _repeated(units, first, done, measure)
        left -= sum(unit.num_tokens for unit in units[first:following])
        first = following
    return spans


def _paragraph_end(units: Sequence[_Unit], first: int, done: int, last: int, size: int) -> int:
    """Return the last start of a paragraph behind `done` that leaves at least half of the tokens, else `last`."""
    at, tokens = last, size
    while at > done + 1 and 2 * tokens >= size:
        if units[at].opens:
            return at
        at -= 1
        tokens -= units[at].num_tokens
    return last


def _repeated(units: Sequence[_Unit], first: int, done: int, measure: _Measure) -> int:
    """Return how many units the next chunk repeats: whole sentences within the overlap that leave room for the next unit.

    They are less than half of the characters too: a million letters without a space are a handful of tokens.
    """
    if done >= len(units):
        return 0
    limits, room = measure.limits, measure.room(units[done].start)
    most = min(limits.overlap_tokens, room - units[done].num_tokens, room // 2)
    half = (units[first].start + units[done - 1].end) // 2
    count, tokens = 0, 0
    while done - count - 1 > first:
        before = units[done - count - 1]
        tokens += before.num_tokens
        too_long = before.start < half or units[done].end - before.start > limits.max_chars
        if tokens > most or too_long:
            break
        count += 1
    return count


def _bounded(spans: list[Span], measure: _Measure) -> list[Span]:
    """Return the spans, those halved that have more tokens than their parts had one by one."""
    bounded: list[Span] = []
    waiting = spans
    while waiting:
        halves: list[Span] = []
        for (start, end), fits in zip(waiting, measure.fits(waiting), strict=True):
            if fits or end - start == 1:
                bounded.append((start, end))
            else:
                middle = _middle(measure.source, start, end)
                halves += [(start, middle), (middle, end)]
        waiting = [span for span in halves if not is_blank(measure.source[slice(*span)])]
    return sorted(bounded)


def _middle(source: str, start: int, end: int) -> int:
    """Return the place of a cut near the middle, behind white space if there is some in the second quarter or the third."""
    middle = (start + end) // 2
    for at in range(middle, min(end, middle + (end - start) // 4)):
        if source[at - 1].isspace() and at > start:
            return at
    return middle


__all__ = ["Limits", "packed_spans"]
