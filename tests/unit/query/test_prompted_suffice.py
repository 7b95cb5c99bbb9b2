"""Stage 07 by a language model, on scripted answers."""

from collections.abc import Callable
from math import exp, log
from typing import Any

import pytest

from gpu_rag.engines.generation import Completion
from gpu_rag.errors import ConfigError
from gpu_rag.query.s07_suffice import STAGE, SufficeConfig, suffice

DOCS = {"ada": ("Ada Byers", "Ada Byers was born in Corrow. She died in 1931."), "b": ("Corrow", "Corrow is a town.")}
QUESTION = "Where was Ada Byers born?"


@pytest.fixture
def run(make_repository: Any, scripted: Any, prompted_work: Any, annotation: Any, encoder: Any) -> Callable[..., Any]:
    def decide(
        reply: Any = None, *, method: str = "llm", llm: Any = None, script: Any = None, open_: bool = False, **more: Any
    ) -> Any:
        repository = make_repository(DOCS)
        generator, engine = scripted(reply, **(script or {}))
        found = [[] if open_ else [annotation(repository, "ada", "born", value="Corrow", score=0.9)]]
        work = prompted_work(repository, [QUESTION], annotations=found, **more)
        config = SufficeConfig(method=method, llm=llm or {}, threshold=-10.0)  # type: ignore[arg-type]
        engines = {"llm": generator} if method == "llm" else {}
        (row,) = suffice(work, config=config, repository=repository, encoder=encoder, **engines).to_pylist()
        assert method != "llm" or list(row) == STAGE.result_schema.names
        return row, engine

    return decide


def verdict(yes: float, no: float, likelihood: float | None = -12.0, tokens: int = 6) -> Callable[[Any], Completion]:
    def reply(request: Any) -> Completion:
        if request.span is not None:
            return Completion(request.id, "", "length", span_logprob=likelihood, span_tokens=tokens)
        return Completion(request.id, "yes" if yes > no else "no", choice_logprobs={"yes": yes, "no": no})

    return reply


def features(row: dict[str, Any]) -> dict[str, float]:
    return {feature["name"]: feature["value"] for feature in row["sufficiency"]["features"]}


def test_yes_is_one_more_summand_of_the_score_and_both_signals_are_features(run: Any) -> None:
    without, _ = run(method="features")
    row, _ = run(verdict(-0.2, -1.7))
    assert (row["state"], row["reason"], row["llm_calls"]) == ("ok", "", 2)
    assert row["sufficiency"]["sufficient"]
    assert row["sufficiency"]["score"] == pytest.approx(without["sufficiency"]["score"] + 1.5, abs=1e-5)
    assert features(row)["llm_yes"] == pytest.approx(log(exp(-0.2) / (exp(-0.2) + exp(-1.7))), abs=1e-6)
    assert features(row)["question_likelihood"] == pytest.approx(-2.0)
    assert {name: features(row)[name] for name in features(without)} == features(without)


def test_the_summand_is_clipped_like_the_others(run: Any) -> None:
    without, _ = run(method="features")
    row, _ = run(verdict(0.0, float("-inf")))
    assert row["sufficiency"]["score"] == pytest.approx(without["sufficiency"]["score"] + 2.0, abs=1e-5)
    assert features(row)["llm_yes"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("yes", "no"), [(-1.7, -0.2), (-0.7, -0.7)])
def test_what_is_not_likelier_yes_than_no_is_below_the_threshold(run: Any, yes: float, no: float) -> None:
    row, _ = run(verdict(yes, no))
    assert not row["sufficiency"]["sufficient"]
    assert row["sufficiency"]["reason"] == "below_threshold"


def test_an_open_demand_is_the_reason_whatever_the_model_says(run: Any) -> None:
    row, _ = run(verdict(0.0, -9.0), open_=True)
    assert (row["sufficiency"]["reason"], row["sufficiency"]["open_demands"]) == ("open_demand", ["D1"])


def test_nothing_selected_is_no_evidence_and_asks_nothing(run: Any) -> None:
    row, engine = run(select=0)
    assert (row["state"], row["sufficiency"]["reason"], row["llm_calls"], engine.sent) == ("ok", "no_evidence", 0, [])


def test_a_choice_without_probabilities_counts_as_sure(run: Any) -> None:
    without, _ = run(method="features")
    for word, summand in (("yes", 2.0), ("no", -2.0)):
        row, _ = run(lambda request, word=word: Completion(request.id, word))
        assert row["sufficiency"]["score"] == pytest.approx(without["sufficiency"]["score"] + summand, abs=1e-5)
        assert row["sufficiency"]["sufficient"] == (word == "yes")
        assert "llm_yes" not in features(row)


def test_the_question_is_scored_after_the_passage_of_the_best_annotation(run: Any) -> None:
    _, engine = run(verdict(0.0, -1.0))
    (request,) = [request for request in engine.sent if request.span is not None]
    text = request.messages[request.span.message].content
    assert text[request.span.start : request.span.end] == QUESTION
    assert text.index("She died in 1931.") < request.span.start
    assert "Corrow is a town" not in text
    assert (request.sampling.max_tokens, request.schema, request.choices) == (1, None, ())


@pytest.mark.parametrize(
    "scored",
    [
        Completion("0 likelihood", "", "length", span_logprob=None),
        Completion("0 likelihood", "", "error", "cannot"),
        Completion("0 likelihood", "", "too_long", "4097 tokens"),
    ],
)
def test_a_likelihood_that_cannot_be_had_is_a_missing_feature(run: Any, scored: Completion) -> None:
    row, _ = run(lambda request: scored if request.span else verdict(0.0, -1.0)(request))
    assert row["state"] == "ok"
    assert "question_likelihood" not in features(row)
    assert ("question not scored" in row["reason"]) == (scored.finish_reason != "length")


def test_the_likelihood_can_be_switched_off(run: Any) -> None:
    row, engine = run(verdict(0.0, -1.0), llm={"likelihood": False})
    assert (row["llm_calls"], len(engine.sent)) == (1, 1)
    assert "question_likelihood" not in features(row)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Completion("0", "perhaps"), "invalid"),
        (Completion("0", "", "length"), "truncated"),
        (Completion("0", "", "error", "429"), "error"),
        (Completion("0", "", "content_filter"), "declined"),
        (Completion("0", "", "pending"), "pending"),
    ],
)
def test_a_failed_answer_is_the_row_s_state_and_no_refusal(run: Any, answer: Completion, state: str) -> None:
    row, _ = run(lambda request: verdict(0.0, -1.0)(request) if request.span else answer)
    assert (row["state"], row["sufficiency"]) == (state, None)
    assert row["llm_calls"] == 2


def test_a_pending_likelihood_keeps_the_row_pending(run: Any) -> None:
    row, _ = run(lambda request: Completion(request.id, "", "pending") if request.span else verdict(0.0, -1.0)(request))
    assert row["state"] == "pending"


def test_a_likelihood_prompt_without_the_question_at_its_end_is_refused(run: Any) -> None:
    with pytest.raises(ConfigError, match="must end with the question"):
        run(llm={"likelihood_prompt": "{# user #}\n{{ passage }}"})
