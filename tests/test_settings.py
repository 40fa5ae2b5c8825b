"""Where settings come from, which one wins, and how a wrong one is named."""

import pytest

from satchel.config.paths import expand
from satchel.config.settings import Settings, load_settings
from satchel.errors import UsageError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file of this test's own, and no setting in the environment."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SATCHEL_CONFIG", str(path))
    for key in Settings.model_fields:
        monkeypatch.delenv(f"SATCHEL_{key.upper()}", raising=False)
    return path


def complaint(overrides=None):
    with pytest.raises(UsageError) as raised:
        load_settings(overrides)
    return raised.value.one_line()


def test_defaults_without_a_file(config):
    assert load_settings().model_dump() == {
        "model": "embedded",
        "kv_profile": "turbo4",
        "max_tokens": 1024,
        "temperature": None,
        "top_p": None,
        "seed": None,
        "system_prompt": "",
        "auto_save": True,
        "prefill_step": 512,
        "max_store_size": "",
        "share_prefixes": True,
        "checkpoint_blocks": 16,
    }


def test_environment_wins_over_the_file_and_options_win_over_both(config, monkeypatch):
    config.write_text('model = "from-file"\nmax_tokens = 10\ntemperature = 0\nseed = 7\n')
    monkeypatch.setenv("SATCHEL_MAX_TOKENS", "20")
    monkeypatch.setenv("SATCHEL_TEMPERATURE", "0.5")
    monkeypatch.setenv("SATCHEL_AUTO_SAVE", "false")
    settings = load_settings({"temperature": 0.25, "model": None})
    assert (settings.model, settings.max_tokens, settings.temperature) == ("from-file", 20, 0.25)
    assert (settings.auto_save, settings.seed) == (False, 7)


def test_an_empty_environment_variable_sets_nothing(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_MODEL", "")
    assert load_settings().model == "embedded"


def test_a_misspelt_key_is_named_with_the_nearest_right_one(config):
    config.write_text("max_token = 5\n")
    assert complaint() == f"{config}: there is no setting 'max_token'; did you mean max_tokens?"


def test_a_key_like_no_other_gets_the_list(config):
    config.write_text("zzz = 5\n")
    assert complaint().startswith(f"{config}: there is no setting 'zzz'; known are model, kv_profile, ")


def test_a_value_of_the_wrong_type_is_named(config):
    config.write_text('max_tokens = "many"\n')
    assert complaint() == f"{config}: max_tokens is 'many'; Input should be a valid integer"


def test_a_value_out_of_range_is_named(config):
    assert (
        complaint({"max_tokens": 0}) == "options: max_tokens is 0; Input should be greater than or equal to 1"
    )


def test_a_wrong_environment_variable_is_named_by_its_name(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_TOP_P", "2")
    assert complaint().startswith("environment: SATCHEL_TOP_P is '2'; ")


def test_an_unknown_profile_lists_the_known_ones(config):
    assert complaint({"kv_profile": "turbo9"}).startswith(
        "no KV profile is called 'turbo9' (turbo has 2, 3, 4, 8 bits, not 9); known are exact, "
    )


def test_a_file_that_is_not_toml_is_named_with_the_line(config):
    config.write_text("model = \n")
    assert complaint().startswith(f"{config} is not valid TOML: ")
    assert "line 1" in complaint()


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_a_file_that_python_refuses_to_parse_is_named(config, value):
    config.write_text(f"seed = {value}\n")
    assert complaint().startswith(f"{config} is not valid TOML: ")


def test_a_number_too_long_to_print_is_named(config):
    config.write_text(f"seed = 0x{'f' * 5000}\n")
    assert complaint().startswith(f"{config}: seed is a number of thousands of digits; Input should be less")


def test_a_seed_has_64_bits(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_SEED", str(2**64 - 1))
    assert load_settings().seed == 18446744073709551615
    monkeypatch.setenv("SATCHEL_SEED", str(2**64))
    assert complaint() == (
        "environment: SATCHEL_SEED is '18446744073709551616'; Input should be less than 18446744073709551616"
    )


@pytest.mark.parametrize("key", ["temperature", "top_p"])
def test_no_number_is_no_setting(config, key):
    assert complaint({key: float("nan")}) == f"options: {key} is nan; Input should be a finite number"


@pytest.mark.parametrize("name", ["~nosuchuser/x", "~no\0user/x"])
def test_a_home_that_is_not_known_is_named(name):
    with pytest.raises(UsageError) as raised:
        expand(name)
    assert raised.value.one_line() == f"{name!r} names no home directory; write the path from / on"


def test_settings_cannot_be_changed_after_loading(config):
    with pytest.raises(ValueError, match="frozen"):
        load_settings().model = "other"


def test_a_size_that_is_none_names_the_setting(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_MAX_STORE_SIZE", "lots")
    with pytest.raises(UsageError, match="SATCHEL_MAX_STORE_SIZE is 'lots'"):
        load_settings()
    monkeypatch.setenv("SATCHEL_MAX_STORE_SIZE", "20GB")
    assert load_settings().max_store_bytes == 20_000_000_000
