"""Writes a model as an MLX model folder, as it is or quantised to fewer bits; the packing itself is mlx-lm's.

Knows nothing of where models are kept, or of who is told how far it is. MLX is imported inside the functions,
so that a wrong choice is refused before it is loaded.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from satchel.config.paths import expand
from satchel.config.units import size_text
from satchel.engine.hub import Progress
from satchel.engine.model_files import TOKENIZER_FILES, WEIGHTS, has_tokenizer, read_model_files
from satchel.engine.model_folder import conversion_of, gguf_sha256, model_folder
from satchel.engine.model_names import EMBEDDED, NAMES, full_name
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.files import TEMPORARY_PREFIX, atomic_folder

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

DTYPES = ("bfloat16", "float16", "float32")
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")  # mlx-lm's; the test compares
SHARD_GIB = 2  # of a file, and so of what is in memory at a time
SPARE_BYTES = 100_000_000  # of the disk, that stay free
MOST_LEFT_SHARE = 0.1  # of the weights, that may stay unpacked because no group fits their rows

# Beside the weights and the configuration. No Python files: code that comes with a model is never run.
COPIED = (
    *TOKENIZER_FILES,
    *("*.jinja", "chat_template*", "generation_config.json", "LICENSE*", "NOTICE*"),
)

# What MLX and mlx-lm raise for files that contradict themselves or are cut short.
_BROKEN = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError)


@dataclass(frozen=True, slots=True)
class Mode:
    """One of MLX's formats for packed matrices: the widths and group sizes it has, the usual ones first."""

    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]


MODES = {
    "affine": Mode((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": Mode((4,), (32,)),
    "nvfp4": Mode((4,), (16,)),
    "mxfp8": Mode((8,), (32,)),
}


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How matrices are packed: `bits` a value, a scale for each `group_size` values of a row.

    A `recipe` of mlx-lm takes more bits for the matrices that need them; `bits` is None then.
    """

    mode: str
    bits: int | None
    group_size: int
    recipe: str | None = None

    @classmethod
    def choose(
        cls,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        recipe: str | None = None,
    ) -> Quantisation:
        """The choice, with what is None as is usual for the mode.

        Raises:
            UsageError: what does not exist, or does not go together.
        """
        if mode not in MODES:
            raise UsageError(f"there is no mode {mode[:40]!r}", f"modes are {', '.join(MODES)}")
        known = MODES[mode]
        if recipe is not None:
            if recipe not in RECIPES:
                raise UsageError(f"there is no recipe {recipe[:40]!r}", f"recipes are {', '.join(RECIPES)}")
            if mode != "affine" or bits is not None:
                raise UsageError("a recipe has its own bits, in mode affine", "leave out --bits and --mode")
        if bits is not None and bits not in known.bits:
            raise UsageError(f"{mode} has no {bits} bits", f"it has {_listed(known.bits)}")
        if group_size is not None and group_size not in known.group_sizes:
            raise UsageError(f"{mode} has no groups of {group_size}", f"it has {_listed(known.group_sizes)}")
        width = None if recipe else bits or known.bits[0]
        return cls(mode, width, group_size or known.group_sizes[0], recipe)

    @property
    def suffix(self) -> str:
        """For a folder's name: `4bit`, `mxfp4`, `mixed_3_6`."""
        return self.recipe or (self.mode if self.mode != "affine" else f"{self.bits}bit")


@dataclass(frozen=True, slots=True)
class Made:
    """A model folder that was written.

    Attributes:
        source_bytes: of the weights it was made from.
        weights_bytes: of its weights.
        parameters: of all tensors, packed ones counted unpacked.
        quantisation: such as `4 bits, groups of 64`, `bfloat16`.
    """

    folder: Path
    source_bytes: int
    weights_bytes: int
    parameters: int
    quantisation: str

    @property
    def bits_per_weight(self) -> float:
        return self.weights_bytes * 8 / max(self.parameters, 1)


def usual_folder(source: str, suffix: str) -> Path:
    """A name in the current directory for what is made of `source`: `Qwen3-4B-4bit`.

    Raises:
        UsageError: the settings, which may name `source`, are wrong.
    """
    stem = Path(full_name(source).rstrip("/")).name
    stem = stem[: -len(".gguf")] if stem.lower().endswith(".gguf") else stem
    return Path(f"{stem or 'model'}-{suffix}")


def convert(
    source: str,
    target: Path,
    dtype: str | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> Made:
    """Write the model `source` as the MLX model folder `target`, which appears whole or not at all.

    A GGUF file's matrices keep their bits where MLX has the like (see `convert_gguf`); what is packed in a
    Hugging Face folder stays packed.

    Args:
        source: a GGUF file, a folder, a hub name, a short name, or `embedded`.
        dtype: one of `DTYPES` for what is not packed; None keeps what the model's configuration says.
        report: called with one line for each slow step.
        progress: called with the bytes done and all.

    Raises:
        UsageError: `target` is there already; the model is in MLX's form already; a kind of model that is not
            supported; no such dtype.
        NotFoundError, NetworkError: there is no such model, or it cannot be fetched.
        DamagedError: files that are not what they claim to be.
        SatchelError: the disk is full, not ours, ….
    """
    check_target(target)
    _check_dtype(dtype)
    source = full_name(source)
    gguf = _gguf_file(source)
    if gguf is not None and dtype is None:
        before = gguf.stat().st_size
        with _errors(source, target):
            _write_gguf(gguf, target, progress)
        return _made(target, before)
    with _errors(source, target), _as_folder(source, gguf, target, report, progress) as folder:
        _need_tokenizer(folder)
        if gguf is None and dtype is None and _is_mlx(folder):
            raise UsageError(
                f"{source} is in MLX's form already", "use it as it is, or `satchel model quantize` it"
            )
        model, config = _load(folder)
        _cast(model, config, dtype)
        _write(model, config, folder, target, progress)
        before = _source_bytes(folder, gguf)
    return _made(target, before)


def quantize(
    source: str,
    target: Path,
    quantisation: Quantisation,
    dtype: str | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> Made:
    """As `convert`, with the matrices packed as `quantisation` says.

    A model that is packed already is unpacked first: what was lost then stays lost, which `report` is told.

    Raises:
        UsageError: also where groups of that size do not divide the rows of most matrices, or a recipe does
            not know this kind of model.
        NotFoundError, NetworkError, DamagedError, SatchelError: as `convert`.
    """
    check_target(target)
    _check_dtype(dtype)
    source = full_name(source)
    gguf = _gguf_file(source)
    with _errors(source, target), _as_folder(source, gguf, target, report, progress) as folder:
        _need_tokenizer(folder)
        model, config = _load(folder)
        is_packed = "quantization" in config
        if is_packed:
            _unpack(model, config)
        _cast(model, config, dtype)
        config = _pack(model, config, quantisation, report)
        if is_packed:
            packed = read_model_files(gguf or folder).quantisation
            report(f"{Path(source).name} is packed already ({packed}): what that lost stays lost")
        _write(model, config, folder, target, progress)
        before = _source_bytes(folder, gguf)
    return _made(target, before)


def check_target(target: Path) -> None:
    """
    Raises:
        UsageError: there is something at `target`.
    """
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} is there already", "name a folder that is not: nothing is overwritten")


def _check_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype[:40]!r}", f"dtypes are {', '.join(DTYPES)}")


@contextmanager
def _errors(source: str, target: Path) -> Iterator[None]:
    """What the libraries and the system raise, in our own words."""
    try:
        yield
    except _BROKEN as err:
        raise DamagedError(f"{source} cannot be converted ({' '.join(str(err).split())[:200]})") from err
    except OSError as err:
        raise SatchelError(f"cannot write {target}: {err.strerror or err}", "nothing is left of it") from err


# Sources


def _gguf_file(source: str) -> Path | None:
    """The GGUF file that `source` is, if it is one.

    Raises:
        NotFoundError: it is the embedded model, which is not here; or it cannot be read.
        DamagedError: another kind of file.
    """
    if source == EMBEDDED:
        from satchel.engine.embedded import find_embedded_gguf

        found = find_embedded_gguf()
        if found is None:
            raise NotFoundError("the embedded model is not installed", "run `satchel model pull embedded`")
        return found
    path = expand(source)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise DamagedError(f"{path.name} is not a GGUF file", NAMES)
    except OSError as err:
        raise NotFoundError(f"{path} cannot be read: {err.strerror or err}") from err
    return path


@contextmanager
def _as_folder(
    source: str, gguf: Path | None, target: Path, report: Callable[[str], None], progress: Progress | None
) -> Iterator[Path]:
    """The model's folder. One that has to be made of a GGUF file is beside `target`, for the while."""
    if gguf is None:
        yield model_folder(source, report, progress)
        return
    ready = conversion_of(gguf_sha256(gguf))
    if ready.is_dir():
        yield ready
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=target.parent) as work:
        folder = Path(work) / "model"
        report(f"reading {gguf.name}")
        _write_gguf(gguf, folder, progress)
        yield folder


def _write_gguf(gguf: Path, folder: Path, progress: Progress | None) -> None:
    from satchel.engine.device import preload_blas

    preload_blas()
    from satchel.engine.gguf import convert_gguf

    _need_room(folder, read_model_files(gguf).weights_bytes)
    convert_gguf(gguf, folder, progress)


def _need_tokenizer(folder: Path) -> None:
    """Raises:
    NotFoundError: there is none, so that what is made of the model could not be used.
    """
    if not has_tokenizer(folder):
        raise NotFoundError(f"{folder} has no tokenizer files", "copy those of the same model there")


def _source_bytes(folder: Path, gguf: Path | None) -> int:
    return gguf.stat().st_size if gguf else sum(path.stat().st_size for path in folder.glob(WEIGHTS))


def _is_mlx(folder: Path) -> bool:
    """Whether the weights' files say so themselves, as those that mlx-lm writes do."""
    import mlx.core as mx

    first = min(folder.glob(WEIGHTS))
    loaded: Any = mx.load(str(first), return_metadata=True)
    return bool(loaded[1].get("format") == "mlx")


def _load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model, none of whose weights is read before it is needed, and its configuration."""
    from satchel.engine.device import preload_blas

    preload_blas()
    import mlx_lm.utils

    try:
        model, config = mlx_lm.utils.load_model(folder, lazy=True)
    except OSError as err:
        raise DamagedError(f"the model in {folder} cannot be read ({err.strerror or err})") from err
    return model, config


# Changes; all of them are only planned here, and done tensor by tensor when these are written


def _cast(model: nn.Module, config: dict[str, Any], dtype: str | None) -> None:
    """Bring floats to `dtype`, else to what the configuration says, if it does."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    text = config.get("text_config") or {}
    said = [each.get(key) for each in (config, text) for key in ("torch_dtype", "dtype")]
    name = dtype or next((each for each in said if each in DTYPES), None)
    if name is None:
        return
    if dtype is not None:
        for each in (config, text):
            each.update({key: dtype for key in ("torch_dtype", "dtype") if key in each})
    wanted = getattr(mx, name)
    # Some models compute in float32 in places, whatever the rest is.
    may_cast: Callable[[str], bool] = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, array: mx.array) -> mx.array:
        is_float = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(wanted) if is_float and may_cast(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _unpack(model: nn.Module, config: dict[str, Any]) -> None:
    """Raises:
    UsageError: there are packed parts that mlx-lm does not unpack, or not by all their scales.
    """
    from mlx_lm.utils import dequantize_model

    names = [name for name, module in model.named_modules() if "global_scale" in module]
    if not names:
        dequantize_model(model)
        names = [name for name, module in model.named_modules() if "scales" in module]
    if names:
        raise UsageError(f"mlx-lm cannot unpack {names[0]}", "quantize the original, unpacked model instead")
    config.pop("quantization", None)
    config.pop("quantization_config", None)


def _pack(
    model: nn.Module, config: dict[str, Any], quantisation: Quantisation, report: Callable[[str], None]
) -> dict[str, Any]:
    """The configuration of the model, whose matrices become packed ones."""
    from mlx_lm.convert import mixed_quant_predicate_builder
    from mlx_lm.utils import quantize_model

    _check_groups(model, quantisation, report)
    predicate = None
    if quantisation.recipe is not None:
        try:
            predicate = mixed_quant_predicate_builder(quantisation.recipe, model, quantisation.group_size)
        except (ValueError, AttributeError) as err:
            raise UsageError(
                f"the recipe {quantisation.recipe} does not know this kind of model", "use --bits"
            ) from err
    with redirect_stdout(io.StringIO()):  # it prints what it has done
        _, changed = quantize_model(
            model,
            config,
            quantisation.group_size,
            quantisation.bits,
            mode=quantisation.mode,
            quant_predicate=predicate,
        )
    if quantisation.recipe is not None:
        changed["quantization"]["bits"] = int(quantisation.recipe.split("_")[1])
    return dict(changed)


def _check_groups(model: nn.Module, quantisation: Quantisation, report: Callable[[str], None]) -> None:
    """Matrices whose rows are no whole groups stay as they are: refused where that is much of the model."""
    group_size = quantisation.group_size
    matrices = {
        name: module.weight for name, module in model.named_modules() if hasattr(module, "to_quantized")
    }
    left = {name: weight for name, weight in matrices.items() if weight.shape[-1] % group_size}
    if not left:
        return
    name, weight = max(left.items(), key=lambda item: item[1].size)
    share = sum(each.size for each in left.values()) / sum(each.size for each in matrices.values())
    if share <= MOST_LEFT_SHARE:
        report(f"{len(left)} matrices stay unpacked: groups of {group_size} do not divide their rows")
        return
    fitting = tuple(
        size
        for size in MODES[quantisation.mode].group_sizes
        if not any(each.shape[-1] % size for each in matrices.values())
    )
    raise UsageError(
        f"groups of {group_size} do not divide the rows of {name}, which have {weight.shape[-1]} values",
        f"groups of {_listed(tuple(fitting))} do"
        if fitting
        else f"{quantisation.mode} has no groups that do",
    )


# Writing


def _write(
    model: nn.Module, config: dict[str, Any], source: Path, target: Path, progress: Progress | None
) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_lm.utils import save_config

    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    # A model with a part for images needs that part's configuration to be loaded again.
    has_vision = "vision_tower" in getattr(model, "model", {})
    _need_room(target, sum(array.nbytes for array in weights.values()))
    # So that each tensor is dropped once it is written.
    model.update(tree_map(lambda array: mx.array([]), model.parameters()))
    with atomic_folder(target) as folder:
        _write_weights(weights, folder, progress)
        save_config(config, folder / "config.json", keep_vision_config=has_vision)
        for path in sorted({path for pattern in COPIED for path in source.glob(pattern)}):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)


def _write_weights(weights: dict[str, mx.array], folder: Path, progress: Progress | None) -> None:
    """Takes the weights out of `weights`.

    Raises:
        DamagedError: numbers that are not finite, or not in the dtype wanted.
        OSError: the disk is full, ….
    """
    import mlx.core as mx
    from mlx_lm.utils import make_shards

    total = sum(array.nbytes for array in weights.values())
    shards: list[dict[str, mx.array]] = make_shards(weights, SHARD_GIB)
    weights.clear()
    count, done = len(shards), 0
    files: dict[str, str] = {}
    for number in range(1, count + 1):
        shard = shards.pop(0)
        for name, array in shard.items():
            mx.eval(array)
            if mx.issubdtype(array.dtype, mx.floating) and not mx.isfinite(array).all():
                raise DamagedError(
                    f"{name} has numbers that are not finite in {str(array.dtype).rpartition('.')[2]}",
                    "--dtype bfloat16 holds larger ones than float16",
                )
            done += array.nbytes
            if progress is not None:
                progress(done, total)
        file = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        try:
            mx.save_safetensors(str(folder / file), shard, {"format": "mlx"})
        except RuntimeError as err:  # MLX's word for a full disk
            raise OSError(str(err)) from err
        files |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _need_room(target: Path, weights_bytes: int) -> None:
    """Raises:
    SatchelError: the disk has no room for so many bytes.
    """
    target = target.absolute()
    existing = next(folder for folder in target.parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if weights_bytes + SPARE_BYTES > free:
        raise SatchelError(
            f"{target} would take {size_text(weights_bytes)}, and the disk has {size_text(free)} free",
            "free some space, or name a folder on another disk",
        )


def _made(folder: Path, source_bytes: int) -> Made:
    files = read_model_files(folder)
    return Made(folder, source_bytes, files.weights_bytes, files.parameters, files.quantisation)


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last
