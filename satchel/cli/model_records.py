"""What `satchel model … --json` prints, and how it is found out. Knows nothing of options and streams.

Loads no weights; MLX only to ask for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from satchel.engine.fit import Shape
    from satchel.engine.library import LocalModel
    from satchel.engine.model_names import NamedModel

AT_TOKENS = 8192  # a context whose KV is shown as an example


@dataclass(frozen=True, kw_only=True)
class LocalRecord:
    name: Annotated[str, "what `--model` takes"]
    short_name: Annotated[str | None, "what `--model` takes as well"]
    kind: Annotated[str, "`embedded`, `folder`, `hub`, `gguf` or `converted` (from a GGUF file)"]
    path: Annotated[str, "its folder or file"]
    stored_bytes: Annotated[int, "on disk; of a GGUF file with the folder made of it"]
    architecture: Annotated[str, "as mlx-lm calls it; empty if it cannot be used"]
    quantisation: Annotated[str, "of most weights"]
    parameters: Annotated[int, "all of them"]
    sessions: Annotated[int, "stored ones that used it"]
    is_default: Annotated[bool, "whether it is used when no model is named"]
    fault: Annotated[str, "why it cannot be used; empty if nothing is known against it"]


@dataclass(frozen=True, kw_only=True)
class KnownRecord:
    name: Annotated[str, "short name"]
    repository: Annotated[str, "on the Hugging Face hub"]
    parameters: Annotated[int, "all of them, roughly"]
    download_bytes: Annotated[int, "to fetch, roughly"]
    licence: Annotated[str, "of the weights"]
    about: Annotated[str, "one line"]
    context_length: Annotated[int, "tokens that it was made for"]
    longest_context: Annotated[
        int, "tokens that fit this machine with the KV profile set; 0: it does not fit"
    ]


@dataclass(frozen=True, kw_only=True)
class ProfileRecord:
    name: Annotated[str, "what `--kv` takes"]
    bits: Annotated[float, "a coordinate of keys and values, scales included"]
    kv_bytes_per_token: Annotated[float, "of each further token of a long context"]
    kv_bytes: Annotated[int, "of `kv_tokens` tokens"]
    longest_context: Annotated[int, "tokens that fit this machine; 0: not even the weights fit"]


@dataclass(frozen=True, kw_only=True)
class InfoRecord:
    name: Annotated[str, "as it was given"]
    repository: Annotated[str | None, "on the Hugging Face hub"]
    here: Annotated[bool, "whether it is on this machine"]
    kind: Annotated[str | None, "as `model list` has it; null if it is not here"]
    path: Annotated[str | None, "its folder or file; null if it is not here"]
    stored_bytes: Annotated[int, "on disk, or to fetch"]
    architecture: Annotated[str, "as mlx-lm calls it"]
    parameters: Annotated[int, "all of them; 0 if that is not known"]
    quantisation: Annotated[str | None, "of most weights; null if it is not here"]
    licence: Annotated[str | None, "of the weights, if it has a short name"]
    about: Annotated[str | None, "one line, if it has a short name"]
    context_length: Annotated[int, "tokens that it was made for"]
    full_attention_layers: Annotated[int, "that keep every token"]
    window_layers: Annotated[int, "that keep the newest `window_tokens` tokens"]
    window_tokens: Annotated[int, "see `window_layers`"]
    recurrent_bytes: Annotated[int, "of states that do not grow"]
    compresses: Annotated[bool, "whether its KV can be compressed"]
    is_guess: Annotated[bool, "whether its architecture is unknown here and the figures are a guess"]
    weights_bytes: Annotated[int, "in this machine's memory"]
    memory_bytes: Annotated[int, "of this machine"]
    reserve_bytes: Annotated[int, "of that, left to everything else"]
    kv_tokens: Annotated[int, "of the example in `profiles`"]
    profiles: Annotated[list[ProfileRecord], "what each KV profile makes of a context"]


@dataclass(frozen=True, kw_only=True)
class UsedRecord:
    model: Annotated[str, "that is used now when none is named"]
    settings: Annotated[str, "the file where that stands"]


@dataclass(frozen=True, kw_only=True)
class RemovedRecord:
    name: Annotated[str, "of the model"]
    freed_bytes: Annotated[int, "on disk"]
    stays: Annotated[str, "what is left and how to delete it; empty if nothing is"]


@dataclass(frozen=True, kw_only=True)
class PulledRecord:
    name: Annotated[str, "what `--model` takes"]
    path: Annotated[str, "its folder or file"]
    was_here: Annotated[bool, "whether nothing had to be fetched"]


def local_records(found: Iterable[LocalModel], default: str, uses: Mapping[str, int]) -> list[LocalRecord]:
    from satchel.engine.model_names import name_of, users_names

    own = users_names()
    return [
        LocalRecord(
            name=model.name,
            short_name=name_of(model.name, own),
            kind=model.kind,
            path=str(model.path),
            stored_bytes=model.stored_bytes,
            architecture=model.architecture,
            quantisation=model.quantisation,
            parameters=model.parameters,
            sessions=uses.get(model.name, 0),
            is_default=model.name == default,
            fault=model.fault,
        )
        for model in found
    ]


def known_records() -> list[KnownRecord]:
    """The models with short names, the smallest first."""
    from satchel.config.profiles import get_profile
    from satchel.config.settings import load_settings
    from satchel.engine.device import current_device
    from satchel.engine.fit import longest_context, on_device
    from satchel.engine.model_names import named_models

    profile, device = get_profile(load_settings().kv_profile), current_device()
    records = []
    for model in named_models().values():
        shape = on_device(model.shape(), device)
        records.append(
            KnownRecord(
                name=model.name,
                repository=model.repository,
                parameters=model.parameters,
                download_bytes=model.download_bytes,
                licence=model.licence,
                about=model.about,
                longest_context=longest_context(shape, profile, device.memory_bytes),
                context_length=shape.context_length,
            )
        )
    return records


def info_record(name: str) -> InfoRecord:
    """What is known of the model that `name` loads, or would load.

    Raises:
        NotFoundError: it is neither here nor has it a short name.
        DamagedError, UsageError: it is here and cannot be used.
    """
    from satchel.config.profiles import PROFILES
    from satchel.engine.device import current_device
    from satchel.engine.fit import kv_bytes, kv_bytes_per_token, longest_context, on_device, reserve_bytes
    from satchel.engine.library import find
    from satchel.engine.model_names import full_name, named_models
    from satchel.errors import NotFoundError

    target = full_name(name)
    known = next((each for each in named_models().values() if each.repository == target), None)
    try:
        model = find(name)
    except NotFoundError:
        if known is None:
            raise
        model = None
    device = current_device()
    shape = on_device(_shape(model, known), device)
    example = min(AT_TOKENS, shape.context_length)
    profiles = [
        ProfileRecord(
            name=profile.name,
            bits=_bits(shape, kv_bytes_per_token(shape, profile)),
            kv_bytes_per_token=kv_bytes_per_token(shape, profile),
            kv_bytes=kv_bytes(shape, profile, example),
            longest_context=longest_context(shape, profile, device.memory_bytes),
        )
        for profile in PROFILES.values()
    ]
    return InfoRecord(
        name=name,
        repository=target if known or (model and model.kind == "hub") else None,
        here=model is not None,
        kind=model.kind if model else None,
        path=str(model.path) if model else None,
        stored_bytes=model.stored_bytes if model else known.download_bytes if known else 0,
        architecture=shape.architecture,
        parameters=shape.parameters,
        quantisation=model.quantisation if model else None,
        licence=known.licence if known else None,
        about=known.about if known else None,
        context_length=shape.context_length,
        full_attention_layers=shape.full_layers,
        window_layers=shape.window_layers,
        window_tokens=shape.window,
        recurrent_bytes=shape.recurrent_bytes,
        compresses=shape.compresses,
        is_guess=shape.is_guess,
        weights_bytes=shape.weights_bytes,
        memory_bytes=device.memory_bytes,
        reserve_bytes=reserve_bytes(device.memory_bytes),
        kv_tokens=example,
        profiles=profiles,
    )


def _shape(model: LocalModel | None, known: NamedModel | None) -> Shape:
    from satchel.engine.fit import shape_of

    if model is None:
        assert known is not None
        return known.shape()
    return shape_of(model.conversion or model.path)


def _bits(shape: Shape, bytes_per_token: float) -> float:
    """A coordinate, of keys and values in full-attention layers."""
    values = shape.full_layers * shape.n_kv_heads * (shape.head_dim + shape.value_dim)
    return round(bytes_per_token * 8 / values, 3) if values else 0.0
