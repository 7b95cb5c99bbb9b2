"""What a plan for GPUs may ask for."""

import pytest

from gpu_rag.config import asks_llm, llm_identities, load_config
from gpu_rag.errors import ConfigError
from gpu_rag.query.run import QUERY

LLM = ("answer.method=llm", "llm.engine=vllm", "llm.model=smollm2")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["run.gpus_per_worker=0.5", "llm.gpu_memory_share=0.8", "embed.encoder.device=cpu"], "2 workers on a GPU.*1.60 of"),
        (["run.gpus_per_worker=1", "llm.gpu_memory_share=0.95", "embed.encoder.device=cuda"], "1 workers on a GPU.*1.05 of"),
        (["run.gpus_per_worker=0.5", "llm.gpu_memory_share=0.45", "embed.encoder.device=cuda"], "1.10 of its memory"),
    ],
)
def test_engines_that_ask_for_more_than_a_gpu_has_are_refused_before_the_start(settings: list[str], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        llm_identities(load_config(settings=[*LLM, *settings]), QUERY)


def test_a_plan_that_fits_and_stages_that_ask_nothing_are_let_through() -> None:
    scripted = ["answer.method=llm", "llm.engine=scripted", "run.gpus_per_worker=1", "llm.gpu_memory_share=0.95"]
    assert set(llm_identities(load_config(settings=scripted), QUERY)) == {"llm"}
    too_much = load_config(settings=["llm.engine=vllm", "run.gpus_per_worker=0.5"])
    assert not asks_llm(too_much, QUERY)
    assert llm_identities(too_much, QUERY) == {}


def test_a_stage_that_asks_without_an_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"llm\.engine is none"):
        llm_identities(load_config(settings=["answer.method=llm"]), QUERY)
