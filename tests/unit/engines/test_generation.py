"""The path around an engine: budgets, joining by id, checks, retries, accounts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from gpu_rag.engines.generation import Completion, GenerationRequest, Message, Sampling, TextGenerator
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_scripted import Reply, ScriptedEngine, tokens_of
from gpu_rag.engines.usage import usage_columns
from gpu_rag.errors import EngineError, InputError

SCHEMA = {
    "type": "object", "properties": {"word": {"type": "string", "maxLength": 20}}, "required": ["word"],
    "additionalProperties": False,
}  # fmt: skip


def generator(reply: Reply | None = None, retries: int = 1, **script: Any) -> TextGenerator:
    config = LlmConfig.model_validate({"engine": "scripted", "scripted": script})
    return TextGenerator(ScriptedEngine(config, reply), retries=retries)


def request(name: str, text: str = "", max_tokens: int = 16, **more: Any) -> GenerationRequest:
    return GenerationRequest(name, (Message("user", text or name),), Sampling(max_tokens), **({"schema": SCHEMA} | more))


def sent(llm: TextGenerator) -> list[GenerationRequest]:
    assert isinstance(llm.engine, ScriptedEngine)
    return llm.engine.sent


@pytest.mark.parametrize("place", [0, 57, 99])
def test_one_prompt_too_long_fails_alone_wherever_it_stands(place: int) -> None:
    llm = generator(lambda asked: f'{{"word":"{asked.id}"}}', max_context_tokens=100)
    asked = [request(f"r{row}", "x" * 4000 if row == place else "") for row in range(100)]
    done = llm.generate(asked)
    assert done[f"r{place}"].state == "too_long"
    assert done[f"r{place}"].reason == "prompt of 1000 tokens, 84 fit beside 16 of output"
    assert {key: result.value["word"] for key, result in done.items() if result.ok} == {
        f"r{row}": f"r{row}" for row in range(100) if row != place
    }
    assert len(sent(llm)) == 99  # nothing that cannot fit is sent


@pytest.mark.parametrize(("tokens", "state"), [(83, "ok"), (84, "ok"), (85, "too_long")])
def test_a_prompt_may_fill_the_context_to_the_last_token(tokens: int, state: str) -> None:
    llm = generator(max_context_tokens=100)
    assert llm.generate([request("a", "x" * 4 * tokens)])["a"].state == state


def test_an_answer_out_of_order_goes_to_the_request_of_its_id() -> None:
    llm = generator(lambda asked: f'{{"word":"{asked.id}"}}', shuffle=True)
    done = llm.generate([request(f"r{row}") for row in range(200)])
    assert [asked.id for asked in sent(llm)] != [f"r{row}" for row in range(200)]
    assert all(result.value["word"] == key for key, result in done.items())


def test_two_requests_of_one_id_are_refused() -> None:
    with pytest.raises(InputError, match="same id"):
        generator().generate([request("a", "one"), request("a", "two")])


class Answering(ScriptedEngine):
    """Answers with completions that a function makes of the requests."""

    def __init__(self, answers: Callable[[Sequence[GenerationRequest]], list[Completion]]) -> None:
        super().__init__(LlmConfig(engine="scripted"))
        self._answers = answers

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        yield from self._answers(requests)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda asked: [Completion("a", '{"word":"x"}')] * 2, "'a', which was not asked or was answered before"),
        (lambda asked: [Completion("c", '{"word":"x"}')], "'c', which was not asked"),
        (lambda asked: [Completion("a", '{"word":"x"}')], "left 1 requests without an answer, first 'b'"),
    ],
)
def test_an_engine_that_answers_twice_or_not_at_all_is_an_error(answers: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        TextGenerator(Answering(answers)).generate([request("a"), request("b")])


def cut_below(budget: int) -> Reply:
    def reply(asked: GenerationRequest) -> Completion:
        if asked.sampling.max_tokens < budget:
            return Completion(asked.id, '{"wo', "length", "", 5, asked.sampling.max_tokens)
        return Completion(asked.id, '{"word":"whole"}', "stop", "", 5, 6)

    return reply


def test_a_cut_output_is_asked_for_again_with_twice_the_budget() -> None:
    llm = generator(cut_below(30))
    result = llm.generate([request("a")])["a"]
    assert result.value == {"word": "whole"}
    assert [asked.sampling.max_tokens for asked in sent(llm)] == [16, 32]
    columns = {name: array.to_pylist()[0] for name, array in usage_columns([[result]]).items()}
    assert (columns["llm_calls"], columns["llm_invalid"], columns["tokens_retried"]) == (2, 1, 5 + 16)
    assert (
        (columns["tokens_in"], columns["tokens_out"])
        == (10, 16 + 6)
        == (llm.account.prompt_tokens, llm.account.completion_tokens)
    )
    assert [call["finish_reason"] for call in columns["calls"]] == ["length", "stop"]
    assert len({call["request"] for call in columns["calls"]}) == 2


@pytest.mark.parametrize("text", ['{"word": "ha', "", '{"word": "whole"}'])
def test_an_output_that_stays_cut_is_truncated_whatever_stands_there(text: str) -> None:
    llm = generator(lambda asked: Completion(asked.id, text, "length", "", 5, asked.sampling.max_tokens))
    result = llm.generate([request("a")])["a"]
    assert (result.state, result.value, result.reason) == ("truncated", None, "output cut at 32 tokens")


def test_a_second_try_never_leaves_the_context() -> None:
    llm = generator(cut_below(10_000), retries=5, max_context_tokens=100)
    assert llm.generate([request("a", "x" * 4 * 60)])["a"].state == "truncated"
    assert [asked.sampling.max_tokens for asked in sent(llm)] == [16, 32, 40]  # 60 + 40 = 100; another try would be the same


def test_an_invalid_output_is_asked_for_again_with_another_seed_and_the_good_ones_are_not() -> None:
    llm = generator(lambda asked: "no JSON" if asked.id == "bad" and asked.sampling.seed == 0 else '{"word":"x"}')
    done = llm.generate([request("bad"), request("good")])
    assert all(result.ok for result in done.values())
    assert sorted((asked.id, asked.sampling.seed) for asked in sent(llm)) == [("bad", 0), ("bad", 1), ("good", 0)]


@pytest.mark.parametrize(
    ("finish_reason", "state"),
    [("content_filter", "declined"), ("too_long", "too_long"), ("error", "error"), ("abort", "error"), ("pending", "pending")],
)
def test_how_an_engine_ends_a_request_is_its_state_and_a_reason_always_comes_with_it(finish_reason: str, state: str) -> None:
    llm = generator(lambda asked: Completion(asked.id, '{"word":"x"}', finish_reason, "because"))
    result = llm.generate([request("a")])["a"]
    assert (result.state, result.value, result.reason) == (state, None, "because")
    assert len(sent(llm)) == 1


def test_a_pending_request_counts_nothing_and_keeps_its_line() -> None:
    llm = generator(lambda asked: Completion(asked.id, "", "pending", line="the line", prompt_tokens=7))
    result = llm.generate([request("a")])["a"]
    assert llm.account.requests == llm.account.prompt_tokens == 0
    assert usage_columns([[result]])["calls"].to_pylist()[0][0]["text"] == "the line"


@pytest.mark.parametrize("text", ["<think>no</think> Answer: {tuple_delimiter} ### <|endoftext|>", "  kept as it is\n"])
def test_free_text_comes_back_as_it_is_whatever_marks_stand_in_it(text: str) -> None:
    assert generator(lambda asked: text).generate([request("a", schema=None)])["a"].value == text


def test_a_choice_must_be_one_of_those_offered() -> None:
    llm = generator(lambda asked: " yes\n" if asked.id == "a" else "maybe")
    done = llm.generate([request(name, schema=None, choices=("yes", "no")) for name in ("a", "b")])
    assert done["a"].value == "yes"
    assert (done["b"].state, done["b"].reason) == ("invalid", "output 'maybe' is none of 2 choices")


def test_the_key_of_a_request_follows_from_all_that_decides_its_answer_and_not_from_its_id() -> None:
    base = request("a", "text")
    assert base.key == request("b", "text").key
    others = [
        request("a", "text!"), request("a", "text", 17), request("a", "text", schema=None),
        request("a", "text", schema=None, choices=("x", "y")), request("a", "text", schema={**SCHEMA, "required": []}),
        GenerationRequest("a", (Message("system", "text"),), Sampling(16), SCHEMA),
        GenerationRequest("a", base.messages, Sampling(16, seed=1), SCHEMA),
        GenerationRequest("a", base.messages, Sampling(16, temperature=0.5), SCHEMA),
        GenerationRequest("a", base.messages, Sampling(16, top_p=0.5), SCHEMA),
    ]  # fmt: skip
    assert len({base.key, *(other.key for other in others)}) == len(others) + 1


def test_a_seed_follows_from_the_runs_seed_and_the_content() -> None:
    engine = ScriptedEngine(LlmConfig(engine="scripted"))
    seeds = {(seed, text): TextGenerator(engine, seed=seed).sampling(8, text).seed for seed in (0, 1) for text in ("a", "b")}
    assert len(set(seeds.values())) == 4
    assert seeds == {key: TextGenerator(engine, seed=key[0]).sampling(8, key[1]).seed for key in seeds}


def test_what_an_engine_spent_is_the_sum_over_its_requests() -> None:
    llm = generator(lambda asked: '{"word":"four"}')
    done = llm.generate([request(f"r{row}", "x" * 40) for row in range(10)])
    assert (llm.account.requests, llm.account.prompt_tokens) == (10, 100)
    assert llm.account.completion_tokens == 10 * tokens_of('{"word":"four"}')
    columns = usage_columns([[result] for result in done.values()])
    assert sum(columns["tokens_in"].to_pylist()) == llm.account.prompt_tokens
