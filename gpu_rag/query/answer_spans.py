"""Short answers without a model: candidate spans of a sentence, and how well each fits a question.

A candidate is a name, a date, a number or a run of content words. Its rank is a sum of a few features with fixed weights: the
kind the question word asks for, nearness to the question's words in the sentence, words shared with the question, length.
Dates, names and numbers are language-neutral as far as `names.spot_names` is; question words and stop words are English.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu_rag.names import spot_names
from gpu_rag.query.text_features import STOP_WORDS, Word, content_words, split_words


class Span(NamedTuple):
    """A candidate within a sentence; `kind` is name, date, number or phrase."""

    start: int
    end: int
    kind: str


class Expectation(NamedTuple):
    """What a question asks for: `kind` (name, place, date, number, phrase, reason, choice), and the noun after which/what."""

    kind: str
    head: str


_MAX_PHRASE_WORDS = 6
_NUMBER_WORD = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|"
    "nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|billion|half|third|quarter|dozen"
)
_NUMBER = re.compile(
    rf"[$\u00a3\u20ac]?\d+(?:[.,:]\d+)*(?:\s?(?:%|percent|million|billion|trillion|hundred|thousand|dozen))*"
    rf"|\b(?:{_NUMBER_WORD})(?:[- ](?:{_NUMBER_WORD}))*\b",
    re.IGNORECASE,
)
_UNIT = re.compile(r"[ -][a-z]+\b")
_JOINERS = frozenset("of and the for in to on with".split())
_GAP = re.compile(r"[ \u00a0\-\u2010-\u2013/]+")
