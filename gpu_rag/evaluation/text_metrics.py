"""One short answer against one gold answer: exact match, F1 and containment.

Two normal forms. *SQuAD*: lower case, ASCII punctuation removed, articles removed, white space collapsed, so figures
compare with published ones. *Unicode*: `spans.normal_form`, punctuation by Unicode category, articles removed; a step
that would leave nothing is not taken, so "A", "The" and "." match themselves and nothing else. A gold that the SQuAD
form empties is compared in the Unicode form instead: the official script would let any empty answer match it.

Source: the official SQuAD 2.0 evaluation script (normalisation, token F1); Rajpurkar et al. 2018, arXiv:1806.03822.
"""

import re
import string
import unicodedata
from collections import Counter
from functools import lru_cache

from gpu_rag.spans import normal_form

_ARTICLES = frozenset({"a", "an", "the"})
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts written without spaces: each character is a token of its own (Thai to Khmer, kana, Han), as in MLQA's metric.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@lru_cache(maxsize=4096)
def squad_tokens(text: str) -> tuple[str, ...]:
    """Return the tokens of the official SQuAD normal form; empty for "", "The" or "!"."""
    return tuple(_ARTICLE.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split())


@lru_cache(maxsize=4096)  # three metrics compare every answer with every gold
def unicode_tokens(text: str) -> tuple[str, ...]:
    """Return the tokens of the Unicode normal form; empty for white space alone."""
    form = normal_form(text)
    words = "".join(c for c in form if not unicodedata.category(c).startswith("P"))
    tokens = _UNSPACED.sub(r" \g<0> ", words if words.strip() else form).split()
    return tuple(token for token in tokens if token not in _ARTICLES) or tuple(tokens)


def exact_match(answer: str, gold: str) -> float:
    """Return 1.0 if both have the same SQuAD normal form, else 0.0."""
    tokens = _comparable(answer, gold)
    return float(tokens[0] == tokens[1])


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of token precision and recall in the SQuAD normal form, in [0, 1]."""
    return _token_f1(*_comparable(answer, gold))


def unicode_exact_match(answer: str, gold: str) -> float:
    """Return 1.0 if both have the same Unicode normal form, else 0.0."""
    return float(unicode_tokens(answer) == unicode_tokens(gold))


def unicode_f1(answer: str, gold: str) -> float:
    """Return token F1 in the Unicode normal form, in [0, 1]."""
    return _token_f1(unicode_tokens(answer), unicode_tokens(gold))


def contains(answer: str, gold: str) -> float:
    """Return 1.0 if the gold's tokens stand in a row in the answer's, or both match exactly, else 0.0.

    Tokens, not characters: "art" is not contained in "Stuttgart". A gold of articles alone ("A") has to match exactly.
    """
    haystack, needle = unicode_tokens(answer), unicode_tokens(gold)
    if not needle:
        return float(not haystack)
    return float(any(haystack[at : at + len(needle)] == needle for at in range(len(haystack) - len(needle) + 1)))


def _comparable(answer: str, gold: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tokens of both in the SQuAD form, or in the Unicode form if that empties the gold."""
    tokens = squad_tokens(gold)
    return (squad_tokens(answer), tokens) if tokens else (unicode_tokens(answer), unicode_tokens(gold))


def _token_f1(answer: tuple[str, ...], gold: tuple[str, ...]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = (Counter(answer) & Counter(gold)).total()
    return 2.0 * common / (len(answer) + len(gold))
