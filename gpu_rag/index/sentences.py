"""Sentences of a text as spans, for any script, and places where a text that is too long may be cut.

Boundaries come from `sentencex` (Wikimedia; its rules for "en" know the terminators of all scripts and the
abbreviations of English); why, and what it needs around it, stands in docs/decisions/0003-sentence-splitting.md. What
is added here: offsets, paragraphs, an upper bound, and the merging of fragments.
"""

import logging
import re
from collections.abc import Iterator

import sentencex

from gpu_rag.spans import is_blank

Span = tuple[int, int]

_LANGUAGE = "en"
_BLOCK_CHARS = 4000  # sentencex takes quadratic time on scripts without spaces: 0.03 s here, 0.7 s at 20,000
_BLANK_LINES = re.compile(r"\n\s*\n")
_UNUSUAL_WHITE_SPACE = re.compile(r"[^\S ]")
_log = logging.getLogger(__name__)


def sentence_spans(text: str, *, min_chars: int, max_chars: int) -> list[Span]:
    """Return the (start, end) of each sentence in order: not blank, no white space at its ends, none overlapping.

    Args:
        text: Any text; blank lines end a sentence.
        min_chars: A shorter fragment is merged with the sentence before it, or, where it opens a paragraph (a heading),
            with the one after it, unless that would exceed `max_chars`.
        max_chars: A longer sentence is split, at white space if there is some in its second half.
    """
    merged: list[Span] = []
    waiting: int | None = None  # start of a fragment that opens a paragraph
    end = 0
    for start, stop, opens in _pieces(text, max_chars):
        if waiting is not None and stop - waiting <= max_chars:
            start, opens = waiting, True
        elif waiting is not None:
            merged.append((waiting, end))
        waiting, end = None, stop
        if stop - start >= min_chars:
            merged.append((start, stop))
        elif not opens and stop - merged[-1][0] <= max_chars:
            merged[-1] = (merged[-1][0], stop)
        else:
            waiting = start
    if waiting is not None:
        if merged and end - merged[-1][0] <= max_chars:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((waiting, end))
    return merged


def covering_sentences(text: str) -> list[tuple[int, int, bool]]:
    """Return (start, end, whether it opens a paragraph) of each sentence; together they cover the text, white space too."""
    pieces: list[tuple[int, bool]] = []
    for paragraph_start, paragraph_end in _paragraphs(text):
        segments = list(_segments(text[paragraph_start:paragraph_end]))
        pieces += [(paragraph_start + start, at == 0) for at, (start, _) in enumerate(segments)]
    starts = [0, *(start for start, _ in pieces[1:])]
    ends = [*starts[1:], len(text)]
    return [(start, end, at == 0 or pieces[at][1]) for at, (start, end) in enumerate(zip(starts, ends, strict=True))]


def bounded_spans(text: str, start: int, end: int, max_chars: int) -> list[Span]:
    """Return spans that cover text[start:end] without a gap, none longer than `max_chars`; blank ones are left out.

    A cut is at the last end of a sentence in reach, else at white space, else anywhere; ends in the first half of the
    reach do not count, so the number of spans stays below twice the least possible, plus one.
    """
    spans = []
    while end - start > max_chars:
        window = text[start : start + max_chars]
        sentence_starts = [at for at, _ in _segments(window) if at > max_chars // 2]
        cut = start + (sentence_starts[-1] if sentence_starts else _white_space_cut(window))
        spans.append((start, cut))
        start = cut
    spans.append((start, end))
    return [(a, b) for a, b in spans if not is_blank(text[a:b])]


def _pieces(text: str, max_chars: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether it opens a paragraph) of each sentence, bounded and stripped, before merging."""
    for paragraph_start, paragraph_end in _paragraphs(text):
        opens = True
        for start, stop in _segments(text[paragraph_start:paragraph_end]):
            for span in _short_spans(text, paragraph_start + start, paragraph_start + stop, max_chars):
                yield *span, opens
                opens = False


def _paragraphs(text: str) -> Iterator[Span]:
    start = 0
    for gap in _BLANK_LINES.finditer(text):
        yield start, gap.start()
        start = gap.end()
    yield start, len(text)


def _segments(paragraph: str) -> Iterator[Span]:
    """Yield spans that cover the paragraph, one per sentence, found block by block."""
    # One for one, so offsets hold. Without it sentencex 1.0.32 panics on U+2028 before a single letter.
    paragraph = _UNUSUAL_WHITE_SPACE.sub(" ", paragraph)
    start = 0
    while start < len(paragraph):
        block = paragraph[start : start + _BLOCK_CHARS]
        sentences = _split(block)
        if start + _BLOCK_CHARS < len(paragraph):
            # The last one is perhaps cut short by the block; the next block begins with it.
            sentences = sentences[:-1] or [block[: _white_space_cut(block)]]
        for sentence in sentences:
            yield start, start + len(sentence)
            start += len(sentence)


def _split(block: str) -> list[str]:
    """Return the sentences of the block; together they are the block. A block that sentencex fails on stays whole."""
    try:
        sentences: list[str] = sentencex.segment(_LANGUAGE, block)
    except BaseException as error:  # a Rust panic arrives as pyo3's PanicException, which no module exports
        if type(error).__name__ != "PanicException":
            raise
        _log.warning("sentencex failed on %r: %s; the passage is not split into sentences", block[:80], error)
        return [block]
    return sentences


def _short_spans(text: str, start: int, end: int, max_chars: int) -> Iterator[Span]:
    start, end = _stripped(text, start, end)
    while start < end:
        cut = end if end - start <= max_chars else start + _white_space_cut(text[start : start + max_chars])
        span = _stripped(text, start, cut)
        if not is_blank(text[slice(*span)]):
            yield span
        start, end = _stripped(text, cut, end)


def _white_space_cut(window: str) -> int:
    """Return the offset after the last white space in the second half of the window, or its length."""
    for at in range(len(window) - 1, len(window) // 2, -1):
        if window[at].isspace():
            return at + 1
    return len(window)


def _stripped(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
