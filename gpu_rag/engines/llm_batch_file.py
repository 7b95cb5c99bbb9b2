"""Engine `batch-file`: requests as OpenAI Batch JSONL, answers read back from files.

    FOLDER/requests-<label>-<hash>.jsonl    written by a run that lacks answers: one line a request, by custom_id
    FOLDER/answers/*.jsonl                  put there by the user: output (and error) files of a batch service or of
                                            `python -m vllm.entrypoints.openai.run_batch -i REQUESTS -o ANSWERS`

A request's custom_id is the hash of its content, so answers of any earlier file serve again. Where a request has several
answers, one that succeeded counts before one that failed, else the first by file name and line: a request that failed is
asked again by running its line again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_rag.engines.generation import PENDING, Completion, CompletionEngine, GenerationRequest, Message
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_api import UnreadableAnswerError, answered, refused, request_body
from gpu_rag.engines.llm_files import model_folder
from gpu_rag.engines.llm_prompt import ChatTokenizer, EstimatedTokens, TokenCounter
from gpu_rag.errors import ConfigError
from gpu_rag.ids import content_hash
from gpu_rag.store import write_atomically

_URL = "/v1/chat/completions"


class Answer(NamedTuple):
    """One line of an answer file: HTTP status (0 where the service gave none) and the body, or the error instead of one."""

    status: int
    body: Any

    @property
    def succeeded(self) -> bool:
        """Whether the body is a chat completion."""
        return self.status == 200


class BatchFileEngine(CompletionEngine):
    """Completions out of answer files; what they do not answer is pending."""

    def __init__(self, config: LlmConfig) -> None:
        """Read the answers that are there.

        Raises:
            ConfigError: If no folder is named.
        """
        if config.folder is None:
            raise ConfigError("llm.engine=batch-file needs llm.folder, where request files go and answers are looked for")
        self._config = config
        self.max_context_tokens = config.max_context_tokens
        self._vllm = config.api != "openai"
        self._tokenizer = ChatTokenizer(model_folder(config.tokenizer)) if config.tokenizer is not None else None
        self._answers, self.problems = read_answers(Path(config.folder))

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        """Return the prompt tokens of each conversation: by `llm.tokenizer`, else estimated."""
        counter: TokenCounter = self._tokenizer or EstimatedTokens()
        return counter.count(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        """Yield each request's answer, or `pending` with its line of the batch file."""
        for request in requests:
            answer = self._answers.get(request.key)
            if answer is None:
                body = request_body(request, self._config, vllm=self._vllm)
                line = {"custom_id": request.key, "method": "POST", "url": _URL, "body": body}
                yield Completion(request.id, finish_reason=PENDING, reason="no answer yet", line=json.dumps(line))
            elif not answer.succeeded:
                yield refused(request, answer.status, answer.body)
            else:
                try:
                    yield answered(request, answer.body, self._tokenizer)
                except UnreadableAnswerError as error:
                    yield Completion(request.id, finish_reason="error", reason=str(error))


def write_batch(folder: Path, label: str, lines: Iterable[str]) -> Path:
    """Write request lines as one batch file, sorted by custom_id, each once; return its path, which follows from content."""
    by_id = {json.loads(line)["custom_id"]: line for line in lines}
    ordered = [by_id[custom_id] for custom_id in sorted(by_id)]
    path = folder / f"requests-{label}-{content_hash('batch', *ordered)[:12]}.jsonl"

    def write(temporary: Path) -> None:
        temporary.write_text("".join(line + "\n" for line in ordered), encoding="utf-8")

    write_atomically(path, write)
    return path


def read_answers(folder: Path) -> tuple[dict[str, Answer], list[str]]:
    """Return the answers in FOLDER/answers by custom_id, and what is wrong with these files, a sentence each."""
    answers: dict[str, Answer] = {}
    problems: list[str] = []
    for path in sorted((folder / "answers").glob("*.jsonl")):
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{path.name}, line {number}"
                try:
                    custom_id, answer = _read_line(line)
                except ValueError as error:
                    problems.append(f"{where}: {error}")
                    continue
                known = answers.get(custom_id)
                if known is None or (answer.succeeded and not known.succeeded):
                    answers[custom_id] = answer
                elif answer.succeeded and _content(answer) != _content(known):
                    problems.append(f"{where}: another answer to {custom_id}; the first one is kept")
    asked = _asked(folder)
    unasked = [custom_id for custom_id in answers if custom_id not in asked] if asked else []
    if unasked:
        problems.append(f"{len(unasked)} answers to requests that no request file here has, first {min(unasked)}")
    return answers, problems


def _read_line(line: str) -> tuple[str, Answer]:
    """Return custom_id and answer of one line, as OpenAI's batch service and vLLM's run_batch write it."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"no JSON: {line.strip()[:60]!r}") from error
    custom_id = entry.get("custom_id") if isinstance(entry, dict) else None
    if not isinstance(custom_id, str):
        raise ValueError("no custom_id")
    response, failure = entry.get("response"), entry.get("error")
    if isinstance(response, dict):
        status = response.get("status_code", 200)
        return custom_id, Answer(status if isinstance(status, int) else 0, response.get("body") or failure)
    if failure is None:
        raise ValueError(f"neither response nor error for {custom_id}")
    return custom_id, Answer(0, failure)


def _content(answer: Answer) -> Any:
    """Return what an answer says, without the ids and times that differ each time the same is said."""
    choices = answer.body.get("choices") if isinstance(answer.body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return (first.get("message"), first.get("finish_reason")) if isinstance(first, dict) else answer.body


def _asked(folder: Path) -> set[str]:
    """Return the custom_ids of all request files in the folder, which this program wrote."""
    asked: set[str] = set()
    for path in folder.glob("requests-*.jsonl"):
        with open(path, encoding="utf-8") as file:
            asked.update(json.loads(line)["custom_id"] for line in file)
    return asked


__all__ = ["Answer", "BatchFileEngine", "read_answers", "write_batch"]
