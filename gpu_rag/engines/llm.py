"""The language model of a run: its config, its identity for work keys, and how a worker opens it.

One model serves all stages of a run that ask one. What decides answers (engine, model files, context, sampling) is its
identity; where it runs and how fast (address, concurrency, memory, deadlines) is not.
"""

import importlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gpu_rag.engines.generation import Account, CompletionEngine, GenerationRequest, Message, TextGenerator
from gpu_rag.errors import ConfigError, EngineStartError
from gpu_rag.ids import canonical_json, content_hash

BUNDLED_LLM = "smollm2"
_ENGINES = {
    "vllm": ("gpu_rag.engines.llm_vllm", "VllmEngine"),
    "openai": ("gpu_rag.engines.llm_openai", "OpenAIEngine"),
    "ray-llm": ("gpu_rag.engines.llm_ray", "RayLlmEngine"),
    "batch-file": ("gpu_rag.engines.llm_batch_file", "BatchFileEngine"),
    "replay": ("gpu_rag.engines.llm_replay", "ReplayEngine"),
    "scripted": ("gpu_rag.engines.llm_scripted", "ScriptedEngine"),
}
_log = logging.getLogger(__name__)
_PROBED = ("vllm", "openai", "ray-llm", "scripted")
_PROBE_TOKENS = 32
_NO_ENGINE = "a stage asks for a language model, but llm.engine is none; choose one with --config or --set"
EngineName = Literal["none", "vllm", "openai", "ray-llm", "batch-file", "replay", "scripted"]


class ScriptedConfig(BaseModel):
    """What the `scripted` engine does besides answering; for tests, and in no fingerprint.

    Attributes:
        faults: Share of requests, by their content, that: `raise` (the call raises), `hang` (it never returns), `truncate`,
            `garbage` (no JSON), `die` (the process ends), `decline`, `too_long`, `error` (of this request alone).
        start: What happens when the engine opens.
        seconds: Time that each request takes.
        salt: Another one picks other requests.
        shuffle: Answer out of order.
        max_context_tokens: Tokens, of four characters each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    faults: dict[Literal["raise", "hang", "truncate", "garbage", "die", "decline", "too_long", "error"], float] = {}
    start: Literal["ok", "raise", "hang"] = "ok"
    seconds: NonNegativeFloat = 0.0
    salt: str = "e"
    shuffle: bool = True
    max_context_tokens: PositiveInt = 32768


class LlmConfig(BaseModel):
    """Which language model, and how it is run.

    Attributes:
        engine: `vllm` in the workers; `openai`: any server with its API; `ray-llm`: vLLM through `ray.data.llm`; `batch-file`:
            OpenAI Batch JSONL written out, answers read back; `replay`: answers kept in the work cache of an earlier INDEX or
            RUN folder; `scripted`: no model, for tests; `none`: a stage that asks for a model is refused.
        model: `smollm2` (bundled, for tests and demos), a folder, or the name that a server knows.
        revision: Anything that tells apart what the name does not, such as a server's model version.
        tokenizer: Folder that `openai` and `batch-file` count tokens with; None: the server's own /tokenize if it has one,
            else a cautious estimate from characters.
        dtype: Of weights and products, for vLLM.
        max_context_tokens: Prompt and output of one request; at most the model's own.
        max_num_seqs: Requests in work at once.
        gpu_memory_share: Of one GPU's memory that vLLM takes; the rest is for the encoder.
        kv_cache_gib: KV cache on a CPU.
        temperature: 0 takes the likeliest token.
        top_p: Share of probability mass that is drawn from.
        seed: The run's; each request's follows from it and the request's content.
        retries: How often a cut output (with twice the budget) or an invalid one (with another seed) is asked for again.
        grammar: Constrain outputs; off only to measure what it is worth.
        base_url: Of the server, such as http://127.0.0.1:8000/v1.
        api_key_env: Environment variable that holds the key.
        concurrency: Requests that are with the server at once.
        request_seconds: Deadline of one request to the server.
        api: Fields that requests to `openai` and `batch-file` may have: vLLM's own, or only what every server knows. auto: what
            the server says it is; for `batch-file` vLLM's.
        prompt_tokens_per_second: What one GPU is taken to read, for `estimate` alone; None: it prints no hours.
        output_tokens_per_second: What one GPU is taken to write, likewise.
        folder: `batch-file`: where request files go and answers are looked for; `replay`: the earlier INDEX or RUN folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    engine: EngineName = "none"
    model: str = BUNDLED_LLM
    revision: str = ""
    tokenizer: str | None = None
    dtype: str = "bfloat16"
    max_context_tokens: PositiveInt = 8192
    max_num_seqs: PositiveInt = 256
    gpu_memory_share: float = Field(default=0.8, gt=0, le=0.95)
    kv_cache_gib: PositiveInt = 2
    temperature: NonNegativeFloat = 0.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: NonNegativeInt = 0
    retries: NonNegativeInt = 1
    grammar: bool = True
    base_url: str = "http://127.0.0.1:8000/v1"
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: PositiveInt = 64
    request_seconds: PositiveFloat = 600.0
    prompt_tokens_per_second: PositiveFloat | None = None
    output_tokens_per_second: PositiveFloat | None = None
    folder: str | None = None
    api: Literal["auto", "vllm", "openai"] = "auto"
    scripted: ScriptedConfig = ScriptedConfig()

    @property
    def batch_folder(self) -> Path | None:
        """Where requests go that a batch service is to answer; None for engines that answer themselves."""
        return Path(self.folder) if self.engine == "batch-file" and self.folder is not None else None


def open_llm(config: LlmConfig) -> TextGenerator:
    """Return the generator of a run's language model; loads it, and sees that its grammar is active.

    Raises:
        EngineStartError: If outputs are not constrained.
        ConfigError: If no engine is chosen, or the model or a folder is missing.
        MissingDependencyError: If the engine's library is not installed.
    """
    engine = _open_engine(config)
    generator = TextGenerator(
        engine, retries=config.retries, temperature=config.temperature, top_p=config.top_p, seed=config.seed
    )
    if config.grammar and config.engine in _PROBED:
        _probe_grammar(generator)
    return generator


def llm_identity(config: LlmConfig) -> str:
    """Return what stands for the model in fingerprints, found without loading it.

    For `replay` that is the content of the recording: its work is kept apart from that of the run it replays.
    """
    answers = {"max_context_tokens", "dtype", "temperature", "top_p", "seed", "retries", "grammar", "api"}
    settings = canonical_json(config.model_dump(mode="json", include=answers))
    return content_hash("llm", config.engine, _model_identity(config), settings)


def llm_report(config: LlmConfig) -> dict[str, Any]:
    """Return what a report says of the model: its name and how it draws."""
    return config.model_dump(mode="json", include={"engine", "model", "revision", "temperature", "top_p", "seed", "grammar"})


def report_answers(config: LlmConfig) -> None:
    """Warn of what is wrong with the answer files of a batch service; workers, which read them too, cannot be heard."""
    if config.batch_folder is not None:
        from gpu_rag.engines.llm_batch_file import read_answers

        for problem in read_answers(config.batch_folder)[1]:
            _log.warning("%s/answers: %s", config.folder, problem)


def _model_identity(config: LlmConfig) -> str:
    if config.engine in ("vllm", "ray-llm"):
        from gpu_rag.engines.llm_files import model_identity

        return model_identity(config.model)
    if config.engine == "replay":
        from gpu_rag.engines.llm_replay import recording_identity

        return recording_identity(config.folder)
    if config.engine == "none":
        raise ConfigError(_NO_ENGINE)
    return f"{config.model}@{config.revision}"


def _open_engine(config: LlmConfig) -> CompletionEngine:
    if config.engine == "none":
        raise ConfigError(_NO_ENGINE)
    module, name = _ENGINES[config.engine]
    engine: CompletionEngine = getattr(importlib.import_module(module), name)(config)
    return engine


def _probe_grammar(generator: TextGenerator) -> None:
    """Ask three things that a model gets right only where outputs are constrained.

    Raises:
        EngineStartError: If an output is not as constrained, saying what came.
    """
    schema = {
        "type": "object",
        "properties": {"code": {"enum": ["zq-17", "zq-18"]}},
        "required": ["code"],
        "additionalProperties": False,
    }
    messages = (Message("user", "What is the capital of France? Answer in one plain sentence."),)
    sampling = generator.sampling(_PROBE_TOKENS, "probe")
    requests = [GenerationRequest(f"schema {row}", messages, replace(sampling, seed=row), schema=schema) for row in range(2)]
    requests.append(GenerationRequest("choices", messages, sampling, choices=("zq-17", "zq-18")))
    for result in generator.generate(requests).values():
        if not result.ok:
            wrong = "'s grammar is not active" if result.state in ("invalid", "truncated") else " does not answer"
            came = result.completion.text[:80]
            raise EngineStartError(f"the engine{wrong}: {result.state}, {result.reason}; it wrote {came!r}")
    generator.account = Account()


__all__ = ["BUNDLED_LLM", "LlmConfig", "ScriptedConfig", "llm_identity", "llm_report", "open_llm", "report_answers"]
