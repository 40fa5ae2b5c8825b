"""KV profiles: the grammar of their names, which codecs layers get, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.config.profiles import (
    CODEC_BITS,
    DEFAULT_PROFILE,
    EXACT,
    GROUP_SIZES,
    PROFILES,
    CodecSpec,
    Profile,
    get_profile,
)
from satchel.errors import UsageError

SPECS = [
    CodecSpec(codec, bits, group)
    for codec, allowed in CODEC_BITS.items()
    for bits in allowed or (0,)
    for group in (GROUP_SIZES if codec == "affine" else (0,))
]


def codecs(name: str) -> tuple[str, str]:
    """Of keys and of values."""
    profile = get_profile(name)
    return str(profile.keys), str(profile.values)


def refusal(name: str) -> str:
    """What a user reads who asks for `name`."""
    with pytest.raises(UsageError) as caught:
        get_profile(name)
    assert caught.value.exit_code == 2
    assert len(caught.value.one_line()) < 600
    return caught.value.one_line()


# -- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact", ("exact", "exact")),
        ("k8v4", ("turbo8", "turbo4")),
        ("turbo4", ("turbo4", "turbo4")),
        ("turbo3", ("turbo3", "turbo3")),
        ("turbo2", ("turbo2", "turbo2")),
        ("v-only", ("exact", "turbo3")),
        ("k4v3", ("turbo4", "turbo3")),
        ("k16v2", ("exact", "turbo2")),
        ("k2v8", ("turbo2", "turbo8")),
        ("k4v16", ("turbo4", "exact")),
    ],
)
def test_names_say_the_codecs_of_keys_and_values(name: str, expected: tuple[str, str]):
    profile = get_profile(name)
    assert (profile.name, codecs(name)) == (name, expected)
    assert (profile.sink, profile.window, profile.move) == (4, 128, 64)
    assert (profile.boundary, profile.recurrent) == (0, 16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("turbo8", ("turbo8", "turbo8")),
        ("affine4", ("affine4/64", "affine4/64")),  # mlx-lm's own group size
        ("affine3/32", ("affine3/32", "affine3/32")),
        ("affine8/128", ("affine8/128", "affine8/128")),
        ("tq-mse1", ("tq-mse1", "tq-mse1")),
        ("tq-prod3", ("tq-prod3", "tq-prod3")),
        ("polar", ("polar", "polar")),
    ],
)
def test_a_codec_alone_is_for_keys_and_values(name: str, expected: tuple[str, str]):
    assert codecs(name) == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qjl1", "affine2/32"),
        ("qjl2", "affine2/32"),
        ("qjl3", "affine3/32"),
        ("qjl4", "affine4/32"),
        ("qjl8", "affine8/32"),
    ],
)
def test_values_beside_sketched_keys_are_min_max_quantised(name: str, values: str):
    assert codecs(name) == (name, values)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qjl4+affine4/32", ("qjl4", "affine4/32")),
        ("turbo4+turbo2", ("turbo4", "turbo2")),
        ("tq-prod3+tq-mse2", ("tq-prod3", "tq-mse2")),
        ("polar+affine4", ("polar", "affine4/64")),
        ("exact+turbo3", ("exact", "turbo3")),
        ("turbo4+exact", ("turbo4", "exact")),
        ("exact+exact", ("exact", "exact")),
    ],
)
def test_two_codecs_are_one_for_keys_and_one_for_values(name: str, expected: tuple[str, str]):
    assert codecs(name) == expected


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_codec_can_be_named(spec: CodecSpec):
    assert CodecSpec.parse(str(spec)) == spec
    profile = get_profile(f"{spec}+{spec}")
    assert (profile.keys, profile.values) == (spec, spec)


def test_the_default_is_turbo4():
    assert DEFAULT_PROFILE == "turbo4"
    assert get_profile(DEFAULT_PROFILE) == PROFILES["turbo4"]


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("exact", True),
        ("k16v16", True),
        ("exact+exact,window=64", True),
        ("v-only", False),
        ("k4v16", False),
        ("polar", False),
    ],
)
def test_a_profile_is_exact_only_where_keys_and_values_are(name: str, exact: bool):
    assert get_profile(name).is_exact is exact


# -- options -------------------------------------------------------------------------------------------


def test_options_follow_the_name():
    profile = get_profile("k4v3,window=256,sink=0,boundary=2,recurrent=8")
    assert profile.name == "k4v3,window=256,sink=0,boundary=2,recurrent=8"
    assert (str(profile.keys), str(profile.values)) == ("turbo4", "turbo3")
    assert (profile.window, profile.sink, profile.boundary, profile.recurrent) == (256, 0, 2, 8)
    assert profile.move == 64


@pytest.mark.parametrize("base", ["exact", "tq-mse4", "qjl4+affine4/32", "affine4/32"])
def test_options_go_with_every_kind_of_name(base: str):
    assert get_profile(f"{base},sink=8") == replace(get_profile(base), name=f"{base},sink=8", sink=8)


def test_options_that_say_the_default_change_nothing_that_is_held():
    assert get_profile("turbo4,sink=4,window=128").as_dict() == PROFILES["turbo4"].as_dict()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("", "'' is no option of a KV profile"),
        ("sink", "'sink' is no option"),
        ("sink=", "'sink=' is no option"),
        ("sink=-1", "'sink=-1' is no option"),
        ("sink=4.0", "'sink=4.0' is no option"),
        ("sink=٤", "is no option"),
        (" sink=4", "' sink=4' is no option"),
        ("sink=4=4", "'sink=4=4' is no option"),
        ("sink=99999999", "'sink=99999999' is no option"),
        ("move=8", "'move=8' is no option"),
        ("keys=8", "'keys=8' is no option"),
        ("sink=4,sink=4", "'sink=4' is no option"),
        ("x" * 5000, "is no option"),
        ("sink=1025", "sink is 1025; allowed are 0 to 1024"),
        ("window=0", "window is 0; allowed are 1 to 1048576"),
        ("boundary=65", "boundary is 65; allowed are 0 to 64"),
        ("recurrent=4", "recurrent is 4; allowed are 8 and 16"),
        ("raised=", "'raised=' is no option"),
        ("raised=1,raised=2", "'raised=2' is no option"),
        ("raised=1..2", "'raised=1..2' is no option"),
        ("raised=-1", "'raised=-1' is no option"),
        ("share=1", "'share=1' is no option"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_option_is_named(option: str, message: str):
    said = refusal(f"turbo4,{option}")
    assert message in said
    if "no option" in message:
        assert "sink, window, boundary, recurrent, raised" in said


# -- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "turbo", "Turbo4", "k4", "k4v5", "k1v4", "k4v32", "k4v4 ", "k-4v4", "k٤v4", "k" + "9" * 5000 + "v4"],
    ids=lambda name: name[:20],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str):
    said = refusal(name)
    assert "exact, k8v4, turbo4, turbo3, turbo2, v-only" in said
    assert "turbo, affine, tq-mse, tq-prod, qjl, polar" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("turbo5", "turbo has 2, 3, 4, 8 bits, not 5"),
        ("k5v4", "turbo has 2, 3, 4, 8 bits, not 5"),
        ("affine1", "affine has 2, 3, 4, 8 bits, not 1"),
        ("affine4/16", "affine has no groups of 16"),
        ("affine4/256", "affine has no groups of 256"),
        ("turbo4/64", "turbo has no groups of 64"),
        ("tq-mse8", "tq-mse has 1, 2, 3, 4 bits, not 8"),
        ("tq-prod1", "tq-prod has 2, 3, 4 bits, not 1"),
        ("qjl5", "qjl has 1, 2, 3, 4, 8 bits, not 5"),
        ("polar4", "polar has no choice of bits, not 4"),
        ("exact16", "exact has no choice of bits, not 16"),
        ("nvfp4", "no codec is called 'nvfp'"),
        ("turbo4+turbo5", "turbo has 2, 3, 4, 8 bits, not 5"),
        ("turbo4+turbo4+turbo4", "'turbo4+turbo4' is no codec"),
        ("turbo4+", "'' is no codec"),
        ("qjl4+", "'' is no codec"),
        ("exact+", "'' is no codec"),
        ("+turbo4", "'' is no codec"),
        ("turbo04", "'turbo04' is no codec"),
        ("polar0", "'polar0' is no codec"),
        ("turbo4/0", "'turbo4/0' is no codec"),
    ],
)
def test_a_wrong_codec_is_named(name: str, reason: str):
    said = refusal(name)
    assert f"no KV profile is called {name!r}" in said
    assert reason in said


@given(st.text())
def test_any_name_is_a_profile_or_a_usage_error(name: str):
    try:
        assert get_profile(name).name == name
    except UsageError as err:
        assert "KV profile" in str(err)


@given(st.from_regex(r"\A[a-z0-9/+,=-]{0,30}\Z"))
def test_any_name_of_the_grammars_letters_is_a_profile_or_a_usage_error(name: str):
    test_any_name_is_a_profile_or_a_usage_error.hypothesis.inner_test(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sink": -1}, "sink is -1; allowed are 0 to 1024"),
        ({"window": 0}, "window is 0; allowed are 1 to"),
        ({"move": 0}, "move is 0; allowed are 1 to 4096"),
        ({"boundary": -1}, "boundary is -1; allowed are 0 to 64"),
        ({"recurrent": 0}, "recurrent is 0; allowed are 8 and 16"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        Profile("x", EXACT, EXACT, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("nope", 4), "no codec is called 'nope'; known are exact, turbo, affine, tq-mse, tq-prod, qjl, pol"),
        (("turbo", 5), "turbo has 2, 3, 4, 8 bits, not 5"),
        (("turbo", 0), "turbo has 2, 3, 4, 8 bits, not 0"),
        (("exact", 16), "exact has no choice of bits, not 16"),
        (("affine", 4), "affine has no groups of 0"),
        (("turbo", 4, 64), "turbo has no groups of 64"),
    ],
)
def test_a_wrong_spec_is_refused(fields: tuple[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        CodecSpec(*fields)


# -- layers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boundary", "layers", "safe"),
    [
        (0, 6, []),
        (1, 6, [0, 5]),
        (2, 6, [0, 1, 4, 5]),
        (3, 6, [0, 1, 2, 3, 4, 5]),
        (9, 6, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0]),
    ],
)
def test_boundary_layers_have_eight_bits(boundary: int, layers: int, safe: list[int]):
    profile = get_profile(f"k4v3,boundary={boundary}")
    held = {index: profile.for_layer(index, layers) for index in range(layers)}
    assert {index for index, layer in held.items() if layer != profile} == set(safe)
    for index in safe:
        assert (str(held[index].keys), str(held[index].values)) == ("turbo8", "turbo8")
        assert (held[index].sink, held[index].window, held[index].move) == (4, 128, 64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact", ("exact", "exact")),
        ("v-only", ("exact", "turbo8")),
        ("k4v16", ("turbo8", "exact")),
        ("k8v4", ("turbo8", "turbo8")),
        ("affine4/32", ("affine8/32", "affine8/32")),  # a codec's own 8 bits where it has them
        ("affine8/128", ("affine8/128", "affine8/128")),
        ("qjl2", ("qjl8", "affine8/32")),
        ("tq-mse4", ("turbo8", "turbo8")),
        ("tq-prod4", ("turbo8", "turbo8")),
        ("polar", ("turbo8", "turbo8")),
    ],
)
def test_a_boundary_layer_is_as_near_to_the_profile_as_eight_bits_allow(name: str, expected: tuple[str, str]):
    layer = get_profile(f"{name},boundary=1").for_layer(0, 3)
    assert (str(layer.keys), str(layer.values)) == expected


def test_raised_layers_have_keys_of_more_bits():
    profile = get_profile("k4v3,raised=2.0")
    assert profile.raised == (0, 2)
    keys = [str(profile.for_layer(index, 4).keys) for index in range(4)]
    assert keys == ["turbo8", "turbo4", "turbo8", "turbo4"]
    assert {str(profile.for_layer(index, 4).values) for index in range(4)} == {"turbo3"}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("turbo2", "turbo3"),
        ("turbo3", "turbo4"),
        ("turbo4", "turbo8"),
        ("k8v4", "turbo8"),
        ("v-only", "exact"),
        ("affine4/32", "affine4/32"),  # turbo's alone are raised
        ("turbo2,boundary=1", "turbo8"),
    ],
)
def test_a_raised_layer_goes_up_a_step(name: str, keys: str):
    assert str(get_profile(f"{name},raised=0").for_layer(0, 3).keys) == keys


def test_a_models_most_sensitive_layers_are_raised():
    profile = replace(get_profile("k3v3"), share=1 / 2).for_model([0.1, 3.0, 0.2, 2.0, 1.0])
    assert profile.raised == (1, 3)  # half of five layers, rounded down
    assert (profile.name, profile.asked, profile.share) == ("k3v3,raised=1.3", "k3v3", 0)
    assert get_profile(profile.name) == profile


def test_a_profile_without_a_share_has_no_raised_layers():
    profile = get_profile("k3v3")
    assert profile.for_model([0.1, 3.0, 0.2]) == profile
    assert [get_profile(name).share for name in ("turbo4", "turbo3", "turbo2")] == [1 / 8, 1 / 2, 1 / 2]
    assert get_profile("turbo3,raised=1").share == 0  # the layers are named


# -- identity ------------------------------------------------------------------------------------------


def test_as_dict_has_every_field_but_the_name():
    assert PROFILES["k8v4"].as_dict() == {
        "keys": "turbo8",
        "values": "turbo4",
        "sink": 4,
        "window": 128,
        "move": 64,
        "boundary": 0,
        "raised": [],
        "recurrent": 16,
    }
    assert get_profile("k8v4").as_dict() == get_profile("turbo8+turbo4").as_dict()
    assert get_profile("affine4").as_dict()["keys"] == "affine4/64"
