"""Words of questions and sentences with their offsets, and what the no-LLM stages read off them.

Pure text, no engine but the stemmer. English stop words, question words and negations; text in another language keeps all of
its words, and scripts without spaces between words give one word a character.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_rag.engines.require import require
from gpu_rag.names import spot_names


class Word(NamedTuple):
    """A word of a text: its stem, and where it stands."""

    stem: str
    start: int
    end: int


_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(
    rf"\d+(?:[.,:]\d+)+|[{_UNSPACED}]|[^\W_{_UNSPACED}](?:(?![{_UNSPACED}])[^\W_])*(?:['\u2019][^\W_{_UNSPACED}]+)?"
)
QUESTION_WORDS = frozenset("what which who whom whose when where why how".split())
NEGATIONS = frozenset("not no never neither nor without none nobody nothing cannot".split())
STOP_WORDS = QUESTION_WORDS | frozenset(
    """a about above after against all also although am among an and any are as at be because been before being below
    between both but by can could did do does doing during each few for from further had has have having he her here hers
    him his i if in into is it its itself me more most much many my no nor not of off on once only or other our out over
    own same she should so some such than that the their them then there these they this those through to too under until
    up upon us very was we were while will with within without would you your name called many please tell give""".split()
)
_NEGATED = re.compile(r"n['\u2019]t$")
_QUOTED = re.compile("[\"\u201c\u00ab\u300c]([^\"\u201c\u201d\u00ab\u00bb\u300c\u300d\n]{2,80})[\"\u201d\u00bb\u300d]")


def split_words(text: str) -> list[Word]:
    """Return the words of a text in order."""
    matches = list(_WORD.finditer(text))
    return [Word(_stem(m.group().casefold().replace("\u2019", "'")), m.start(), m.end()) for m in matches]


def content_words(text: str) -> list[Word]:
    """Return the words that are no stop words; all words where nothing else is left."""
    words = split_words(text)
    return [word for word in words if text[word.start : word.end].casefold() not in STOP_WORDS] or words


def is_negated(text: str) -> bool:
    """Return whether the text holds a negation."""
    words = (text[word.start : word.end].casefold() for word in split_words(text))
    return any(word in NEGATIONS or _NEGATED.search(word) for word in words)


def names_and_quotes(text: str) -> list[str]:
    """Return the names (the longest of those that overlap) and the quoted strings of a question, each once, in order."""
    spans = [match.span(1) for match in _QUOTED.finditer(text)]
    for name in sorted(spot_names(text), key=lambda n: (n.start - n.end, n.start)):
        if name.name.casefold() not in STOP_WORDS and all(name.end <= s or name.start >= e for s, e in spans):
            spans.append((name.start, name.end))
    return list(dict.fromkeys(text[start:end] for start, end in sorted(spans)))


def covered(wanted: Sequence[Word], found: Iterable[Word], weights: Sequence[float]) -> float:
    """Return the weighted share of the wanted words whose stem is among the found ones, in [0, 1]; 0 without a weight."""
    stems = {word.stem for word in found}
    total = sum(weights)
    hits = sum(weight for word, weight in zip(wanted, weights, strict=True) if word.stem in stems)
    return hits / total if total > 0 else 0.0


@functools.lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.cache
def _stemmer():  # type: ignore[no-untyped-def]  # PyStemmer ships no types
    return require("Stemmer", extra="cpu").Stemmer("english")
