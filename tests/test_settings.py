"""Where settings come from, which one wins, how a wrong one is named, and how one is changed in the file."""

import pytest

from satchel.config.paths import expand
from satchel.config.settings import Settings, load_settings, set_in_file
from satchel.errors import SatchelError, UsageError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file of this test's own, and no setting in the environment."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SATCHEL_CONFIG", str(path))
    for key in (*Settings.model_fields, "sync_auto"):
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
        "sync": {"auto": False},
        "agent": {"routing": True, "when_unsure": "chat", "compact_at": 0.85, "answer_share": 0.25},
        "search": {
            "provider": "ddgs",
            "url": "",
            "results": 5,
            "timeout_s": 10.0,
            "allow_loopback": False,
        },
        "shell": {"approve": "ask", "timeout_s": 120.0, "sandbox": False},
        "terminal": {"editing": "emacs", "markdown": True, "code_theme": "ansi_dark", "toolbar": True},
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


# Tables


@pytest.mark.parametrize("text", ["[sync]\nauto = true\n", "sync.auto = true\n", "sync = {auto = true}\n"])
def test_a_setting_in_a_table_is_read_however_the_table_is_written(config, text):
    config.write_text(text)
    assert load_settings().sync.auto is True


def test_environment_and_options_win_in_a_table_too(config, monkeypatch):
    config.write_text("max_tokens = 10\n[sync]\nauto = true\n")
    monkeypatch.setenv("SATCHEL_SYNC_AUTO", "false")
    assert (load_settings().sync.auto, load_settings().max_tokens) == (False, 10)
    assert load_settings({"sync.auto": True}).sync.auto is True
    assert load_settings({"sync.auto": None}).sync.auto is False


def test_other_variables_of_ours_are_no_settings(config, monkeypatch):
    for name in ("S3_ACCESS_KEY_ID", "S3_ENDPOINT", "PASSPHRASE", "RECOVERY_WORDS", "HOME", "SYNC"):
        monkeypatch.setenv(f"SATCHEL_{name}", "x")
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sync]\naut = true\n", "there is no setting 'sync.aut'; did you mean sync.auto?"),
        ("[sync]\nzzz = true\n", "there is no setting 'sync.zzz'; known are sync.auto"),
        ("[snyc]\nauto = true\n", "there is no setting 'snyc'; did you mean sync?"),
        ("[sync]\nauto = 'yes'\n", "sync.auto is 'yes'; Input should be a valid boolean"),
        ("[sync.auto]\nx = 1\n", "sync.auto is {'x': 1}; Input should be a valid boolean"),
        ("[max_tokens]\nx = 1\n", "max_tokens is {'x': 1}; Input should be a valid integer"),
        ("sync = true\n", "sync is True; it is a table: write [sync] and auto below it"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_by_its_whole_key(config, text, said):
    config.write_text(text)
    assert complaint() == f"{config}: {said}"


def test_a_wrong_option_and_a_wrong_variable_of_a_table_are_named(config, monkeypatch):
    assert complaint({"sync.auto": 1}) == "options: sync.auto is 1; Input should be a valid boolean"
    assert complaint({"sync.aut": True}).startswith("options: there is no setting 'sync.aut'; did you mean")
    monkeypatch.setenv("SATCHEL_SYNC_AUTO", "perhaps")
    assert complaint().startswith("environment: SATCHEL_SYNC_AUTO is 'perhaps'; Input should be a valid bool")


# Changing the file

MINE = """# my settings
model = 'x'   # the small one

max_tokens = 10  # short
# sync is off for now
[sync]
auto = false  # until the NAS is back
# the end
"""


def test_changing_a_setting_keeps_comments_order_and_line_ends(config):
    config.write_bytes(MINE.replace("\n", "\r\n").encode())
    set_in_file("sync.auto", True)
    set_in_file("max_tokens", 20)
    changed = MINE.replace("auto = false", "auto = true").replace("max_tokens = 10", "max_tokens = 20")
    assert config.read_bytes() == changed.replace("\n", "\r\n").encode()
    settings = load_settings()
    assert (settings.sync.auto, settings.max_tokens, settings.model) == (True, 20, "x")


def test_the_file_is_made_private_where_there_is_none(tmp_path, monkeypatch):
    config = tmp_path / "new" / "config.toml"
    monkeypatch.setenv("SATCHEL_CONFIG", str(config))
    set_in_file("sync.auto", True)
    assert config.read_text() == "[sync]\nauto = true\n"
    assert config.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[sync]\nauto = true\n", "max_tokens = 7\n\n[sync]\nauto = true\n"),
        ("model = 'x'", "model = 'x'\nmax_tokens = 7\n"),
        ("max_tokens = 1", "max_tokens = 7"),
    ],
)
def test_a_setting_that_is_not_there_yet_stands_above_the_tables(config, text, changed):
    config.write_text(text)
    set_in_file("max_tokens", 7)
    assert config.read_text() == changed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("sync.auto = false # c\nmodel = 'x'\n", "sync.auto = true # c\nmodel = 'x'\n"),
        ("sync = {auto = false}\n", "sync = {auto = true}\n"),
        ("sync = {}\n", "sync = {auto = true}\n"),
        ("model = 'x'\n", "model = 'x'\n\n[sync]\nauto = true\n"),
    ],
)
def test_a_table_stays_as_it_is_written(config, text, changed):
    config.write_text(text)
    set_in_file("sync.auto", True)
    assert config.read_text() == changed


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sync.aut", True, "options: there is no setting 'sync.aut'; did you mean sync.auto?"),
        ("sync", True, "options: sync is True; it is a table: write [sync] and auto below it"),
        ("sync.auto.x", True, "options: sync.auto is {'x': True}; Input should be a valid boolean"),
        ("max_tokens", 0, "options: max_tokens is 0; Input should be greater than or equal to 1"),
        ("", True, "options: there is no setting ''; known are model, kv_profile"),
    ],
)
def test_a_wrong_key_or_value_leaves_the_file_alone(config, key, value, said):
    config.write_text(MINE)
    with pytest.raises(UsageError) as raised:
        set_in_file(key, value)
    assert raised.value.one_line().startswith(said)
    assert config.read_text() == MINE


@pytest.mark.parametrize("text", ["model = \n", "max_tokens = 'many'\n", "sync = true\n", "\udcff"])
def test_a_file_that_is_wrong_already_is_not_touched(config, text):
    config.write_text(text, errors="surrogateescape")
    before = config.read_bytes()
    with pytest.raises(UsageError, match=r"config\.toml"):
        set_in_file("sync.auto", True)
    assert config.read_bytes() == before


def test_a_link_to_the_settings_stays_one(config, tmp_path):
    (real := tmp_path / "dotfiles.toml").write_text("model = 'x'\n")
    config.symlink_to(real)
    set_in_file("model", "y")
    assert (config.is_symlink(), real.read_text()) == (True, 'model = "y"\n')


def test_a_settings_file_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SATCHEL_CONFIG", str(tmp_path / "file" / "config.toml"))
    with pytest.raises(SatchelError, match="cannot be read: Not a directory"):
        set_in_file("sync.auto", True)
