"""Short answers without a model: candidate spans of sentences, and how well each fits a question.

A candidate is a name, a date, a number, or a run of content words. Its rank is a sum of features with fixed weights: the
match of its sentence, the kind of answer the question word asks for, nearness to where the question's words stand in the
sentence (by stem or by word vector, those beside the question word once more), likeness to the question word's own
vector, and its edges. The weights were fitted on the 242 answerable questions of squad2_500, thinned out and rounded:
exact match 0.31, F1 0.41 on those same questions. A fit with twice the features has 0.29, 0.42 in five-fold
cross-validation there. The best candidate has F1 0.87, so ranking is the limit. Elsewhere, given the gold passages, it is
far weaker: 0.17, 0.19 on every seventh question of popqa1000, 0.15, 0.23 on hotpotqa_train100.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpu_rag.names import spot_names
from gpu_rag.query.evidence import TokenBank, idf_shares
from gpu_rag.query.expectation import Expectation, expectation
from gpu_rag.query.repository import Repository
from gpu_rag.query.text_features import STOP_WORDS, Word, content_words, split_words


class RankedSpan(NamedTuple):
    """A candidate answer: `sentences[sentence][start:end]`."""

    sentence: int
    start: int
    end: int
    score: float


_WEIGHTS = {
    "match": 1.8, "first": 1.0, "near": 2.0, "near_asking": 2.0, "asking_vector": 2.2, "wanted": 1.3, "unwanted": -1.2,
    "place_after_preposition": 1.9, "name_for_phrase": 1.2, "number_for_phrase": -0.7, "capital": 0.7,
    "capital_for_name": 1.4, "digit_for_name": -0.7, "holds_head": 0.7, "beside_head": 0.6, "from_run_start": 0.6,
    "to_run_end": 0.4, "to_sentence_end": 0.5, "participle_edge": -0.35, "length": -0.16,
}  # fmt: skip
_MAX_RUN_WORDS = 6
_NEAR_WORDS = 6.0  # words over which nearness falls to 1/e
_ASKING_WORDS = 2.0  # likewise, within the question, from the question word on
_JOINERS = frozenset(["of", "and", "the", "for", "in", "to", "on", "with", "a", "an", "by", "from"])
_PLACE_PREPOSITIONS = frozenset(["in", "at", "near", "from", "on", "to"])
_PARTICIPLE = re.compile(r"(?:ed|ing|ly)$")
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
_YEARS = re.compile("(?:1\\d{3}|20\\d{2})(?:[-\u2010-\u2013](?:1\\d{3}|20\\d{2}|\\d{2}))?")


def candidate_spans(sentence: str) -> dict[tuple[int, int], str]:
    """Return the candidate spans of a sentence and their kinds: name, date, number or phrase."""
    found = {(name.start, name.end): name.type for name in spot_names(sentence)}
    for match in _NUMBER.finditer(sentence):
        found.setdefault(match.span(), "number")
        unit = _UNIT.match(sentence, match.end())
        if unit:
            found.setdefault((match.start(), unit.end()), "number")
    runs = _content_runs(sentence)
    for run in runs:
        for first in range(len(run)):
            for last in range(first, min(len(run), first + _MAX_RUN_WORDS)):
                found.setdefault((run[first].start, run[last].end), "phrase")
    for left, right in pairwise(runs):
        between = sentence[left[-1].end : right[0].start].split()
        if 1 <= len(between) <= 2 and _JOINERS.issuperset(between) and len(left) + len(right) <= _MAX_RUN_WORDS + 1:
            for word in left[-3:]:
                found.setdefault((word.start, right[-1].end), "phrase")
    return found


def rank_spans(
    question: str,
    sentences: Sequence[str],
    titles: Sequence[str],
    scores: Sequence[float],
    bank: TokenBank,
    repository: Repository,
) -> list[RankedSpan]:
    """Return the candidate answers of some sentences, the best first; those that only repeat the question are left out.

    Args:
        question: Asking text; it and the sentences after their titles are in `bank`.
        sentences: Best first.
        titles: One per sentence, "" without.
        scores: Match of each sentence.
        bank: Token vectors.
        repository: Gives the idf of words.
    """
    wanted = expectation(question)
    ranked = []
    for index, (sentence, title, score) in enumerate(zip(sentences, titles, scores, strict=True)):
        aligned = _Alignment(question, wanted, sentence, title, bank, repository)
        for start, end, features in aligned.features(candidate_spans(sentence)):
            features |= {"match": score - scores[0], "first": float(index == 0)}
            total = sum(_WEIGHTS[name] * value for name, value in features.items())
            ranked.append(RankedSpan(index, start, end, round(total, 4)))
    return sorted(ranked, key=lambda span: (-span.score, span.sentence, span.start, -span.end))


class _Alignment:
    """One sentence seen from one question: where the question's words stand in it."""

    def __init__(
        self, question: str, wanted: Expectation, sentence: str, title: str, bank: TokenBank, repository: Repository
    ) -> None:
        self.sentence, self.wanted = sentence, wanted
        self.words = split_words(sentence)
        self.folded = [sentence[word.start : word.end].casefold() for word in self.words]
        asked = content_words(question)
        self.asked = {word.stem for word in asked}
        shares = idf_shares(repository, asked)
        before = np.array([sum(wanted.asking_end <= other.start < word.start for other in asked) for word in asked])
        beside = shares * np.exp(-before / _ASKING_WORDS)
        self._weights = np.stack([shares, beside / beside.sum()])
        text = f"{title}: {sentence}" if title else sentence
        self._vectors = bank.word_vectors(text, self.words, len(text) - len(sentence))
        similarity = bank.word_vectors(question, asked) @ self._vectors.T
        same = np.array([[word.stem == other.stem for other in self.words] for word in asked], dtype=np.float32)
        self._similarity = np.maximum(np.clip((similarity - 0.3) / 0.6, 0, 1), same.reshape(similarity.shape))
        self._asking = bank.word_vectors(question, _question_word(question, wanted))
        runs = _content_runs(sentence)
        self._run_starts = {run[0].start for run in runs}
        self._run_ends = {run[-1].end for run in runs}

    def features(self, spans: dict[tuple[int, int], str]) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Yield (start, end, features) of each candidate that adds a word to the question's."""
        for (start, end), kind in spans.items():
            inside = [row for row, word in enumerate(self.words) if word.start < end and word.end > start]
            content = [row for row in inside if self.folded[row] not in STOP_WORDS]
            if any(self.words[row].stem not in self.asked for row in content):
                yield start, end, self._position(start, end, inside) | self._form(start, end, kind, inside, content)

    def _position(self, start: int, end: int, inside: list[int]) -> dict[str, float]:
        first, last = inside[0], inside[-1]
        rows = np.arange(len(self.words))
        distance = np.maximum(np.maximum(first - rows, rows - last), 0)
        outside = self._similarity * ((distance > 0) * np.exp(-distance / _NEAR_WORDS)).astype(np.float32)
        near, near_asking = self._weights @ outside.max(axis=1)
        mean = self._vectors[inside].mean(axis=0)
        asking = float((self._asking @ mean).max(initial=0.0)) / max(float(np.linalg.norm(mean)), 1e-12)
        head = self.wanted.head
        around = [row for row in (first - 1, last + 1) if 0 <= row < len(self.words)]
        return {
            "near": float(near),
            "near_asking": float(near_asking),
            "asking_vector": asking,
            "holds_head": float(self.words[last].stem in head),
            "beside_head": float(any(self.words[row].stem in head for row in around)),
            "from_run_start": float(start in self._run_starts),
            "to_run_end": float(end in self._run_ends),
            "to_sentence_end": float(end == len(self.sentence.rstrip(" .!?\"'"))),
        }

    def _form(self, start: int, end: int, kind: str, inside: list[int], content: list[int]) -> dict[str, float]:
        wanted = self.wanted.kind
        text = self.sentence[start:end]
        digit = any(character.isdigit() for character in text)
        number = kind != "date" and not _YEARS.fullmatch(text) and (kind == "number" or not text[0].isalpha())
        fits = {
            "date": kind == "date",
            "number": number,
            "name": kind == "name",
            "place": kind == "name",
        }.get(wanted, False)
        misfits = (wanted == "date" and kind != "date") or (wanted == "number" and not number)
        capital = float(np.mean([self.sentence[self.words[row].start].isupper() for row in content]))
        before = self.folded[max(inside[0] - 2, 0) : inside[0]]
        return {
            "wanted": float(fits),
            "unwanted": float(misfits),
            "place_after_preposition": float(wanted == "place" and not _PLACE_PREPOSITIONS.isdisjoint(before)),
            "name_for_phrase": float(wanted == "phrase" and kind == "name"),
            "number_for_phrase": float(wanted == "phrase" and number),
            "capital": capital,
            "capital_for_name": capital * (wanted == "name"),
            "digit_for_name": float(wanted == "name" and digit),
            "participle_edge": sum(bool(_PARTICIPLE.search(self.folded[row])) for row in (inside[0], inside[-1])),
            "length": len(inside) ** 2 / 10,
        }


def _question_word(question: str, wanted: Expectation) -> list[Word]:
    return [word for word in split_words(question) if word.end == wanted.asking_end]


def _content_runs(sentence: str) -> list[list[Word]]:
    """Return the maximal runs of words that are no stop words and that nothing but space or hyphen separates."""
    runs: list[list[Word]] = [[]]
    for word in split_words(sentence):
        if runs[-1] and not _INSIDE_RUN.fullmatch(sentence, runs[-1][-1].end, word.start):
            runs.append([])
        if sentence[word.start : word.end].casefold() in STOP_WORDS:
            runs.append([])
        else:
            runs[-1].append(word)
    return [run for run in runs if run]
