"""Benchmark of language model work: what the path around vLLM costs, and what the shared beginning of prompts saves.

*Select*: the stage over so many questions, prompts, token counts, parsing and checks included, against a bare `LLM.chat` with
the same messages, schemas and sampling on the same loaded model, turn and turn about; the prefix cache is emptied before each.

*Read*: ground, suffice and answer over the same questions, one after the other on one engine, as a run does it; which share
of their prompt tokens came from the prefix cache.

Floor: a model whose layers have P weights needs at least 2 P operations for every token that is computed, those of the prefix
cache aside; attention and the output head count as none. The share says how much of the machine's own bfloat16 product rate,
measured here, these operations reach.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from gpu_rag import schemas
from gpu_rag.config import Config
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.engines.generation import Account, Completion, GenerationRequest, Message, TextGenerator
from gpu_rag.engines.llm import llm_report, open_llm
from gpu_rag.engines.llm_files import model_folder, num_layer_weights
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
    drawing = config.llm
    llm = TextGenerator(
        recorder, retries=drawing.retries, temperature=drawing.temperature, top_p=drawing.top_p, seed=drawing.seed
    )
    engines = {"encoder": open_encoder(config.embed.encoder), "repository": Repository.open(index), "llm": llm}
    asked = read_questions(questions, rows)
    tables: dict[str, pa.Table] = {"questions": asked}
    for stage in _BEFORE:
        tables |= run_here(stage, getattr(config, stage.name), tables, **engines)
    recorder.requests.clear()

    def ours() -> Account:
        llm.account = Account()
        tables.update(run_here(s05_select.STAGE, config.select, tables, **engines))
        return llm.account

    engine.reset_prefix_cache()
    ours()  # warm: grammars compiled, and the requests recorded
    requests = list(recorder.requests)
    if not requests:
        raise InputError(f"{questions}: no question has passages to select from")
    runs: dict[str, Callable[[], Account]] = {"ours": ours, "bare": lambda: engine.bare_chat(requests)}
    pairs: list[dict[str, dict[str, float]]] = []
    for number in range(repeats):
        pair = {}
        for name in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
            engine.reset_prefix_cache()
            began = time.perf_counter()
            spent = runs[name]()
            pair[name] = {"seconds": time.perf_counter() - began, **asdict(spent)}
        pairs.append(pair)
    num_weights = num_layer_weights(model_folder(config.llm.model))
    return {
        "llm": llm_report(config.llm),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "start_seconds": start_seconds,
        "select": _rates(pairs, num_weights),
        "read": _read(config, tables, engines, llm, engine),
    }


def _rates(pairs: list[dict[str, dict[str, float]]], num_weights: int) -> dict[str, Any]:
    for pair in pairs:
        if abs(pair["ours"]["completion_tokens"] - pair["bare"]["completion_tokens"]) > 0.1 * pair["bare"]["completion_tokens"]:
            raise EngineError(f"the stage and bare vLLM did not do the same: {pair}")
    rates = {
        f"{name}_{kind}_per_s": median(pair[name][kind] / pair[name]["seconds"] for pair in pairs)
        for name in ("ours", "bare")
        for kind in ("completion_tokens", "prompt_tokens")
    }
    cached_per_s = (pair["ours"]["cached_tokens"] / pair["ours"]["seconds"] for pair in pairs)
    computed = median(_tokens_per_s(pair["ours"]) - cached for pair, cached in zip(pairs, cached_per_s, strict=True))
    peak = _product_rate()
    return {
        "ratio_vs_bare_chat": median(_tokens_per_s(pair["ours"]) / _tokens_per_s(pair["bare"]) for pair in pairs),
        **rates,
        "layer_weights": num_weights,
        "bfloat16_product_operations_per_s": peak,
        "share_of_product_rate": 2 * num_weights * computed / peak,
        "pairs": pairs,
    }


def _tokens_per_s(measured: dict[str, float]) -> float:
    return (measured["prompt_tokens"] + measured["completion_tokens"]) / measured["seconds"]


def _read(
    config: Config, tables: dict[str, pa.Table], engines: dict[str, Any], llm: TextGenerator, engine: Any
) -> dict[str, Any]:
    """Return what the reading stages spent, each and together."""
    engine.reset_prefix_cache()
    report: dict[str, Any] = {}
    for stage in _READING:
        llm.account = Account()
        began = time.perf_counter()
        tables |= run_here(stage, getattr(config, stage.name), tables, **engines)
        report[stage.label] = {"seconds": time.perf_counter() - began, **asdict(llm.account)}
    prompt, cached = (sum(spent[name] for spent in report.values()) for name in ("prompt_tokens", "cached_tokens"))
    replies = tables[schemas.REPLIES.name].column("state").to_pylist()
    states = {state: replies.count(state) for state in sorted(set(replies))}
    return report | {"prefix_cache_share": cached / prompt if prompt else None, "states": states}


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
