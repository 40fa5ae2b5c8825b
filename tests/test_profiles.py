"""KV profiles: names, bits, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.config.profiles import DEFAULT_PROFILE, PROFILES, Profile, get_profile
from satchel.errors import UsageError


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("exact", (16, 16)),
        ("k8v4", (8, 4)),
        ("turbo4", (4, 4)),
        ("turbo3", (3, 3)),
        ("turbo2", (2, 2)),
        ("v-only", (16, 3)),
        ("k4v3", (4, 3)),
        ("k16v2", (16, 2)),
        ("k2v8", (2, 8)),
        ("k4v16", (4, 16)),
    ],
)
def test_names_say_key_and_value_bits(name: str, bits: tuple[int, int]):
    profile = get_profile(name)
    assert (profile.name, profile.k_bits, profile.v_bits) == (name, *bits)
    assert (profile.sink, profile.window, profile.move) == (4, 128, 64)


def test_the_default_is_turbo4():
    assert DEFAULT_PROFILE == "turbo4"
    assert get_profile(DEFAULT_PROFILE) is PROFILES["turbo4"]


@pytest.mark.parametrize(
    ("name", "exact"), [("exact", True), ("k16v16", True), ("v-only", False), ("k4v16", False)]
)
def test_a_profile_is_exact_only_where_keys_and_values_are(name: str, exact: bool):
    assert get_profile(name).is_exact is exact


@pytest.mark.parametrize(
    "name",
    ["", "turbo", "Turbo4", "k4", "k4v5", "k1v4", "k4v32", "k4v4 ", "k-4v4", "k٤v4", "k" + "9" * 5000 + "v4"],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str):
    with pytest.raises(UsageError) as caught:
        get_profile(name)
    assert "exact, k8v4, turbo4, turbo3, turbo2, v-only" in caught.value.one_line()
    assert caught.value.exit_code == 2


@given(st.text())
def test_any_name_is_a_profile_or_a_usage_error(name: str):
    try:
        assert get_profile(name).name == name
    except UsageError as err:
        assert "no KV profile" in str(err)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k_bits": 5}, "k_bits is 5; allowed are"),
        ({"v_bits": 0}, "v_bits is 0; allowed are"),
        ({"sink": -1}, "sink -1, window 128, move 64"),
        ({"window": 0}, "window 0"),
        ({"move": 0}, "move 0"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        Profile(**({"name": "x", "k_bits": 4, "v_bits": 4} | fields))


def test_as_dict_has_every_field():
    assert PROFILES["k8v4"].as_dict() == {
        "name": "k8v4",
        "k_bits": 8,
        "v_bits": 4,
        "sink": 4,
        "window": 128,
        "move": 64,
    }
