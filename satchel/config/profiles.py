"""Named KV profiles: which codecs keys and values get, and what stays exact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from satchel.errors import UsageError

EXACT_BITS = 16
GROUP_SIZES = (32, 64, 128)
# The bits that each codec comes in; none where it has no choice.
CODEC_BITS: dict[str, tuple[int, ...]] = {
    "exact": (),
    "turbo": (2, 3, 4, 8),
    "affine": (2, 3, 4, 8),
    "tq-mse": (1, 2, 3, 4),
    "tq-prod": (2, 3, 4),
    "qjl": (1, 2, 3, 4, 8),
    "polar": (),
}
SAFE_BITS = 8  # of the boundary layers


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """A codec by name, its bits a coordinate (0 where it has no choice) and its group size (`affine`)."""

    codec: str
    bits: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        allowed = CODEC_BITS.get(self.codec)
        if allowed is None:
            raise ValueError(f"no codec is called {self.codec!r}; known are {', '.join(CODEC_BITS)}")
        if self.bits not in (allowed or (0,)):
            raise ValueError(f"{self.codec} has {_listed(allowed)}, not {self.bits}")
        if self.group not in (GROUP_SIZES if self.codec == "affine" else (0,)):
            raise ValueError(f"{self.codec} has no groups of {self.group}")

    @classmethod
    def parse(cls, text: str) -> CodecSpec:
        """`turbo4`, `affine4/32` (groups of 64 without the number), `exact`.

        Raises:
            ValueError: no such codec, or not with these bits.
        """
        match = re.fullmatch(r"([a-z]+(?:-[a-z]+)?)([1-9][0-9]?)?(?:/([1-9][0-9]{0,2}))?", text, re.ASCII)
        if not match:
            raise ValueError(f"{text[:80]!r} is no codec; say it as `turbo4` or `affine4/32`")
        codec, bits, group = match.groups()
        return cls(codec, int(bits or 0), int(group or (64 if codec == "affine" else 0)))

    def __str__(self) -> str:
        return f"{self.codec}{self.bits or ''}{f'/{self.group}' if self.group else ''}"


EXACT = CodecSpec("exact")


@dataclass(frozen=True, slots=True)
class Profile:
    """How a session's KV is held.

    Attributes:
        keys, values: the codecs of the body.
        sink, window: tokens kept exactly at the start and, at least, at the end.
        move: tokens that leave the window at a time.
        boundary: so many first and last full-attention layers have at least `SAFE_BITS` bits.
        raised: full-attention layers whose keys have one step more bits (`RAISED_BITS`).
        share: the share of layers to be raised, those whose keys matter most, once the model is known.
        recurrent: bits of a saved recurrent state, 8 or `EXACT_BITS`.
    """

    name: str
    keys: CodecSpec
    values: CodecSpec
    sink: int = 4
    window: int = 128
    move: int = 64
    boundary: int = 0
    raised: tuple[int, ...] = ()
    share: float = 0.0
    recurrent: int = EXACT_BITS

    def __post_init__(self) -> None:
        for field, (low, high) in LIMITS.items():
            value = getattr(self, field)
            if not low <= value <= high:
                raise ValueError(f"{field} is {value}; allowed are {low} to {high}")
        if self.recurrent not in (8, EXACT_BITS):
            raise ValueError(f"recurrent is {self.recurrent}; allowed are 8 and {EXACT_BITS} (exact)")

    @property
    def is_exact(self) -> bool:
        return self.keys == EXACT and self.values == EXACT

    def for_layer(self, index: int, layers: int) -> Profile:
        """The profile of full-attention layer `index` of `layers`."""
        keys, values = self.keys, self.values
        if index in self.raised and keys.codec == "turbo":
            keys = CodecSpec("turbo", RAISED_BITS[keys.bits])
        if min(index, layers - 1 - index) < self.boundary:
            keys, values = _safe(keys), _safe(values)
        return replace(self, keys=keys, values=values)

    def for_model(self, sensitivity: Sequence[float]) -> Profile:
        """The profile with `raised` layers in place of a `share`, and a name that says which.

        Args:
            sensitivity: how much an error in its keys matters, for each full-attention layer.
        """
        count = int(self.share * len(sensitivity))
        by_sensitivity = sorted(range(len(sensitivity)), key=lambda index: -sensitivity[index])
        raised = tuple(sorted(by_sensitivity[:count]))
        name = f"{self.name},raised={'.'.join(map(str, raised))}" if raised else self.name
        return replace(self, name=name, raised=raised, share=0.0)

    @property
    def asked(self) -> str:
        """The name without the raised layers, which a session's name has and a user seldom says."""
        return ",".join(part for part in self.name.split(",") if not part.startswith("raised="))

    def as_dict(self) -> dict[str, object]:
        """JSON values; equal for profiles that hold KV alike, whatever they are called."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"keys": str(self.keys), "values": str(self.values), "raised": list(self.raised)}
        return {key: value for key, value in values.items() if key not in ("name", "share")}


LIMITS = {"sink": (0, 1024), "window": (1, 1 << 20), "move": (1, 4096), "boundary": (0, 64)}
OPTIONS = ("sink", "window", "boundary", "recurrent")
LAYERS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})*", re.ASCII)
RAISED_BITS = {2: 3, 3: 4, 4: 8, 8: 8}


def _turbo(name: str, k_bits: int, v_bits: int, share: float = 0.0) -> Profile:
    keys, values = (CodecSpec("turbo", bits) if bits != EXACT_BITS else EXACT for bits in (k_bits, v_bits))
    return Profile(name, keys, values, share=share)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("exact", EXACT, EXACT),
        _turbo("k8v4", 8, 4),
        # A quarter bit a coordinate is spent on the keys of the layers where it gains most.
        _turbo("turbo4", 4, 4, share=1 / 8),
        _turbo("turbo3", 3, 3, share=1 / 2),
        _turbo("turbo2", 2, 2, share=1 / 2),
        _turbo("v-only", EXACT_BITS, 3),
    )
}
DEFAULT_PROFILE = "turbo4"


def get_profile(name: str) -> Profile:
    """The profile that `name` describes: NAME[,OPTION=NUMBER]...

    NAME is a profile's, `k4v3` (bits of keys and values), a codec for both (`tq-mse4`), or one for each
    (`qjl4+affine4/32`). OPTION is sink, window, boundary or recurrent. `raised=0.5.7` names the layers whose
    keys have one step more bits, where they shall not be found by measuring the model.

    Raises:
        UsageError: no such profile; the message says what is known.
    """
    base, *options = name.split(",")
    profile = _base_profile(base)
    changes: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key == "raised" and key not in changes and LAYERS.fullmatch(value):
            changes |= {"raised": tuple(sorted({int(layer) for layer in value.split(".")})), "share": 0.0}
        elif key in OPTIONS and key not in changes and re.fullmatch(r"[0-9]{1,7}", value, re.ASCII):
            changes[key] = int(value)
        else:
            raise UsageError(
                f"{option[:80]!r} is no option of a KV profile",
                f"say it as {base},window=256; known are {', '.join((*OPTIONS, 'raised'))}",
            )
    try:
        return replace(profile, name=name, **changes)
    except ValueError as err:
        raise UsageError(f"no KV profile {name!r}: {err}") from err


def _base_profile(name: str) -> Profile:
    if name in PROFILES:
        return PROFILES[name]
    reason = ""
    try:
        if match := re.fullmatch(r"k([0-9]{1,2})v([0-9]{1,2})", name, re.ASCII):
            return _turbo(name, *(int(bits) for bits in match.groups()))
        keys, plus, values = name.partition("+")
        return Profile(name, CodecSpec.parse(keys), CodecSpec.parse(values if plus else _partner(keys)))
    except ValueError as err:
        why = str(err).partition("; known are ")[0]  # they are listed below
        if why != f"no codec is called {name!r}":
            reason = f" ({why})"
    raise UsageError(
        f"no KV profile is called {name[:80]!r}{reason}",
        f"known are {', '.join(PROFILES)}; k<bits>v<bits> with bits of 2, 3, 4, 8 or 16 (exact); and codecs: "
        f"{', '.join(codec for codec in CODEC_BITS if codec != 'exact')}",
    )


def _partner(keys: str) -> str:
    """The codec of values where only one is named. QJL sketches keys; its paper min-max quantises values."""
    spec = CodecSpec.parse(keys)
    return f"affine{max(spec.bits, 2)}/32" if spec.codec == "qjl" else keys


def _safe(spec: CodecSpec) -> CodecSpec:
    if spec == EXACT or spec.bits >= SAFE_BITS:
        return spec
    group = spec.group if spec.codec == "affine" else 0
    return CodecSpec(spec.codec if SAFE_BITS in CODEC_BITS[spec.codec] else "turbo", SAFE_BITS, group)


def _listed(bits: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, bits))} bits" if bits else "no choice of bits"
