"""Short answers without a model: how well each candidate span of some sentences fits a question.

The rank of a candidate is a sum of features with fixed weights. They say whether the candidate is of the kind that the
question asks for, where it stands (near the question's words; after "in" or "by"; inside "is an English actor and
director"), and how well its sentence matches. The weights are a maximum-likelihood fit with an L2 penalty to four sets
together (SQuAD, PopQA, HotpotQA, single steps of MuSiQue), each counted alike, rounded. docs/log.md has the figures.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu_rag.query.answer_candidates import candidate_spans, content_runs
from gpu_rag.query.evidence import TokenBank, idf_shares, titled, unit_rows
from gpu_rag.query.expectation import Kind, expectation
from gpu_rag.query.repository import Repository
from gpu_rag.query.text_features import STOP_WORDS, content_words, split_words


class RankedSpan(NamedTuple):
    """A candidate answer: characters start to end of sentence number `sentence` of those given."""

    sentence: int
    start: int
    end: int
    score: float


_KIND_WEIGHTS: dict[tuple[Kind, str], float] = {  # (kind asked for, kind of the candidate)
    ("class", "date"): -1.1, ("class", "name"): -0.49, ("class", "number"): -1.1, ("class", "phrase"): 0.29,
    ("date", "date"): 5.7, ("date", "name"): 0.2, ("date", "number"): 1.5, ("date", "phrase"): -0.32,
    ("name", "name"): 3.2, ("name", "number"): -0.25, ("name", "phrase"): -0.56,
    ("number", "date"): -2.4, ("number", "name"): -1.5, ("number", "number"): 3.3, ("number", "phrase"): -0.3,
    ("phrase", "date"): -2.5, ("phrase", "name"): 2.1, ("phrase", "phrase"): -0.25,
    ("place", "date"): -1.8, ("place", "name"): 3.1, ("place", "number"): -0.74, ("place", "phrase"): -0.45,
}  # fmt: skip
_WEIGHTS: dict[str, float] = {
    "after_comma": -1.5, "asked_share": -0.57, "asking_vector": 2.0, "before_asked": -0.63, "after_by_for_name": 2.6,
    "capital": 0.29, "capital_for_class": -3.3, "capital_for_name": 0.73, "defined": -0.29, "defined_for_class": 1.7,
    "first_item_for_class": 0.53, "definition_item": 0.9, "definition_item_for_class": 2.1, "digit_for_name": -1.3,
    "first": 0.94, "head_vector": 3.1, "holds_head": 1.7, "leads": 0.89, "leads_for_class": 1.6,
    "words_for_date": 1.3, "words_for_count": -3.4, "length": -0.31, "match": 5.0, "after_comma_for_narrow": 2.8,
    "before_comma_for_narrow": 1.1, "pair_for_narrow": -0.56, "near": 3.2, "near_asking": 2.1, "before_of": -0.47,
    "in_parentheses": -0.39, "participle_first": -0.98, "after_preposition_for_name": -1.6,
    "after_preposition_for_place": 1.9, "after_asked_and_preposition": 1.5, "rank": -0.51, "to_run_end": 0.71,
    "to_sentence_end": 0.58, "title_share": 0.92, "after_comma_for_wide": 5.4,
    "before_comma_for_wide": -4.7,
}  # fmt: skip
_NEAR_WORDS = 6.0  # words over which nearness falls to 1/e
_ASKING_WORDS = 2.0  # likewise, within the question, from the question word on
_PREPOSITIONS = frozenset(["in", "at", "near", "from", "on", "to", "of", "by", "as", "for", "with", "into"])
_DETERMINERS = frozenset(["a", "an", "the", "his", "her", "its", "their"])
_PARTICIPLE = re.compile(r"(?:ed|ing|ly)$")
_YEARS = re.compile("(?:1\\d{3}|20\\d{2})(?:[-\u2010-\u2013](?:1\\d{3}|20\\d{2}|\\d{2}))?")
_DEFINITION = re.compile(r"\b(?:is|was|are|were|be|became)\s+(?:\w+\s+)?(?:a|an|the|one of the)\s+", re.IGNORECASE)
_DEFINITION_END = re.compile(r"\b(?:who|whom|that|which|where|when|in|at|from|for|of|with|by|born|on|to|best|known)\b|[.;(]")
_NARROW_PLACES = frozenset(["citi", "town", "villag", "birthplac", "counti"])  # stems: Waukegan, Illinois
_WIDE_PLACES = frozenset(["countri", "state", "nation", "provinc", "contin", "region"])


def rank_spans(
    question: str, rows: Sequence[int], scores: Sequence[float], bank: TokenBank, repository: Repository
) -> list[RankedSpan]:
    """Return the candidate answers of some sentences, the best first; those that only repeat the question are left out.

    Args:
        question: Asking text; it and the sentences after their titles are in `bank`.
        rows: Sentence rows of the repository, the best first.
        scores: Match of each sentence.
        bank: Token vectors.
        repository: Gives sentences, titles and the idf of words.
    """
    asked = _Question(question, bank, repository)
    wanted = asked.wanted
    ranked = []
    for number, (row, score) in enumerate(zip(rows, scores, strict=True)):
        sentence = _Sentence(asked, row, bank, repository)
        spans = sentence.candidates()
        if not spans:
            continue
        leads = float(row == repository.sentence_indptr[repository.sentence_chunks[row]])
        of_sentence = {"match": score - scores[0], "first": float(number == 0), "rank": number / 4, "leads": leads}
        of_sentence["leads_for_class"] = leads * (wanted.kind == "class")
        shared = sum(_WEIGHTS[name] * value for name, value in of_sentence.items())
        totals = shared + sentence.kind_scores() + sum(_WEIGHTS[name] * value for name, value in sentence.features().items())
        ranked += [RankedSpan(number, *span, round(float(t), 4)) for span, t in zip(spans, totals, strict=True)]
    return sorted(ranked, key=lambda span: (-span.score, span.sentence, span.start, -span.end))


class _Question:
    """A question: what it wants, its content words, their weights and vectors, and those of its question word and noun."""

    def __init__(self, text: str, bank: TokenBank, repository: Repository) -> None:
        self.wanted = expectation(text)
        words = content_words(text)
        self.stems = [word.stem for word in words]
        shares = idf_shares(repository, words)
        start = self.wanted.asking_end
        before = np.array([sum(start <= other.start < word.start for other in words) for word in words])
        beside = shares * np.exp(-before / _ASKING_WORDS)
        self.shares = np.stack([shares, beside / beside.sum()]).astype(np.float32)
        self.vectors = bank.word_vectors(text, words)
        ends = {word.end: word for word in split_words(text)}
        marked = [ends.get(end) for end in (start, self.wanted.head_end)]
        self.asking, self.head = (bank.word_vectors(text, [word] if word else []).sum(axis=0) for word in marked)


class _Sentence:
    """One sentence seen from one question: W words, C candidates that each add a word to the question's."""

    def __init__(self, question: _Question, row: int, bank: TokenBank, repository: Repository) -> None:
        self.text, self.question, self.wanted = repository.sentence_texts[row], question, question.wanted
        self.words = split_words(self.text)
        self.folded = [self.text[word.start : word.end].casefold() for word in self.words]
        self.content = np.array([word not in STOP_WORDS for word in self.folded], dtype=bool)
        self._align(row, bank, repository)
        self._choose(candidate_spans(self.text))

    def candidates(self) -> list[tuple[int, int]]:
        """Return the candidates' offsets."""
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def kind_scores(self) -> np.ndarray:
        """Return the weight of each candidate's kind, (C,)."""
        return np.array([_KIND_WEIGHTS.get((self.wanted.kind, kind), 0.0) for kind in self.kinds])

    def features(self) -> dict[str, np.ndarray]:
        """Return the features of the candidates, each (C,)."""
        return self._nearness() | self._surroundings() | self._form()

    def _align(self, row: int, bank: TokenBank, repository: Repository) -> None:
        """Find where the question's words stand, by stem or by word vector."""
        stems = self.question.stems
        title = {word.stem for word in split_words(repository.chunk_titles[repository.sentence_chunks[row]])}
        self.asked = np.array([word.stem in stems for word in self.words], dtype=bool)
        self.heads = np.array([word.stem in self.wanted.head for word in self.words], dtype=bool)
        self.in_title = np.array([word.stem in title for word in self.words], dtype=bool)
        text = titled(repository, [row])[0]
        self.vectors = bank.word_vectors(text, self.words, len(text) - len(self.text))
        similarity = self.question.vectors @ self.vectors.T
        same = np.array([[stem == word.stem for word in self.words] for stem in stems], dtype=np.float32)
        self.similarity = np.maximum(np.clip((similarity - 0.3) / 0.6, 0, 1), same.reshape(similarity.shape))

    def _choose(self, spans: dict[tuple[int, int], str]) -> None:
        """Keep the candidates that add a word to the question's, and find their first and last words."""
        offsets = np.array(list(spans), dtype=np.int64).reshape(-1, 2)
        first = np.searchsorted([word.end for word in self.words], offsets[:, 0], side="right")
        last = np.searchsorted([word.start for word in self.words], offsets[:, 1], side="left") - 1
        self.first, self.last = first, last
        kept = (first <= last) & (self._count(self.content & ~self.asked) > 0)
        self.first, self.last = first[kept], last[kept]
        self.starts, self.ends = offsets[kept, 0], offsets[kept, 1]
        self.texts = [self.text[start:end] for start, end in self.candidates()]
        kinds = [kind for kind, keep in zip(spans.values(), kept, strict=True) if keep]
        self.kinds = [_kind(kind, text) for kind, text in zip(kinds, self.texts, strict=True)]

    def _count(self, flags: np.ndarray) -> np.ndarray:
        """Return how many words of each candidate are flagged, (C,)."""
        sums = np.concatenate([[0], np.cumsum(flags)])
        return np.asarray(sums[np.maximum(self.last + 1, self.first)] - sums[self.first])

    def _nearness(self) -> dict[str, np.ndarray]:
        rows = np.arange(len(self.words))
        distance = np.maximum(np.maximum(self.first[:, None] - rows, rows - self.last[:, None]), 0)
        decay = ((distance > 0) * np.exp(-distance / _NEAR_WORDS)).astype(np.float32)
        near = (decay[:, None, :] * self.similarity).max(axis=2) @ self.question.shares.T
        sums = np.concatenate([np.zeros((1, self.vectors.shape[1]), np.float32), np.cumsum(self.vectors, axis=0)])
        mean = unit_rows(sums[self.last + 1] - sums[self.first])
        return {
            "near": near[:, 0],
            "near_asking": near[:, 1],
            "asking_vector": mean @ self.question.asking,
            "head_vector": mean @ self.question.head,
        }

    def _surroundings(self) -> dict[str, np.ndarray]:
        """What stands beside the candidates, whose words count from 1 in the padded lists."""
        before = ["", "", "", *self.folded]  # before[k + 2] is the word before word k
        asked = np.concatenate([np.zeros(3, bool), self.asked])
        following = np.concatenate([self.asked & self.content, [False]])[self.last + 1]
        determined = np.array([before[k + 2] in _DETERMINERS for k in self.first])
        at = np.where(determined, self.first + 1, self.first + 2)
        preposition = np.array([before[k] in _PREPOSITIONS for k in at])
        narrow, wide = (not places.isdisjoint(self.wanted.head) for places in (_NARROW_PLACES, _WIDE_PLACES))
        gaps = [self.text[self.words[k - 1].end : start] if k else "" for k, start in zip(self.first, self.starts, strict=True)]
        capital = np.array([text[0].isupper() for text in self.texts])
        after_comma = (
            np.array([gap == ", " for gap in gaps]) & capital & np.array([self._is_capital(k - 1) for k in self.first])
        )
        before_comma = np.array([self.text[e : e + 2] == ", " and self.text[e + 2 : e + 3].isupper() for e in self.ends])
        defined, item, first_item = self._in_definition()
        runs = content_runs(self.text, self.words)
        return {
            "after_preposition_for_place": preposition * (self.wanted.kind == "place"),
            "after_preposition_for_name": preposition * (self.wanted.kind == "name"),
            "after_by_for_name": np.array([before[k + 2] == "by" for k in self.first]) * (self.wanted.kind == "name"),
            "after_asked_and_preposition": preposition & asked[at - 1],
            "before_asked": following,
            "before_of": np.array([[*self.folded, ""][k + 1] == "of" for k in self.last]),
            "after_comma": after_comma,
            "after_comma_for_narrow": after_comma * narrow,
            "before_comma_for_narrow": before_comma * narrow,
            "pair_for_narrow": np.array([", " in text for text in self.texts]) * narrow,
            "after_comma_for_wide": after_comma * wide,
            "before_comma_for_wide": before_comma * wide,
            "defined": defined,
            "defined_for_class": defined * (self.wanted.kind == "class"),
            "definition_item": item,
            "definition_item_for_class": item * (self.wanted.kind == "class"),
            "first_item_for_class": first_item * (self.wanted.kind == "class"),
            "in_parentheses": np.array([self.text.count("(", 0, s) > self.text.count(")", 0, s) for s in self.starts]),
            "to_run_end": np.isin(self.ends, [run[-1].end for run in runs]),
            "to_sentence_end": self.ends == len(self.text.rstrip(" .!?\"'")),
            "holds_head": self.heads[self.last],
        }

    def _is_capital(self, word: int) -> bool:
        return word >= 0 and self.text[self.words[word].start].isupper()

    def _in_definition(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return whether a candidate stands after "is a", closes an item of the list there, is in its first item, (C,)."""
        found = _DEFINITION.search(self.text)
        if not found:
            nothing = np.zeros(len(self.texts), dtype=bool)
            return nothing, nothing, nothing
        stop = _DEFINITION_END.search(self.text, found.end())
        end = stop.start() if stop else len(self.text)
        inside = (self.starts >= found.end()) & (self.ends <= end)
        closes = [
            self.text[e : e + 1] in {",", ";", ".", ""} or [*self.folded, ""][k + 1] == "and" or e >= end - 1
            for e, k in zip(self.ends, self.last, strict=True)
        ]
        before = [self.text[found.end() : start] for start in self.starts]
        leading = [not re.search(r",| and ", text) for text in before]
        return inside, inside & np.array(closes), inside & np.array(leading)

    def _form(self) -> dict[str, np.ndarray]:
        kind = self.wanted.kind
        content = self._count(self.content)
        upper = np.array([self._is_capital(k) for k in range(len(self.words))])
        capital = self._count(upper & self.content) / np.maximum(content, 1)
        digit = np.array([any(character.isdigit() for character in text) for text in self.texts])
        num_words = self.last - self.first + 1
        return {
            "asked_share": self._count(self.asked & self.content) / np.maximum(content, 1),
            "title_share": self._count(self.in_title & self.content) / np.maximum(content, 1),
            "capital": capital,
            "capital_for_name": capital * (kind == "name"),
            "capital_for_class": capital * (kind == "class"),
            "digit_for_name": digit * (kind == "name"),
            "participle_first": np.array([bool(_PARTICIPLE.search(self.folded[k])) for k in self.first]),
            "length": num_words**2 / 10,
            "words_for_date": num_words / 5 * (kind == "date"),
            "words_for_count": num_words / 5 * (kind == "number" and bool(self.wanted.head)),  # how many X: no unit
        }


def _kind(kind: str, text: str) -> str:
    """Return a candidate's kind; a phrase that begins with a digit and is no span of years is a number."""
    return "number" if kind == "phrase" and not text[0].isalpha() and not _YEARS.fullmatch(text) else kind
