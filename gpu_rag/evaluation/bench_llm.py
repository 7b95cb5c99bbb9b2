"""Benchmark of language model work: what the path around vLLM costs, and what the shared beginning of prompts saves.

*Select*: the stage over so many questions, prompts, token counts, parsing and checks included, against a bare `LLM.chat` with
the same messages, schemas and sampling on the same loaded model, turn and turn about; the prefix cache is emptied before each.

*Read*: ground, suffice and answer over the same questions, one after the other on one engine, as a run does it; which share
of their prompt tokens came from the prefix cache.

Floor: a model of P parameters needs at least 2 P operations for every token that is computed. The share says how much of the
machine's own bfloat16 product rate, measured here, these operations reach; on a CPU with few sequences at once it is memory
that bounds decoding, and the share is low for any engine.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.engines.generation import Completion, GenerationRequest, Message, TextGenerator
from gpu_rag.engines.llm import llm_report, open_llm
from gpu_rag.errors import ConfigError, EngineError, InputError
from gpu_rag.query import s01_demand, s03_retrieve, s04_merge, s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.questions import read_questions
from gpu_rag.query.repository import Repository
from gpu_rag.stage import run_here

_BEFORE = (s01_demand.STAGE, s03_retrieve.STAGE, s04_merge.STAGE)
_READING = (s06_ground.STAGE, s07_suffice.STAGE, s08_answer.STAGE)
_PRODUCT_SIZE = 2048
_PRODUCT_REPEATS = 8


class _Recorder:
    """A completion engine that notes what passes through it."""

    def __init__(self, engine: Any) -> None:
        self.inner = engine
        self.requests: list[GenerationRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        counts: list[int] = self.inner.count_tokens(conversations)
        return counts

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        self.requests += requests
        yield from self.inner.complete(requests)


def bench_llm(questions: Path, index: Path, config: Config, *, rows: int, repeats: int) -> dict[str, Any]:
    """Return rates of the select stage and of bare vLLM, their ratio, and the prefix cache's share in the reading stages.

    Args:
        questions: The first `rows` are used.
        index: INDEX folder.
        config: `llm.engine` must be vllm; select, ground, suffice and answer must use it.
        rows: Questions.
        repeats: Pairs of measurements; ratios are medians over pairs.

    Raises:
        ConfigError: If a stage that is measured does not use vLLM.
        EngineError: If bare vLLM gives other tokens counts than ours by more than a tenth: then the two did not do the same.
    """
    measured = (s05_select.STAGE, *_READING)
    others = [s.label for s in measured if "llm" not in s.engines_for(getattr(config, s.name))]
    if config.llm.engine != "vllm" or others:
        raise ConfigError(
            f"bench llm measures vLLM, but llm.engine is {config.llm.engine!r} and {others or 'no stage'} does without a "
            "model; give --config configs/hardware/cpu_vllm.yaml or your own"
        )
    started = time.perf_counter()
    engine: Any = open_llm(config.llm).engine
    start_seconds = time.perf_counter() - started
    recorder = _Recorder(engine)
    llm = TextGenerator(recorder, retries=config.llm.retries, temperature=config.llm.temperature, top_p=config.llm.top_p)
    engines = {"encoder": open_encoder(config.embed.encoder), "repository": Repository.open(index), "llm": llm}
    asked = read_questions(questions, rows)
    tables: dict[str, pa.Table] = {"questions": asked}
    for stage in _BEFORE:
        tables |= run_here(stage, getattr(config, stage.name), tables, **engines)
    recorder.requests.clear()

    def ours() -> tuple[int, int]:
        before = (llm.account.prompt_tokens, llm.account.completion_tokens)
        tables.update(run_here(s05_select.STAGE, config.select, tables, **engines))
        return llm.account.prompt_tokens - before[0], llm.account.completion_tokens - before[1]

    engine.reset_prefix_cache()
    ours()  # warm: grammars compiled, and the requests recorded
    requests = list(recorder.requests)
    if not requests:
        raise InputError(f"{questions}: no question has passages to select from")
    pairs = []
    for number in range(repeats):
        order: list[tuple[str, Callable[[], tuple[int, int]]]] = [
            ("ours", ours), ("bare", lambda: engine.bare_chat(requests)),
        ]  # fmt: skip
        pair = {}
        for name, run in order if number % 2 == 0 else order[::-1]:
            engine.reset_prefix_cache()
            began = time.perf_counter()
            prompt_tokens, output_tokens = run()
            pair[name] = {
                "seconds": time.perf_counter() - began, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens,
            }  # fmt: skip
        pairs.append(pair)
    return {
        "llm": llm_report(config.llm),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "start_seconds": start_seconds,
        "select": _rates(pairs, len(requests), engine),
        "read": _read(config, tables, engines, llm, engine),
    }


def _rates(pairs: list[dict[str, dict[str, float]]], num_requests: int, engine: Any) -> dict[str, Any]:
    for pair in pairs:
        if abs(pair["ours"]["output_tokens"] - pair["bare"]["output_tokens"]) > 0.1 * pair["bare"]["output_tokens"]:
            raise EngineError(f"the stage and bare vLLM did not do the same: {pair}")
    rates = {
        f"{name}_{kind}_per_s": median(pair[name][tokens] / pair[name]["seconds"] for pair in pairs)
        for name in ("ours", "bare")
        for kind, tokens in (("output_tokens", "output_tokens"), ("prompt_tokens", "prompt_tokens"))
    }
    ratio = median(_tokens_per_s(pair["ours"]) / _tokens_per_s(pair["bare"]) for pair in pairs)
    parameters, peak = engine.num_parameters(), _product_rate()
    share = median(_tokens_per_s(pair["ours"]) for pair in pairs) * 2 * parameters / peak
    return {
        "requests": num_requests,
        "ratio_vs_bare_chat": ratio,
        **rates,
        "parameters": parameters,
        "bfloat16_product_operations_per_s": peak,
        "share_of_product_rate": share,
        "pairs": pairs,
    }


def _tokens_per_s(measured: dict[str, float]) -> float:
    return (measured["prompt_tokens"] + measured["output_tokens"]) / measured["seconds"]


def _read(
    config: Config, tables: dict[str, pa.Table], engines: dict[str, Any], llm: TextGenerator, engine: Any
) -> dict[str, Any]:
    """Return tokens, cached tokens and seconds of the reading stages, each and together."""
    engine.reset_prefix_cache()
    report: dict[str, Any] = {}
    cached_all = prompt_all = 0
    for stage in _READING:
        before = (llm.account.prompt_tokens, llm.account.cached_tokens, llm.account.completion_tokens)
        began = time.perf_counter()
        tables |= run_here(stage, getattr(config, stage.name), tables, **engines)
        prompt = llm.account.prompt_tokens - before[0]
        cached = llm.account.cached_tokens - before[1]
        report[stage.label] = {
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "output_tokens": llm.account.completion_tokens - before[2],
            "seconds": time.perf_counter() - began,
        }
        prompt_all, cached_all = prompt_all + prompt, cached_all + cached
    replies = tables[schemas.REPLIES.name].column("state").to_pylist()
    states = {state: replies.count(state) for state in sorted(set(replies))}
    return report | {"prefix_cache_share": cached_all / prompt_all if prompt_all else None, "states": states}


def _product_rate() -> float:
    """Return the operations per second of a bfloat16 matrix product on this machine, the best of some."""
    import torch

    left = torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(_PRODUCT_REPEATS):
        began = time.perf_counter()
        torch.mm(left, left)
        best = min(best, time.perf_counter() - began)
    return float(2 * _PRODUCT_SIZE**3 / best)
