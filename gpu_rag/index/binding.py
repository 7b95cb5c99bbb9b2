"""Evidence binding: where in its chunk a unit stands.

The extractor's span counts where it holds the unit's names; else a name's first place in the chunk, at word boundaries where
the script has words, or the smallest window of both names of a relation. An event, a claim and a definition are named in
other words than the text's: they stand at the span that the extractor gave if it shares enough of their content words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpu_rag.spans import find_span, fold, normal_form, smallest_window
from gpu_rag.words import FUNCTION_WORDS, UNSPACED

MIN_SHARED_WORDS = 0.5  # of a paraphrase's content words, found in its span
PARAPHRASED = ("event", "claim", "concept")

Span = tuple[int, int]
_UNIT = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_STEM = 5  # letters that tell a word in another inflection: attack, attacked
_PLURAL = re.compile(r"e?s(?![^\W_])")
_UNSPACED = re.compile(f"[{UNSPACED}]")


class ChunkText(NamedTuple):
    """What a unit can stand in.

    Attributes:
        start: Offset of the text in the document's source text.
        title: The document's title, which every chunk inherits; it stands at 0.
        text: The chunk's.
    """

    start: int
    title: str
    text: str

    def slices(self, span: Span) -> Iterator[str]:
        """Yield what stands at a span of the source text: in the chunk, and in the title."""
        start, end = span
        if self.start <= start <= end <= self.start + len(self.text):
            yield self.text[start - self.start : end - self.start]
        if 0 <= start <= end <= len(self.title):
            yield self.title[start:end]

    def shifted(self, span: Span | None) -> Span | None:
        """Return a span of the chunk's text as one of the source text."""
        return None if span is None else (span[0] + self.start, span[1] + self.start)


class Ends(NamedTuple):
    """What may stand for a name of a relation in its chunk: other names, and the spans of what it says in other words."""

    aliases: Mapping[str, frozenset[str]]  # by normal form
    paraphrases: Mapping[str, Span]


NO_ENDS = Ends({}, {})


def bind_mention(chunk: ChunkText, name: str, kind: str, given: Span | None) -> Span | None:
    """Return the span of a mention in the source text, None if the chunk does not hold it."""
    if given is not None:
        for text in chunk.slices(given):
            if text == name or (text and normal_form(text) == normal_form(name)):
                return given
        if kind in PARAPHRASED and any(shares_words(name, text) for text in chunk.slices(given)):
            return given
    return chunk.shifted(place_of(chunk.text, name))


def bind_relation(chunk: ChunkText, subject: str, object_: str, given: Span | None, ends: Ends = NO_ENDS) -> Span | None:
    """Return the span of a relation in the source text: one that holds both of its ends."""
    if given is not None:
        for text in chunk.slices(given):
            if holds(text, subject) and holds(text, object_):
                return given
    names = _also(subject, object_, ends), _also(object_, subject, ends)
    if given is not None and (ends.aliases or ends.paraphrases):
        for text in chunk.slices(given):
            spoken = [any(holds(text, name) for name in also) for also in names]
            if all(spoken[end] or _inside(ends.paraphrases.get(normal_form(names[end][0])), given) for end in (0, 1)):
                return given
    window = _window(chunk.text, subject, object_)
    if window is None and ends.aliases:
        found = [_window(chunk.text, first, second) for first in names[0] for second in names[1]]
        window = min((one for one in found if one), key=lambda one: (one[1] - one[0], one), default=None)
    if window is not None:
        return chunk.shifted(window)
    places = [_place_or_paraphrase(chunk, also, ends) for also in names]
    if ends.paraphrases and places[0] is not None and places[1] is not None:
        return min(places[0][0], places[1][0]), max(places[0][1], places[1][1])
    return None


def place_of(text: str, name: str) -> Span | None:
    """Return the first place of a name in a text: whole words where its script has them, a plural counts."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not _glued(text, at) and not _glued(text, end):
            return at, end
        at = text.find(name, at + 1)
    return _whole(text, smallest_window(text, name, name))


def holds(text: str, name: str) -> bool:
    """Return whether a text holds a name, under folding; within a longer word only where nothing tells words apart."""
    at = text.find(name)
    if at >= 0 and not _glued(text, at) and not _glued(text, at + len(name)):
        return True
    if at < 0 and fold(name)[0].strip() not in fold(text)[0]:
        return False
    return place_of(text, name) is not None if any(c.isalnum() for c in name) else True


def _window(text: str, first: str, second: str) -> Span | None:
    """Return the smallest window of a text that holds both names as whole words, or in the plural."""
    window = _whole(text, smallest_window(text, first, second))
    if window is None:
        return None
    found = text[window[0] : window[1]]
    return window if holds(found, first) and holds(found, second) else None


def _whole(text: str, span: Span | None) -> Span | None:
    """Return the span if it cuts no word apart, with the ending of a plural that it leaves out."""
    if span is None or _glued(text, span[0]):
        return None
    if not _glued(text, span[1]):
        return span
    plural = _PLURAL.match(text, span[1])
    return (span[0], plural.end()) if plural else None


def shares_words(said: str, text: str) -> bool:
    """Return whether a text has enough of the content words of what is said in other words."""
    wanted = _stems(said)
    found = _stems(text)
    return bool(wanted) and len(wanted & found) >= max(1.0, MIN_SHARED_WORDS * len(wanted))


@lru_cache(maxsize=256)
def _stems(text: str) -> frozenset[str]:
    words = (match.group() for match in _UNIT.finditer(fold(text)[0]))
    return frozenset(word[:_STEM] for word in words if word not in FUNCTION_WORDS)


def _glued(text: str, at: int) -> bool:
    """Return whether an offset falls inside a word of a script that has words."""
    if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
        return False
    return not (_UNSPACED.match(text[at]) or _UNSPACED.match(text[at - 1]))


def _also(name: str, other: str, ends: Ends) -> list[str]:
    """Return the name and its aliases, but those that are the relation's other end: a name is no evidence of its alias."""
    aliases = ends.aliases.get(normal_form(name), frozenset()) if ends.aliases else frozenset()
    return [name, *sorted(alias for alias in aliases if normal_form(alias) != normal_form(other))]


def _inside(span: Span | None, within: Span) -> bool:
    return span is not None and within[0] <= span[0] and span[1] <= within[1]


def _place_or_paraphrase(chunk: ChunkText, names: Iterable[str], ends: Ends) -> Span | None:
    for name in names:
        place = place_of(chunk.text, name)
        if place is not None:
            return chunk.shifted(place)
        if normal_form(name) in ends.paraphrases:
            return ends.paraphrases[normal_form(name)]
    return None


__all__ = [
    "NO_ENDS",
    "ChunkText",
    "Ends",
    "Span",
    "bind_mention",
    "bind_relation",
    "find_span",
    "holds",
    "place_of",
    "shares_words",
]
