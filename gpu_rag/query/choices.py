"""Questions that offer their answers: "A or B", and yes or no; decided by simple rules on the cited sentences."""

import re
from collections.abc import Sequence

from gpu_rag.names import spot_names
from gpu_rag.query.text_features import content_words, is_negated, split_words

_OR = re.compile(r"\bor\b", re.IGNORECASE)
_EARLIEST = re.compile(r"\b(?:first|earlier|earliest|older|oldest|before|sooner)\b", re.IGNORECASE)
_LATEST = re.compile(r"\b(?:later|latest|younger|youngest|last|newer|newest|more recent(?:ly)?)\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(1\d{3}|20\d{2})\b")


def options(question: str) -> tuple[str, str] | None:
    """Return the two names that stand around an "or", None if the question offers no such choice."""
    joint = _OR.search(question)
    if joint is None:
        return None
    names = spot_names(question)
    before = [name for name in names if name.end <= joint.start()]
    after = [name for name in names if name.start >= joint.end()]
    if not before or not after:
        return None
    left = max(before, key=lambda name: (name.end, name.end - name.start))
    right = min(after, key=lambda name: (name.start, name.start - name.end))
    return left.name, right.name


def choose(question: str, offered: tuple[str, str], sentences: Sequence[str], scores: Sequence[float]) -> tuple[str, list[int]]:
    """Return the chosen option and the sentences behind the choice.

    "First" and "older" take the option with the earliest year in a sentence about it, "later" and "younger" the
    latest one; any other question the option whose sentence matches best.

    Args:
        question: Asking text.
        offered: Two names.
        sentences: After their titles, the best first.
        scores: Match of each sentence.
    """
    about = [[row for row, sentence in enumerate(sentences) if _is_about(sentence, name)] for name in offered]
    dated = [[(int(year), row) for row in rows for year in _YEAR.findall(sentences[row])[:1]] for rows in about]
    earliest, latest = bool(_EARLIEST.search(question)), bool(_LATEST.search(question))
    if earliest != latest and all(dated):
        first = [min(pairs) for pairs in dated]
        chosen = int((first[1][0] < first[0][0]) == earliest)
        return offered[chosen], sorted({row for _, row in first})
    best = [max((scores[row] for row in rows), default=float("-inf")) for rows in about]
    return offered[int(best[1] > best[0])], sorted({rows[0] for rows in about if rows}) or [0]


def yes_or_no(question: str, sentence: str) -> str:
    """Return "no" where exactly one of question and sentence is negated, else "yes"."""
    return "no" if is_negated(question) != is_negated(sentence) else "yes"


def _is_about(sentence: str, name: str) -> bool:
    stems = {word.stem for word in split_words(sentence)}
    return all(word.stem in stems for word in content_words(name))
