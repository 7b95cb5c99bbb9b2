"""Engine `ray-llm`: vLLM through the batch processor of `ray.data.llm`.

For comparison with `vllm`, and for whoever has tuned that processor. It builds a Ray Data pipeline for each call, so every call
loads the model again and gives no sign of life until its first answers: make shards large, and `run.silent_seconds` longer
than a load. Its actors need CPUs or GPUs beside those of the worker that calls. It passes on neither how an output ended,
which is told here from its last token, nor token scores: choices come without log-probabilities and spans are not scored.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_files import model_folder, own_context_tokens
from gpu_rag.engines.llm_prompt import ChatTokenizer, too_long
from gpu_rag.engines.llm_vllm import prepare_environment
from gpu_rag.engines.require import require
from gpu_rag.errors import EngineDeadError

_BATCH_ROWS = 64
_FAILURE = "__inference_error__"
_ENVIRONMENT = ("VLLM_", "HF_HUB_")  # of this process; Ray's workers have that of the cluster


class RayLlmEngine(CompletionEngine):
    """A model on vLLM, loaded at each call."""

    def __init__(self, config: LlmConfig) -> None:
        """Read the tokenizer; the model is loaded by `complete`.

        Raises:
            MissingDependencyError: If Ray, vLLM or the bundled model is not installed.
            ConfigError: If there is no such model, or it has no chat template.
        """
        folder = model_folder(config.model)
        self._on_gpu = prepare_environment(config)
        self._ray_llm = require("ray.data.llm", extra="cuda" if self._on_gpu else "vllm-cpu")
        self._tokenizer = ChatTokenizer(folder)
        self._config = config
        self._folder = str(folder)
        self.max_context_tokens = min(config.max_context_tokens, own_context_tokens(folder) or config.max_context_tokens)

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation, by the model's tokenizer and chat template."""
        return self._tokenizer.count(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield completions as blocks of rows are done.

        Raises:
            EngineDeadError: If the pipeline fails as a whole.
        """
        rows: list[dict[str, Any]] = []
        by_id = {request.id: request for request in requests}
        for request, ids in zip(requests, self._tokenizer.prompt_ids([r.messages for r in requests]), strict=True):
            reason = too_long(request, len(ids), self.max_context_tokens)
            if reason:
                yield Completion(request.id, finish_reason="too_long", reason=reason)
            else:
                rows.append({"id": request.id, "tokens": ids, "sampling": json.dumps(self._sampling(request))})
        if not rows:
            return
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray_data = require("ray.data", extra="cpu")
        try:
            one_block = ray_data.from_items(rows, override_num_blocks=1)  # blocks whose dicts differ do not concatenate
            for row in self._processor()(one_block).iter_rows():
                heartbeat.beat()
                yield self._completion(by_id[row["id"]], row)
        except Exception as error:  # a pipeline fails by errors of Ray, of vLLM, of Arrow; none is a row's
            raise EngineDeadError(f"ray.data.llm: {type(error).__name__}: {error}") from error

    def _processor(self) -> Any:
        config = self._ray_llm.vLLMEngineProcessorConfig(
            model_source=self._folder,
            engine_kwargs={
                "dtype": self._config.dtype,
                "max_model_len": self.max_context_tokens,
                "max_num_seqs": self._config.max_num_seqs,
                "gpu_memory_utilization": self._config.gpu_memory_share,
                "enforce_eager": not self._on_gpu,
                "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            },
            runtime_env={"env_vars": {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}},
            concurrency=1,
            batch_size=_BATCH_ROWS,
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
            should_continue_on_error=True,
            log_engine_metrics=False,
            placement_group_config=None if self._on_gpu else {"bundles": [{"CPU": 1}]},
        )
        return self._ray_llm.build_processor(config, preprocess=_prepared, postprocess=_projected)

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """Return sampling parameters; the schema is a text, since Ray Data merges the dicts of a block."""
        constraint: dict[str, Any] | None = None
        if self._config.grammar and request.schema is not None:
            constraint = {"json": json.dumps(request.schema)}
        elif self._config.grammar and request.choices:
            constraint = {"choice": list(request.choices)}
        sampling = request.sampling
        return {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "structured_outputs": constraint,
        }

    def _completion(self, request: GenerationRequest, row: Mapping[str, Any]) -> Completion:
        if row[_FAILURE]:  # such a row comes as it went in
            return Completion(request.id, finish_reason="error", reason=str(row[_FAILURE]))
        cut = row["num_generated"] >= request.sampling.max_tokens and row["last_token"] != self._tokenizer.end_token
        return Completion(
            request.id, row["text"], "length" if cut else "stop", "", int(row["num_input"]), int(row["num_generated"])
        )


def _prepared(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "tokenized_prompt": row["tokens"], "sampling_params": json.loads(row["sampling"])}


def _projected(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that are read here, all of one type in every row."""
    tokens = row.get("generated_tokens")
    return {
        "id": row["id"],
        "text": row.get("generated_text") or "",
        "num_input": row.get("num_input_tokens") or 0,
        "num_generated": row.get("num_generated_tokens") or 0,
        "last_token": int(tokens[-1]) if tokens is not None and len(tokens) else -1,
    }


__all__ = ["RayLlmEngine"]
