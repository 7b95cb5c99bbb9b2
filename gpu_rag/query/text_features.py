"""Words of questions and sentences with their offsets, and what the no-LLM stages read off them.

Pure text, no engine but the stemmer. English stop words, question words and negations; text in another language keeps
all of its words, and scripts without spaces between words give one word a character.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

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
QUESTION_WORDS = frozenset(("what", "which", "who", "whom", "whose", "when", "where", "why", "how"))
NEGATIONS = frozenset(("not", "no", "never", "neither", "nor", "without", "none", "nobody", "nothing", "cannot"))
STOP_WORDS = QUESTION_WORDS | frozenset(
    """
    a about above after against all also although am among an and any are as at be because been before being below
    between both but by called can could did do does doing during each few for from further give had has have having he
    her here hers him his i if in into is it its itself many me more most much my name no nor not of off on once only or
    other our out over own please same she should so some such tell than that the their them then there these they this
    those through to too under until up upon us very was we were while will with within without would you your
    """.split()  # noqa: SIM905
)
_NEGATED = re.compile(r"n['\u2019]t$")
_QUOTED = re.compile('["\u201c\u00ab\u300c]([^"\u201c\u201d\u00ab\u00bb\u300c\u300d\n]{2,80})["\u201d\u00bb\u300d]')


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


def name_words(question: str) -> list[Word]:
    """Return the content words of a question that stand in a name, a number or a quoted string, in order."""
    spans = [(name.start, name.end) for name in spot_names(question)]
    spans += [match.span(1) for match in _QUOTED.finditer(question)]
    return [
        word
        for word in content_words(question)
        if any(character.isdigit() for character in question[word.start : word.end])
        or any(start <= word.start and word.end <= end for start, end in spans)
    ]


def covered(wanted: Sequence[Word], found: Iterable[Word], shares: np.ndarray) -> float:
    """Return the sum of the shares of the wanted words whose stem is among the found ones, in [0, 1]."""
    stems = {word.stem for word in found}
    return float(sum(share for word, share in zip(wanted, shares, strict=True) if word.stem in stems))


@functools.lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@functools.cache
def _stemmer():  # type: ignore[no-untyped-def]  # PyStemmer ships no types
    return require("Stemmer", extra="cpu").Stemmer("english")
