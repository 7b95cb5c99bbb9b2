"""Sentences of the selected passages, and how well they match a question or demand by their word vectors.

Late interaction: every content word of the asking text looks for its most similar token in a sentence, and the similarities
are summed by the words' share of idf. A word's vector is the mean of its tokens' last-layer vectors.

Source: Khattab and Zaharia 2020, arXiv:2004.12832 (MaxSim); idf shares as weights measured better than plain sums here.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gpu_rag.engines.encoder import Encoder, TokenVectors
from gpu_rag.query.repository import Repository
from gpu_rag.query.text_features import Word, content_words


def sentence_rows(repository: Repository, chunk_ids: Iterable[str]) -> np.ndarray:
    """Return the rows of all sentences of the chunks, int64, chunk by chunk in the order given."""
    indptr = repository.sentence_indptr
    chunks = [repository.chunk_index[chunk_id] for chunk_id in chunk_ids]
    parts = [np.arange(indptr[chunk], indptr[chunk + 1]) for chunk in chunks]
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)


def titled(repository: Repository, rows: Iterable[int]) -> list[str]:
    """Return sentences as they were embedded: after their title, which says what their pronouns stand for."""
    texts = []
    for row in rows:
        title = repository.chunk_titles[repository.sentence_chunks[row]]
        text = repository.sentence_texts[row]
        texts.append(f"{title}: {text}" if title else text)
    return texts


def idf_shares(repository: Repository, words: Sequence[Word]) -> np.ndarray:
    """Return the share of each word in the sum of the words' idf, float32 (n,), summing to 1."""
    idf = repository.lexical.chunks.idf([word.stem for word in words])
    return np.asarray(idf / idf.sum(), dtype=np.float32)


class TokenBank:
    """Token vectors of many texts, each text encoded once."""

    def __init__(self, encoder: Encoder, texts: Iterable[str]) -> None:
        """Encode the distinct texts in one batch."""
        distinct = list(dict.fromkeys(texts))
        self._vectors = dict(zip(distinct, encoder.encode_tokens(distinct), strict=True))

    def late_interaction(self, asking: str, sentences: Sequence[str], repository: Repository) -> np.ndarray:
        """Return the match of the asking text with each sentence, float32 (n,), at most 1.

        One product per asking text, whose shape no other text decides; 0 for a sentence without tokens.
        """
        words = content_words(asking)
        scores = np.zeros(len(sentences), dtype=np.float32)
        tokens = [self._vectors[sentence].vectors for sentence in sentences]
        filled = [index for index, vectors in enumerate(tokens) if len(vectors)]
        wanted = _word_vectors(self._vectors[asking], words)
        if words and filled and len(wanted):
            similarity = wanted @ np.concatenate([tokens[index] for index in filled]).T
            starts = np.cumsum([0, *(len(tokens[index]) for index in filled[:-1])])
            best = np.maximum.reduceat(similarity, starts, axis=1)
            scores[filled] = idf_shares(repository, words) @ best
        return scores


def _word_vectors(tokens: TokenVectors, words: Sequence[Word]) -> np.ndarray:
    """Return the unit mean vector of each word's tokens, float32 (n, dim); zero for a word beyond the encoder's limit."""
    vectors = np.zeros((len(words), tokens.vectors.shape[1]), dtype=np.float32)
    for row, word in enumerate(words):
        inside = (tokens.starts < word.end) & (tokens.ends > word.start)
        if inside.any():
            mean = tokens.vectors[inside].mean(axis=0)
            vectors[row] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return vectors
