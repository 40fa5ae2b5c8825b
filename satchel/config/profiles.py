"""Named KV profiles: how many bits keys and values get, and what stays exact."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from satchel.errors import UsageError

BITS = (2, 3, 4, 8)
EXACT = 16


@dataclass(frozen=True, slots=True)
class Profile:
    """Bits per key and value coordinate (`EXACT` keeps 16-bit floats), and the exact segments in tokens."""

    name: str
    k_bits: int
    v_bits: int
    sink: int = 4
    window: int = 128
    move: int = 64

    def __post_init__(self) -> None:
        for field, bits in (("k_bits", self.k_bits), ("v_bits", self.v_bits)):
            if bits not in (*BITS, EXACT):
                raise ValueError(f"{field} is {bits}; allowed are {BITS} and {EXACT} (exact)")
        if self.sink < 0 or self.window < 1 or self.move < 1:
            raise ValueError(f"sink {self.sink}, window {self.window}, move {self.move}: too small")

    @property
    def is_exact(self) -> bool:
        return self.k_bits == EXACT and self.v_bits == EXACT

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("exact", EXACT, EXACT),
        Profile("k8v4", 8, 4),
        Profile("turbo4", 4, 4),
        Profile("turbo3", 3, 3),
        Profile("turbo2", 2, 2),
        Profile("v-only", EXACT, 3),
    )
}
DEFAULT_PROFILE = "turbo4"


def get_profile(name: str) -> Profile:
    """The profile called `name`, or one spelt out as `k4v3`.

    Raises:
        UsageError: no such profile; the message lists the known ones.
    """
    if name in PROFILES:
        return PROFILES[name]
    if match := re.fullmatch(r"k([0-9]{1,2})v([0-9]{1,2})", name):
        k_bits, v_bits = (int(bits) for bits in match.groups())
        if {k_bits, v_bits} <= {*BITS, EXACT}:
            return Profile(name, k_bits, v_bits)
    known = ", ".join(PROFILES)
    raise UsageError(
        f"no KV profile is called {name!r}",
        f"known are {known}, and k<bits>v<bits> with bits of 2, 3, 4, 8 or 16 (exact)",
    )
