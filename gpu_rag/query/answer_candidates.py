"""Candidate short answers of a sentence: names, dates, numbers, and runs of content words."""

import re
from itertools import pairwise

from gpu_rag.names import spot_names
from gpu_rag.query.text_features import STOP_WORDS, Word, split_words

_MAX_RUN_WORDS = 6
_JOINERS = frozenset(["of", "and", "the", "for", "in", "to", "on", "with", "a", "an", "by", "from"])
_INSIDE_RUN = re.compile("[ \u00a0\\-\u2010-\u2013/]+|\\. ")
_UNITS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|billion|half|third|"
    "quarter|dozen"
)
_NUMBER = re.compile(
    rf"[$\u00a3\u20ac]?\d+(?:[.,:]\d+)*(?:\s?(?:%|percent|million|billion|trillion|hundred|thousand|dozen))*"
    rf"|\b(?:{_UNITS})(?:[- ](?:{_UNITS}))*\b",
    re.IGNORECASE,
)
_UNIT = re.compile(r"[ -][a-z]+\b")


def candidate_spans(sentence: str) -> dict[tuple[int, int], str]:
    """Return the candidate spans of a sentence and their kinds: name, date, number or phrase.

    A phrase that cuts through a date is left out ("born April 9").
    """
    found = {(name.start, name.end): name.type for name in spot_names(sentence)}
    dates = [span for span, kind in found.items() if kind == "date"]
    names = sorted(span for span, kind in found.items() if kind == "name")
    for start, end in names:
        for other, after in names:
            if other == end + 2 and sentence[end:other] == ", ":
                found.setdefault((start, after), "name")
    for match in _NUMBER.finditer(sentence):
        found.setdefault(match.span(), "number")
        unit = _UNIT.match(sentence, match.end())
        if unit:
            found.setdefault((match.start(), unit.end()), "number")
    for start, end in _phrases(content_runs(sentence, split_words(sentence)), sentence):
        if not any(first < end and start < last and not (start <= first and last <= end) for first, last in dates):
            found.setdefault((start, end), "phrase")
    return found


def content_runs(sentence: str, words: list[Word]) -> list[list[Word]]:
    """Return the maximal runs of words that are no stop words and that nothing but space or hyphen separates."""
    runs: list[list[Word]] = [[]]
    for word in words:
        if runs[-1] and not _INSIDE_RUN.fullmatch(sentence, runs[-1][-1].end, word.start):
            runs.append([])
        if sentence[word.start : word.end].casefold() in STOP_WORDS:
            runs.append([])
        else:
            runs[-1].append(word)
    return [run for run in runs if run]


def _phrases(runs: list[list[Word]], sentence: str) -> list[tuple[int, int]]:
    """Return the parts of each run, and parts of two neighbours that at most two joining words separate."""
    spans = []
    for run in runs:
        for first in range(len(run)):
            spans += [(run[first].start, last.end) for last in run[first : first + _MAX_RUN_WORDS]]
    for left, right in pairwise(runs):
        between = sentence[left[-1].end : right[0].start].split()
        if 1 <= len(between) <= 2 and _JOINERS.issuperset(between) and len(left) + len(right) <= _MAX_RUN_WORDS + 1:
            spans += [(word.start, right[-1].end) for word in left[-3:]]
    return spans
