"""Where settings come from, which one wins, how a wrong one is named, and how one is changed in the file."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from satchel.config import settings_file
from satchel.config.paths import expand
from satchel.config.settings import (
    Settings,
    check_text,
    known_keys,
    load_settings,
    set_in_file,
    set_text_in_file,
    setting,
    settings_in_force,
    stray_variables,
    unset_in_file,
    variable,
)
from satchel.errors import SatchelError, UsageError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file of this test's own, and no setting in the environment."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SATCHEL_CONFIG", str(path))
    for key in known_keys():
        monkeypatch.delenv(variable(key), raising=False)
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
        "models": {},
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


def test_a_key_like_no_other_is_sent_to_the_list(config):
    config.write_text("zzz = 5\n")
    said = f"{config}: there is no setting 'zzz'; `satchel config show` lists those that there are"
    assert complaint() == said


def test_a_value_of_the_wrong_type_is_named(config):
    config.write_text('max_tokens = "many"\n')
    assert complaint() == f"{config}: max_tokens is 'many'; write a whole number, at least 1, without quotes"


def test_a_value_out_of_range_is_named(config):
    assert complaint({"max_tokens": 0}) == "--max-tokens is 0; at least 1"
    assert complaint({"system_prompt": 1}).startswith("--system is 1; ")


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
    assert complaint().startswith(f"{config}: seed is a number of thousands of digits; below 2^64")


def test_a_seed_has_64_bits(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_SEED", str(2**64 - 1))
    assert load_settings().seed == 18446744073709551615
    monkeypatch.setenv("SATCHEL_SEED", str(2**64))
    assert complaint() == ("environment: SATCHEL_SEED is '18446744073709551616'; below 2^64")


@pytest.mark.parametrize(
    ("key", "right"), [("temperature", "a number, 0 to 5"), ("top_p", "a number, above 0 and at most 1")]
)
def test_no_number_is_no_setting(config, key, right):
    assert complaint({key: float("nan")}) == f"--{key.replace('_', '-')} is nan; write {right}"


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
        ("[sync]\nauto = 'yes'\n", "sync.auto is 'yes'; write true or false, without quotes"),
        ("[sync.auto]\nx = 1\n", "sync.auto is a table; write true or false"),
        ("[max_tokens]\nx = 1\n", "max_tokens is a table; write a whole number, at least 1"),
        ("sync = true\n", "sync is true; it is a table: write [sync] and auto below it"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_by_its_whole_key(config, text, said):
    config.write_text(text)
    assert complaint() == f"{config}: {said}"


def test_a_wrong_option_and_a_wrong_variable_of_a_table_are_named(config, monkeypatch):
    assert complaint({"sync.auto": 1}) == "--sync.auto is 1; write true or false"
    assert complaint({"sync.aut": True}).startswith("there is no setting 'sync.aut'; did you mean")
    monkeypatch.setenv("SATCHEL_SYNC_AUTO", "perhaps")
    assert complaint().startswith("environment: SATCHEL_SYNC_AUTO is 'perhaps'; write true or false")


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
        ("sync.aut", True, "there is no setting 'sync.aut'; did you mean sync.auto?"),
        ("sync", True, "sync is true; it is a table: write [sync] and auto below it"),
        ("sync.auto.x", True, "sync.auto is a table; write true or false"),
        ("max_tokens", 0, "max_tokens is 0; at least 1"),
        ("", True, "there is no setting ''; `satchel config show`"),
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
    with pytest.raises(SatchelError, match=r"cannot read .*: Not a directory"):
        set_in_file("sync.auto", True)


@pytest.mark.parametrize("mode", [0o444, 0o400])
def test_a_read_only_file_is_not_replaced(config, mode):
    config.write_text("seed = 1\n")
    config.chmod(mode)
    with pytest.raises(SatchelError, match="is read-only"):
        set_in_file("seed", 2)
    assert config.read_text() == "seed = 1\n"


def test_a_file_keeps_its_mode_and_its_byte_order_mark(config):
    config.write_bytes(b"\xef\xbb\xbfseed = 1\n")
    config.chmod(0o644)
    set_in_file("seed", 2)
    assert config.read_bytes() == b"\xef\xbb\xbfseed = 2\n"
    assert config.stat().st_mode & 0o777 == 0o644


def test_what_is_no_file_is_neither_read_nor_replaced(config, monkeypatch):
    os.mkfifo(config)
    assert complaint() == f"{config} is not a file; SATCHEL_CONFIG names another file for the settings"
    monkeypatch.setenv("SATCHEL_CONFIG", os.devnull)
    assert load_settings() == Settings()
    with pytest.raises(SatchelError, match="/dev/null is no file"):
        set_in_file("seed", 2)
    assert not Path(os.devnull).is_file()


def test_a_link_to_nothing_is_named(config):
    config.symlink_to("gone.toml")
    assert complaint().startswith(f"{config} is a link to nothing; ")


def test_a_change_that_another_program_makes_meanwhile_is_kept(config, monkeypatch):
    config.write_text("seed = 1\n")
    real, others = settings_file.replace, [b"seed = 1\ntop_p = 0.5\n"]

    def replace(before, text):
        if others:
            config.write_bytes(others.pop())
        return real(before, text)

    monkeypatch.setattr(settings_file, "replace", replace)
    set_in_file("seed", 2)
    assert config.read_text() == "seed = 2\ntop_p = 0.5\n"


def test_changes_at_the_same_time_are_all_kept(config):
    keys = [key for key in known_keys() if key.startswith("terminal.")] + ["seed", "max_tokens", "top_p"]
    values = {"terminal.editing": "vi", "terminal.code_theme": "monokai", "top_p": 0.5, "max_tokens": 5}
    threads = [
        threading.Thread(target=set_in_file, args=(key, values.get(key, 0 if key == "seed" else False)))
        for key in keys
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settings = load_settings()
    assert settings.terminal.model_dump() == {
        "editing": "vi",
        "markdown": False,
        "code_theme": "monokai",
        "toolbar": False,
    }
    assert (settings.seed, settings.max_tokens, settings.top_p) == (0, 5, 0.5)


# Values as they are typed


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("temperature", "0.3", "temperature = 0.3\n"),
        ("temperature", "1", "temperature = 1\n"),
        ("auto_save", "off", "auto_save = false\n"),
        ("seed", "18446744073709551615", "seed = 18446744073709551615\n"),
        ("max_store_size", "20GB", 'max_store_size = "20GB"\n'),
        ("system_prompt", 'Say "hi"\nto \x1b[2J all', 'system_prompt = "Say \\"hi\\"\\nto \\u001b[2J all"\n'),
        ("shell.approve", "read-only", '[shell]\napprove = "read-only"\n'),
        ("models.qwen3.5-9b", "a/b", '[models]\n"qwen3.5-9b" = "a/b"\n'),
    ],
)
def test_a_typed_value_is_taken_by_the_kind_of_its_setting(config, key, text, line):
    set_text_in_file(key, text)
    assert config.read_text() == line
    load_settings()


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("temperature", "9", "temperature is '9'; at most 5"),
        ("top_p", "0", "top_p is '0'; above 0"),
        ("agent.answer_share", "1", "agent.answer_share is '1'; below 1"),
        ("max_tokens", "1.5", "max_tokens is '1.5'; write a whole number, at least 1"),
        ("search.results", "some", "search.results is 'some'; write a whole number, 1 to 20"),
        (
            "seed",
            "",
            "seed is ''; write a whole number, at least 0 and below 2^64; `satchel config unset seed`",
        ),
        ("sync.auto", "maybe", "sync.auto is 'maybe'; write true or false"),
        ("terminal.editing", "vim", "terminal.editing is 'vim'; did you mean vi? emacs or vi is right"),
        ("terminal.editing", "qqq", "terminal.editing is 'qqq'; write emacs or vi"),
        ("max_store_size", "lots", "max_store_size is 'lots'; write bytes, or KB, MB, "),
        ("kv_profile", "turbo9", "no KV profile is called 'turbo9'"),
        ("model", "", "model is ''; write embedded, a name, a hub name, an MLX folder or a GGUF file"),
        ("models.a/b", "x", "'a/b' is no name for a model; use letters, digits, "),
        ("models.Embedded", "x", "'Embedded' is no name for a model; "),
        ("models.x", " ", "models.x is ' '; write a hub name or a path"),
        ("models", "x", "models is 'x'; it is a table: "),
        ("system_prompt", "caf\udce9", "system_prompt is not UTF-8; type it in a terminal, "),
        ("system_prompt", "x" * (1 << 20), "{file} would have more than 1,048,576 bytes; "),
        ("max-tokens", "5", "there is no setting 'max-tokens'; did you mean max_tokens?"),
        ("toolbar", "on", "there is no setting 'toolbar'; did you mean terminal.toolbar?"),
        ("timeout", "5", "there is no setting 'timeout'; did you mean search.timeout_s or shell.timeout_s?"),
        ("sync.max_tokens", "5", "there is no setting 'sync.max_tokens'; did you mean max_tokens?"),
    ],
)
def test_a_wrong_key_or_value_is_told_in_plain_words(config, key, text, said):
    with pytest.raises(UsageError) as raised:
        set_text_in_file(key, text)
    assert raised.value.one_line().startswith(said.format(file=config))
    assert not config.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "model = 5\n",
            "model is 5; write embedded, a name, a hub name, an MLX folder or a GGUF file, in quotes",
        ),
        ("kv_profile = 'turbo9'\n", "no KV profile is called 'turbo9'"),
        ("terminal.editing = 'VI'\n", "terminal.editing is 'VI'; did you mean vi? emacs or vi is right"),
        ("max_tokens = [1]\n", "max_tokens is a list; write a whole number, at least 1"),
        ("seed = 2026-01-01\n", "seed is 2026-01-01; write a whole number, at least 0 and below 2^64"),
        ("models = 'x'\n", "models is 'x'; it is a table: "),
        ("[models]\nx = 5\n", "models.x is 5; write a hub name, a folder or a GGUF file, in quotes"),
        ("[models]\n'a b' = 'x'\n", "'a b' is no name for a model; "),
        ("'sync.auto' = true\n", "there is no setting 'sync.auto'; write sync.auto without quotes"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_in_plain_words(config, text, said):
    config.write_text(text)
    assert complaint().startswith(f"{config}: {said}")
    with pytest.raises(UsageError):
        check_text(text)


def test_deep_tables_are_one_line(config):
    config.write_text(f"{'.'.join('a' * 3000)} = 1\n")
    assert complaint() == f"{config} has tables in more than 20 tables; `satchel config edit` opens it"
    with pytest.raises(UsageError, match="more than 20 tables"):
        unset_in_file("seed")


def test_no_complaint_speaks_pydantic(config):
    for key in known_keys():
        for value in ([], {"x": {}}, object(), -1, "\0"):
            with contextlib.suppress(SatchelError):
                load_settings({key: value})
                continue
            assert "Input should" not in complaint({key: value})


# Users' names for models


@pytest.mark.parametrize("name", ["qwen3.5-9b", '"qwen3.5-9b"'])
def test_a_name_with_a_dot_needs_no_quotes(config, name):
    config.write_text(f"[models]\n{name} = 'a/b'  # mine\n")
    assert load_settings().models == {"qwen3.5-9b": "a/b"}
    set_in_file("models.qwen3.5-9b", "c/d")
    assert config.read_text() == f'[models]\n{name} = "c/d"  # mine\n'
    assert [(each.key, each.value, each.origin) for each in setting("models")] == [
        ("models.qwen3.5-9b", "c/d", "file")
    ]
    assert unset_in_file("models.qwen3.5-9b")
    assert load_settings().models == {}


# Taking a setting back


def test_unsetting_takes_out_the_line_alone(config):
    config.write_text(MINE)
    assert unset_in_file("sync.auto")
    assert unset_in_file("max_tokens")
    assert config.read_text() == (
        "# my settings\nmodel = 'x'   # the small one\n\n# sync is off for now\n[sync]\n# the end\n"
    )
    assert not unset_in_file("max_tokens")


def test_a_wrong_key_can_be_taken_out(config):
    config.write_text("max_token = 5\nseed = 1\n")
    assert unset_in_file("max_token")
    assert config.read_text() == "seed = 1\n"
    with pytest.raises(UsageError, match="there is no setting 'max_token'"):
        unset_in_file("max_token")


# Where each comes from


def test_each_setting_says_where_it_comes_from(config, monkeypatch):
    config.write_text("seed = 7\nmax_tokens = 10\n")
    monkeypatch.setenv("SATCHEL_MAX_TOKENS", "20")
    found = {each.key: each for each in settings_in_force()}
    assert list(found) == known_keys()
    assert [(found[key].value, found[key].origin) for key in ("seed", "max_tokens", "model", "top_p")] == [
        (7, "file"),
        (20, "environment"),
        ("embedded", "default"),
        (None, "default"),
    ]
    assert found["sync.auto"].variable == "SATCHEL_SYNC_AUTO"
    assert found["search.timeout_s"].allowed == "a number, above 0 and at most 120"


def test_every_setting_has_a_short_meaning(config):
    for each in settings_in_force():
        assert 5 <= len(each.meaning) <= 72, each.key


def test_a_variable_spelt_wrong_is_named(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_MAX_TOKEN", "5")
    said = "environment: there is no setting 'SATCHEL_MAX_TOKEN'; did you mean SATCHEL_MAX_TOKENS?"
    assert complaint() == said
    monkeypatch.delenv("SATCHEL_MAX_TOKEN")
    monkeypatch.setenv("SATCHEL_max_tokens", "5")
    assert complaint() == said.replace("MAX_TOKEN'", "max_tokens'")
    monkeypatch.delenv("SATCHEL_max_tokens")
    monkeypatch.setenv("SATCHEL_QWERTY", "5")
    load_settings()
    assert stray_variables() == ["SATCHEL_QWERTY"]


# Secrets

SETUP = "`satchel sync setup` keeps it in the system's keychain"
OURS = f"{SETUP}, or set SATCHEL_S3_ACCESS_KEY_ID and SATCHEL_S3_SECRET_ACCESS_KEY"


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("sync.secret", OURS),
        ("sync.secret_access_key", OURS),
        ("aws_access_key_id", OURS),
        ("AWS_SECRET_ACCESS_KEY", OURS),
        ("r2.secretKey", OURS),
        ("passphrase", f"{SETUP}, or set SATCHEL_PASSPHRASE for one command"),
        ("sync.recovery_words", f"{SETUP}, or set SATCHEL_PASSPHRASE for one command"),
        ("hf_token", "`hf auth login` keeps it"),
        ("search.api_key", "what opens a bucket, "),
        ("token", "what opens a bucket, "),
        ("proxy.password", "what opens a bucket, "),
    ],
)
def test_a_secret_is_refused_by_its_key_and_never_repeated(config, key, place):
    with pytest.raises(UsageError) as typed:
        set_text_in_file(key, "s3cr3t")
    assert typed.value.one_line().startswith(
        f"{key!r} looks like a secret, which no settings file holds; {place}"
    )
    config.write_text(f"{key} = 's3cr3t'\n")
    assert complaint().startswith(f"{config}: {key!r} looks like a secret, which no settings file holds; ")
    assert "s3cr3t" not in complaint()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("search.url", "https://me:s3cr3t@search.example/"),
        ("search.url", "https://s3cr3t@search.example/"),
        ("search.url", "https://search.example/?api_key=s3cr3t"),
        ("system_prompt", "use AKIAIOSFODNN7EXAMPLE"),
        ("models.mine", "hf_s3cr3ts3cr3ts3cr3ts3cr3t"),
        ("system_prompt", "sk-s3cr3ts3cr3ts3cr3ts3cr3t"),
    ],
)
def test_a_secret_is_refused_by_its_value_and_never_repeated(config, key, value):
    with pytest.raises(UsageError) as raised:
        set_text_in_file(key, value)
    assert raised.value.one_line().startswith(f"{key} holds ")
    assert value not in raised.value.one_line()
    assert not config.exists()
    config.write_text(f"{key} = '{value}'\n")
    assert "holds" in complaint()
    assert value not in complaint()


def test_an_address_with_a_password_belongs_in_the_environment(config, monkeypatch):
    monkeypatch.setenv("SATCHEL_SEARCH_URL", "https://me:pw@search.example/")
    assert load_settings().search.url == "https://me:pw@search.example/"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("search.url", "https://search.example:8080/"),
        ("system_prompt", "what is a token? ask me@example.org, see https://example.org/@me"),
    ],
)
def test_what_is_no_secret_is_taken(config, key, value):
    set_text_in_file(key, value)
    assert value in config.read_text()
