"""One config for a run: a section per stage, layered from files and `--set`.

Precedence, later wins: defaults < hardware < system < ablation < `--config` files in order < `--set` in order. An unknown key
is an error that names it. The sections are the frozen models that stand beside the stages.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_rag.engines.llm import LlmConfig, llm_identity, report_answers
from gpu_rag.engines.workers import RunConfig
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.index.s01_ingest import IngestConfig
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.index.s03_chunk import ChunkConfig
from gpu_rag.index.s04_extract import ExtractConfig
from gpu_rag.index.s05_embed import EmbedConfig
from gpu_rag.index.s06_govern import GovernConfig
from gpu_rag.index.s07_graph import GraphConfig
from gpu_rag.index.s08_communities import CommunitiesConfig
from gpu_rag.index.s09_summarize import SummarizeConfig
from gpu_rag.query.s01_demand import DemandConfig
from gpu_rag.query.s03_retrieve import RetrieveConfig
from gpu_rag.query.s04_merge import MergeConfig
from gpu_rag.query.s05_select import SelectConfig
from gpu_rag.query.s06_ground import GroundConfig
from gpu_rag.query.s07_suffice import SufficeConfig
from gpu_rag.query.s08_answer import AnswerConfig
from gpu_rag.stage import NoConfig, Stage

INDEX_SECTIONS = ("ingest", "profile", "chunk", "extract", "embed", "govern", "graph", "communities", "summarize")
_ENCODER_GPU_SHARE = 0.1  # of one GPU, at least, for an encoder's weights and activations
QUERY_SECTIONS = ("demand", "retrieve", "merge", "select", "ground", "suffice", "answer")


class Config(BaseModel):
    """Everything a run reads; `run` alone changes nothing that a stage produces.

    `llm` enters through the model's identity, and only into the stages that ask it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: RunConfig = RunConfig()
    llm: LlmConfig = LlmConfig()
    ingest: IngestConfig = IngestConfig()
    profile: ProfileConfig = ProfileConfig()
    chunk: ChunkConfig = ChunkConfig()
    extract: ExtractConfig = ExtractConfig()
    embed: EmbedConfig = EmbedConfig()
    govern: GovernConfig = GovernConfig()
    graph: GraphConfig = GraphConfig()
    communities: CommunitiesConfig = CommunitiesConfig()
    summarize: SummarizeConfig = SummarizeConfig()
    demand: DemandConfig = DemandConfig()
    retrieve: RetrieveConfig = RetrieveConfig()
    merge: MergeConfig = MergeConfig()
    select: SelectConfig = SelectConfig()
    ground: GroundConfig = GroundConfig()
    suffice: SufficeConfig = SufficeConfig()
    answer: AnswerConfig = AnswerConfig()

    def sections(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the named sections as plain JSON values."""
        return {name: getattr(self, name).model_dump(mode="json") for name in names}

    def hash(self, names: Sequence[str]) -> str:
        """Return the hash of the named sections."""
        return content_hash("config", canonical_json(self.sections(names)))


def load_config(
    *,
    hardware: str | None = None,
    system: str | None = None,
    ablation: str | None = None,
    files: Sequence[Path] = (),
    settings: Sequence[str] = (),
    base: dict[str, Any] | None = None,
    reads: Sequence[str] | None = None,
) -> Config:
    """Return the layered config.

    Args:
        hardware: Name of a file of `configs/hardware`.
        system: Name of a file of `configs/systems`.
        ablation: Name of a file of `configs/ablations`.
        files: YAML files, later ones win.
        settings: `key.key=value` pairs, the value read as YAML.
        base: Sections to start from instead of the defaults (an index's own).
        reads: Sections that the command reads: `settings` of another would change nothing, and are refused. Files may
            hold all sections, one file for all commands.

    Raises:
        ConfigError: Naming the file or `--set` and the key.
    """
    merged: dict[str, Any] = _merge({}, base or {})
    for folder, name in (("hardware", hardware), ("systems", system), ("ablations", ablation)):
        if name is not None:
            merged = _merge(merged, _read_yaml(packaged_config(folder, name)))
    for path in files:
        merged = _merge(merged, _read_yaml(path))
    for setting in settings:
        merged = _merge(merged, _parse_setting(setting))
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(item) for item in error.errors())) from error
    for setting in settings:
        if reads is not None and setting.partition(".")[0].strip() not in reads:
            raise ConfigError(f"--set {setting!r} changes nothing here; this command reads {', '.join(reads)}")
    return config


def asks_llm(config: Config, stages: Sequence[Stage]) -> bool:
    """Return whether any of the stages asks a language model under this config."""
    sections = [getattr(config, stage.name, NoConfig()) for stage in stages]
    return any("llm" in stage.engines_for(section) for stage, section in zip(stages, sections, strict=True))


def llm_identities(config: Config, stages: Sequence[Stage]) -> dict[str, str]:
    """Return the identity of the language model under `llm`, nothing if no stage asks one; says what is wrong before it starts.

    Raises:
        ConfigError: If no engine is chosen, or a GPU is asked for more than it has.
    """
    if not asks_llm(config, stages):
        return {}
    _check_gpu_plan(config)
    report_answers(config.llm)
    return {"llm": llm_identity(config.llm)}


def _check_gpu_plan(config: Config) -> None:
    """Refuse a plan in which language model and encoder together ask for more than a GPU has.

    vLLM takes its share when it starts, whatever else is there: two on one GPU, or an encoder beside one that takes all, fail
    late and with a message of the driver.

    Raises:
        ConfigError: Naming the keys.
    """
    run, llm = config.run, config.llm
    if not run.gpus_per_worker or llm.engine not in ("vllm", "ray-llm"):
        return
    engines_per_gpu = max(1, int(1 / run.gpus_per_worker))
    encoder_share = 0.0 if config.embed.encoder.device == "cpu" else _ENCODER_GPU_SHARE
    wanted = engines_per_gpu * (llm.gpu_memory_share + encoder_share)
    if wanted > 1:
        raise ConfigError(
            f"run.gpus_per_worker={run.gpus_per_worker:g} puts {engines_per_gpu} workers on a GPU, each with "
            f"llm.gpu_memory_share={llm.gpu_memory_share:g} and {encoder_share:g} for an encoder on "
            f"embed.encoder.device={config.embed.encoder.device}: {wanted:.2f} of its memory"
        )


def packaged_config(folder: str, name: str) -> Path:
    """Return the path of a config that ships with the package.

    Raises:
        ConfigError: If there is none of that name, listing those there are.
    """
    root = configs_root() / folder
    path = root / f"{name}.yaml"
    if Path(name).name != name or not path.is_file():
        known = ", ".join(sorted(p.stem for p in root.glob("*.yaml"))) or "none"
        raise ConfigError(f"no {folder} config {name!r}; there are: {known}")
    return path


def configs_root() -> Path:
    """Return the folder `configs`: inside the installed package, or beside it in a source checkout."""
    packaged = Path(str(resources.files("gpu_rag"))) / "configs"
    return packaged if packaged.is_dir() else packaged.parent.parent / "configs"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"config file {path} is not valid YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"config file {path} must hold a mapping of sections, found {type(value).__name__}")
    try:
        Config.model_validate(value)
    except ValidationError as error:
        raise ConfigError("; ".join(f"config file {path}: {_problem(item)}" for item in error.errors())) from error
    return value


def _parse_setting(setting: str) -> dict[str, Any]:
    key, separator, text = setting.partition("=")
    keys = key.strip().split(".")
    if not separator or not all(keys):
        raise ConfigError(f"--set {setting!r}: expected key.key=value")
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting!r}: the value is not valid YAML: {error}") from error
    for part in reversed(keys):
        value = {part: value}
    return dict(value)


def _merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _problem(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"]) or "config"
    if item["type"] == "extra_forbidden":
        return f"unknown config key {place!r}"
    return f"config key {place!r}: {item['msg']} (found {item['input']!r})"
