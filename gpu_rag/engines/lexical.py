"""BM25 over texts, exact and by full score row.

Words are runs of letters, digits and combining marks in any script; scripts without spaces between words (Chinese,
Japanese, Thai, ...) are cut into overlapping pairs of characters, so that their texts can be found too. English words
are stemmed and English stop words dropped; words of other scripts pass through both unchanged.

Source: Robertson and Zaragoza 2009; bm25s (Lu 2024, arXiv:2407.03618), method "lucene".
"""

import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_rag.engines.require import require

_NO_SPACES = (
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"  # CJK
)
_LAST_MARK = 0x1EFFF  # beyond lie variation selectors only, which NFKC text and words do without
_ASCII_WORD = re.compile(r"\w\w+", re.ASCII)


class LexicalIndex:
    """BM25 scores of a fixed list of texts."""

    def __init__(self, texts: Sequence[str], *, k1: float = 1.5, b: float = 0.75) -> None:
        """Index the texts; a text without a word scores 0 for every query."""
        self.num_texts = len(texts)
        self._stems: dict[str, str | None] = {}
        documents = [self._tokens(text) for text in texts]
        terms = sorted({term for document in documents for term in document})
        self._vocabulary = {term: row for row, term in enumerate(terms)}
        counts = Counter(term for document in documents for term in sorted(set(document)))
        self._document_frequency = np.array([counts[term] for term in terms], dtype=np.int64)
        self._bm25: Any = None
        if terms:  # bm25s divides by the mean length, which is 0 if there is no word at all
            ids = [[self._vocabulary[term] for term in document] for document in documents]
            self._bm25 = require("bm25s", extra="cpu").BM25(k1=k1, b=b, method="lucene")
            logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import asks for DEBUG
            self._bm25.index((ids, self._vocabulary), create_empty_token=False, show_progress=False)

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """Return BM25 scores, float32 (B, N), at least 0; 0 where query and text share no word."""
        scores = np.zeros((len(queries), self.num_texts), dtype=np.float32)
        for row, query in enumerate(queries):
            ids = [self._vocabulary[term] for term in self._tokens(query) if term in self._vocabulary]
            if ids:
                scores[row] = self._bm25.get_scores_from_ids(np.array(ids, dtype=np.int64))
        return scores

    def idf(self, stems: Sequence[str]) -> np.ndarray:
        """Return ln(1 + (N - df + 0.5) / (df + 0.5)) of each stem, float32 (n,); df is 0 for a stem of no text."""
        rows = [self._vocabulary.get(stem) for stem in stems]
        frequency = np.array([0 if row is None else self._document_frequency[row] for row in rows], dtype=np.float64)
        return np.log1p((self.num_texts - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)

    def _tokens(self, text: str) -> list[str]:
        """Return the stems of a text's words, stop words left out; each distinct word is stemmed once."""
        found = words(text)
        new = sorted({word for word in found if word not in self._stems})
        if new:
            stop_words = require("bm25s.stopwords", extra="cpu").STOPWORDS_EN
            stems = _stemmer().stemWords(new)
            self._stems.update((w, None if w in stop_words else s) for w, s in zip(new, stems, strict=True))
        return [stem for word in found if (stem := self._stems[word]) is not None]


def words(text: str) -> list[str]:
    """Return the words of a text in order, case folded: at least two characters, or one of a script without spaces."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    found: list[str] = []
    for run in _any_word().finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = run.group()
        if run.lastgroup == "unspaced" and len(word) > 2:
            found.extend(word[at : at + 2] for at in range(len(word) - 1))
        else:
            found.append(word)
    return found


@functools.cache
def _any_word() -> re.Pattern[str]:
    """Return the pattern of words in any script; `re` knows no class of combining marks, so it is spelled out here."""
    ranges: list[list[int]] = []
    for code in range(0x300, _LAST_MARK + 1):
        if unicodedata.category(chr(code)).startswith("M"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    return re.compile(rf"(?P<unspaced>[{_NO_SPACES}]+)|(?P<spaced>(?:(?![{_NO_SPACES}])[\w{marks}]){{2,}})")


@functools.cache
def _stemmer():  # type: ignore[no-untyped-def]  # PyStemmer ships no types
    return require("Stemmer", extra="cpu").Stemmer("english")
