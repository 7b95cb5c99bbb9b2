import json
from pathlib import Path

import numpy as np
import pytest

from gpu_rag.engines.lexical import LexicalIndex, words
from gpu_rag.spans import source_text


@pytest.mark.parametrize("texts", [[], ["", "", ""], ["!!", " \n", "a"]])
def test_corpus_without_words_gives_zero_scores_and_no_error(texts):
    scores = LexicalIndex(texts).scores(["any words", ""])
    assert scores.shape == (2, len(texts))
    assert scores.dtype == np.float32
    assert not scores.any()


def test_every_text_with_the_query_word_scores_above_zero():
    scores = LexicalIndex(["", "apple pie", "apple tart", "pear"]).scores(["apple"])[0]
    assert scores[1] > 0
    assert scores[2] > 0
    assert list(scores[[0, 3]]) == [0, 0]


def test_one_word_in_every_text_still_scores():
    assert (LexicalIndex(["apple", "apple"]).scores(["apple"]) > 0).all()


def test_stems_match_and_stop_words_do_not_count():
    index = LexicalIndex(["He publishes journals", "the and of"])
    assert index.scores(["published journal"])[0, 0] > 0
    assert not index.scores(["the and of"]).any()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("\u6771\u4eac\u30bf\u30ef\u30fc\u306f\u65e5\u672c\u306e\u5854", "\u6771\u4eac\u30bf\u30ef\u30fc"),  # Japanese
        ("\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd", "\u4e2d\u56fd"),  # Chinese
        (
            "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e21\u0e2b\u0e32\u0e19\u0e04\u0e23",
            "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e",
        ),  # Thai
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e",
            "\u0939\u093f\u0928\u094d\u0926\u0940",
        ),  # Hindi
        (
            "\u041c\u043e\u0441\u043a\u0432\u0430 \u0441\u0442\u043e\u043b\u0438\u0446\u0430",
            "\u043c\u043e\u0441\u043a\u0432\u0430",
        ),  # Russian
        (
            "\u0627\u0644\u0642\u0627\u0647\u0631\u0629 \u0639\u0627\u0635\u0645\u0629",
            "\u0627\u0644\u0642\u0627\u0647\u0631\u0629",
        ),  # Arabic
        ("Jos\u00e9 lived here", "Jose\u0301"),  # composed and decomposed
    ],
)
def test_words_of_every_script_are_found(text, query):
    scores = LexicalIndex([text, "nothing of it"]).scores([query])[0]
    assert scores[0] > 0
    assert scores[1] == 0


def test_words_keep_marks_and_cut_unspaced_scripts_in_pairs():
    assert words("\u0939\u093f\u0928\u094d\u0926\u0940") == ["\u0939\u093f\u0928\u094d\u0926\u0940"]
    assert words("\u65e5\u672c\u8a9e ok") == ["\u65e5\u672c", "\u672c\u8a9e", "ok"]
    assert words("\u706b") == ["\u706b"]
    assert words("a bc") == ["bc"]


def test_scores_follow_the_formula_of_lucene():
    texts = ["apple pie", "apple apple tart cream", "pear"]
    scores = LexicalIndex(texts, k1=1.5, b=0.75).scores(["apple"])[0]
    idf = np.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    mean = (2 + 4 + 1) / 3
    expected = [idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * length / mean)) for tf, length in ((1, 2), (2, 4))]
    np.testing.assert_allclose(scores[:2], expected, rtol=1e-5)


def test_query_scores_alone_as_in_a_batch():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.integers(0, 50, 12)) for _ in range(40)]
    queries = [" ".join(f"w{n}" for n in rng.integers(0, 60, 4)) for _ in range(100)]
    index = LexicalIndex(texts)
    batch = index.scores(queries)
    assert all(np.array_equal(index.scores([query])[0], row) for query, row in zip(queries, batch, strict=True))


def test_recall_on_musique_is_that_of_the_measured_baseline(data_root: Path):
    folder = data_root / "musique_train100"
    corpus, questions = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("corpus.jsonl", "questions.jsonl")
    )
    scores = LexicalIndex([source_text(row["title"], row["text"]) for row in corpus]).scores(
        [row["question"] for row in questions]
    )
    recalls = []
    for row, question in zip(scores, questions, strict=True):
        gold = set(question["supporting_doc_ids"])
        top = {corpus[place]["doc_id"] for place in np.argsort(-row, kind="stable")[:5]}
        recalls.append(len(gold & top) / len(gold))
    assert np.mean(recalls) == pytest.approx(0.4983, abs=0.005)
