"""The command lines of trtexec by TensorRT's version. Called by trtexec; pure.

Source of what each version takes: trtexec's own code, samples/common/sampleOptions.cpp of 8.6, 10 and 11. Files are
given by name alone, as trtexec runs in their folder: in its lists, commas and colons separate.
"""

from collections.abc import Sequence

from engine_build.engine_recipe import EngineRecipe, Profile, Shape
from engine_build.errors import EngineError
from engine_build.precision import FloatType, GraphForm, Precision
from engine_build.tensorrt_version import TensorRTVersion
from gateway.contract import ATTENTION_MASK, INPUT_IDS

INPUTS = (INPUT_IDS, ATTENTION_MASK)
ONNX_FILE = "model.onnx"
TIMING_CACHE_FILE = "timing.cache"


def build_arguments(
    recipe: EngineRecipe, form: GraphForm, version: TensorRTVersion, plan: str, islands: Sequence[str] = ()
) -> list[str]:
    """Arguments that build `plan` from ONNX_FILE and run nothing.

    Args:
        recipe: shapes, memory, effort.
        form: the graph's precision and output.
        version: of the trtexec that will get them.
        plan: file to write.
        islands: layers of a mixed graph that must stay in FP32; only a version without strong typing is told.

    Raises:
        EngineError: the version cannot do what the recipe wants.
    """
    arguments = [f"--onnx={ONNX_FILE}", f"--saveEngine={plan}", *_shapes(recipe.profiles, version)]
    # Without a suffix: 8.6 ignores one, and later versions take MiB where it is missing.
    arguments.append(f"--memPoolSize=workspace:{recipe.workspace_mib}")
    if recipe.builder_level is not None:
        arguments.append(f"--builderOptimizationLevel={recipe.builder_level}")
    arguments += _precision(form, version, islands)
    if version.strongly_typed:
        # 8.6 cannot read a cache of a BERT, and was seen to crash after writing one.
        arguments.append(f"--timingCacheFile={TIMING_CACHE_FILE}")
    return [*arguments, "--skipInference"]


def load_arguments(
    version: TensorRTVersion, plan: str, shape: Shape, inputs: dict[str, str], profile: int | None = None
) -> list[str]:
    """Arguments that load a plan and run it on the files in `inputs`: tensor name to raw values.

    Without files, trtexec fills ids with -128 to 127, which lie outside of the embedding table.
    """
    sizes = "x".join(map(str, shape))
    arguments = [
        f"--loadEngine={plan}",
        "--shapes=" + ",".join(f"{name}:{sizes}" for name in INPUTS),
        "--loadInputs=" + ",".join(f"{name}:{file}" for name, file in inputs.items()),
    ]
    if profile is not None and version.strongly_typed:
        arguments.append(f"--useProfile={profile}")
    return [*arguments, "--warmUp=0", "--duration=0", "--iterations=10"]


def _shapes(profiles: tuple[Profile, ...], version: TensorRTVersion) -> list[str]:
    if len(profiles) == 1:
        return _profile(profiles[0])
    if not version.strongly_typed:
        raise EngineError(f"TensorRT {version} builds one profile, not {len(profiles)}: give --profile once")
    arguments = []
    for index, profile in enumerate(profiles):
        arguments += [f"--profile={index}", *_profile(profile)]
    return arguments


def _profile(profile: Profile) -> list[str]:
    named = {"min": profile.minimum, "opt": profile.optimum, "max": profile.maximum}
    return [
        f"--{word}Shapes=" + ",".join(f"{name}:{shape[0]}x{shape[1]}" for name in INPUTS)
        for word, shape in named.items()
    ]


def _precision(form: GraphForm, version: TensorRTVersion, islands: Sequence[str]) -> list[str]:
    """Flags beside the types that the graph has."""
    tf32 = ["--noTF32"] if form.precision is Precision.FP32 else []  # TF32 would leave 10 bits of the mantissa
    if version.major >= 11:
        return tf32
    if version.strongly_typed:
        return ["--stronglyTyped", *tf32]
    if form.precision is Precision.BF16:
        raise EngineError(f"TensorRT {version} has no BF16: use --precision fp16 or mixed")
    kinds = [f"--inputIOFormats={','.join(['int32:chw'] * len(INPUTS))}", f"--outputIOFormats={form.output}:chw"]
    if form.precision is Precision.FP32:
        return [*kinds, *tf32] if form.output is FloatType.FP32 else [*kinds, *tf32, "--fp16"]
    if form.precision is Precision.FP16:
        return [*kinds, "--fp16"]
    kept = ",".join(f"{name}:fp32" for name in islands)
    return [*kinds, "--fp16", "--precisionConstraints=obey", f"--layerPrecisions={kept}", f"--layerOutputTypes={kept}"]
