"""Decides everything about the model to be built, from the folder and the options, before anything is written. Pure.

The recipe is what config.pbtxt says and what the cache compares; the files of the folder decide the rest.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from engine_build.engine_recipe import (
    DEFAULT_WORKSPACE_MIB,
    EngineRecipe,
    Profile,
    check_profiles,
    default_profile,
)
from engine_build.errors import OptionError, UnsupportedModelError
from engine_build.model_folder import ModelFolder
from engine_build.precision import PLAIN, FloatType, GraphForm, Precision
from engine_build.prompts import with_document_words
from engine_build.sequence_limit import check_length_buckets, length_buckets
from engine_build.tensorrt_version import TensorRTVersion
from gateway.contract import Pooling

LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A model's name is a directory, a gRPC field and a part of URLs; this much is safe in all of them."""


class Target(StrEnum):
    """What runs the model: ONNX Runtime in Triton's Python backend, or TensorRT."""

    EMBEDDED = "embedded"
    TENSORRT = "tensorrt"


DEFAULT_MAX_BATCH_SIZES = {Target.EMBEDDED: 32, Target.TENSORRT: 64}


@dataclass(frozen=True, slots=True)
class Queue:
    """Triton's own queue. The gateway forms the batches, so this one only merges several gateways and stays short.

    Attributes:
        max_delay_us: how long a batch waits for others to join it, microseconds.
        max_size: waiting requests (batches of a gateway) beyond which new ones are refused.
        timeout_us: longest wait, microseconds; above 0, or Triton ignores the timeout that a request brings.
    """

    max_delay_us: int = 500
    max_size: int = 128
    timeout_us: int = 30_000_000


@dataclass(frozen=True, slots=True)
class Instances:
    """Copies of the model that run at the same time.

    Attributes:
        count: on each GPU, or on the CPU.
        gpus: their numbers; empty for every GPU that Triton sees.
        busy_wait_events: poll for the end of a run: quicker answers for a core at full load.
    """

    count: int = 2
    gpus: tuple[int, ...] = ()
    busy_wait_events: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line may decide; None leaves it to the folder or to the target's default."""

    target: Target = Target.EMBEDDED
    name: str | None = None
    max_batch_size: int | None = None
    max_sequence_length: int | None = None
    length_buckets: tuple[int, ...] | None = None
    pooling: Pooling | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    pool_in_engine: bool = False
    precision: Precision | None = None
    output: FloatType = FloatType.FP32
    profiles: tuple[Profile, ...] = ()
    workspace_mib: int = DEFAULT_WORKSPACE_MIB
    builder_level: int | None = None
    instances: Instances = Instances()
    queue: Queue = Queue()


@dataclass(frozen=True, slots=True)
class Recipe:
    """The model to be built.

    Attributes:
        name: Triton's name of it.
        target: what runs it.
        pooling: how the gateway pools.
        normalize: whether the model's own pipeline ends in L2 normalisation.
        hidden_size: H.
        vocab_size: every token id is below it.
        pad_id: fills padding.
        max_sequence_length: most tokens of an input, special tokens included.
        length_buckets: ascending padded lengths, ending at max_sequence_length.
        prompts: input type to prompt.
        max_batch_size: most rows of one call.
        graph: how the graph is written.
        engine: how TensorRT builds it; None for another target.
        instances: copies of the model that run at the same time.
        queue: Triton's queue.
    """

    name: str
    target: Target
    pooling: Pooling
    normalize: bool
    hidden_size: int
    vocab_size: int
    pad_id: int
    max_sequence_length: int
    length_buckets: tuple[int, ...]
    prompts: Mapping[str, str]
    max_batch_size: int
    graph: GraphForm = PLAIN
    engine: EngineRecipe | None = None
    instances: Instances = Instances()
    queue: Queue = Queue()

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the manifest stores them."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content


def plan(folder: ModelFolder, options: Options) -> Recipe:
    """Decide.

    Raises:
        OptionError: an option contradicts the model.
        UnsupportedModelError: the model leaves its prompts out of pooling.
    """
    limit = _max_sequence_length(folder, options.max_sequence_length)
    prompts = with_document_words(folder.prompts | dict(options.prompts))
    if any(prompts.values()) and not folder.pipeline.pools_prompt:
        raise UnsupportedModelError(f"{folder.path}: pooling leaves out the prompt's tokens, which is not supported")
    buckets = length_buckets(limit)
    if options.length_buckets is not None:
        buckets = check_length_buckets(options.length_buckets, limit)
    max_batch_size = options.max_batch_size or _profile_rows(options) or DEFAULT_MAX_BATCH_SIZES[options.target]
    pooling = options.pooling or folder.pipeline.pooling
    return Recipe(
        name=model_name(folder, options.name),
        target=options.target,
        pooling=pooling,
        normalize=folder.pipeline.normalize,
        hidden_size=folder.hidden_size,
        vocab_size=folder.vocab_size,
        pad_id=folder.pad_id,
        max_sequence_length=limit,
        length_buckets=buckets,
        prompts=prompts,
        max_batch_size=max_batch_size,
        graph=_graph(options, pooling),
        engine=_engine(options, max_batch_size, limit),
        instances=options.instances,
        queue=options.queue,
    )


def suited(recipe: Recipe, version: TensorRTVersion) -> Recipe:
    """The recipe with its graph in the form that is fastest in a version of TensorRT."""
    half = recipe.graph.precision.matrix is FloatType.FP16
    return replace(recipe, graph=replace(recipe.graph, row_gelu=version.slow_gelu and half))


def model_name(folder: ModelFolder, name: str | None) -> str:
    """The name asked for, else the folder's own.

    Raises:
        OptionError: Triton, a path or a URL could not carry it.
    """
    chosen = folder.path.absolute().name if name is None else name
    if not LEGAL_NAME.fullmatch(chosen):
        raise OptionError(f"{chosen!r} is no model name (letters, digits, then also '.', '_' and '-'); see --name")
    return chosen


def _graph(options: Options, pooling: Pooling) -> GraphForm:
    default = Precision.FP16 if options.target is Target.TENSORRT else Precision.FP32
    precision = options.precision or default
    if options.target is Target.EMBEDDED and precision is not Precision.FP32:
        raise OptionError(f"--precision {precision} is for --target tensorrt; on CPUs it would be slower than fp32")
    if options.output is FloatType.BF16:
        raise OptionError("outputs are fp32 or fp16")
    return GraphForm(precision, options.output, pooling if options.pool_in_engine else None)


def _engine(options: Options, max_batch_size: int, limit: int) -> EngineRecipe | None:
    if options.target is not Target.TENSORRT:
        if options.profiles:
            raise OptionError("--profile is for --target tensorrt")
        return None
    profiles = options.profiles or (default_profile(max_batch_size, limit),)
    check_profiles(profiles, max_batch_size, limit)
    return EngineRecipe(profiles, options.workspace_mib, options.builder_level)


def _profile_rows(options: Options) -> int | None:
    return max((profile.maximum[0] for profile in options.profiles), default=None)


def _max_sequence_length(folder: ModelFolder, asked: int | None) -> int:
    positions = folder.limit.positions
    if asked is None:
        return folder.limit.tokens
    if positions is not None and asked > positions:
        raise OptionError(f"--max-sequence-length {asked} is more than the model's {positions} positions")
    return asked
