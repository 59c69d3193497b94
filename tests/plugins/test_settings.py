"""Settings: one reader of the environment; a bad value names the variable or the flag."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from kinfolk.errors import SettingsError
from kinfolk.settings import (
    ALIASES,
    PREFIX,
    Settings,
    flag,
    load_settings,
    typed_options,
    unknown_variables,
    variable,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith(PREFIX) or name in ALIASES:
            monkeypatch.delenv(name)


def test_defaults_need_no_environment():
    settings = load_settings()
    assert settings.plugins is None
    assert settings.policy == ()
    assert settings.op == {}
    assert (settings.slots, settings.quantum, settings.device) == (8, 16, "auto")
    assert settings.cache_dir.name == "kinfolk"


def test_settings_are_frozen():
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.slots = 3
    with pytest.raises(TypeError):
        load_settings(op="a=b").op["c"] = "d"


def test_a_variable_is_read_and_an_option_wins(monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOTS", "3")
    assert load_settings().slots == 3
    assert load_settings(slots=5).slots == 5
    assert load_settings(slots=None).slots == 3


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("  ", ()), ("a", ("a",)), ("a,b", ("a", "b")), (" b , a ", ("b", "a"))],
)
def test_names_are_separated_by_commas_and_keep_their_order(monkeypatch, text, names):
    monkeypatch.setenv("KINFOLK_POLICY", text)
    monkeypatch.setenv("KINFOLK_PLUGINS", text)
    settings = load_settings()
    assert settings.policy == names
    assert settings.plugins == names


def test_ops_are_pairs(monkeypatch):
    monkeypatch.setenv("KINFOLK_OP", "rope=torch, linear=reference")
    assert load_settings().op == {"rope": "torch", "linear": "reference"}
    assert load_settings(op=("rope=reference",)).op == {"rope": "reference"}


def test_a_blank_text_is_unset(monkeypatch):
    monkeypatch.setenv("KINFOLK_MODEL_FAMILY", "")
    monkeypatch.setenv("KINFOLK_DRAFT_MODEL", " ")
    monkeypatch.setenv("KINFOLK_EXPERT_PROFILE", "")
    settings = load_settings()
    assert (settings.model_family, settings.policy) == (None, ())
    assert (settings.draft_model, settings.expert_profile) == (None, None)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("slots", "0", "must be a whole number, at least 1 and at most 1024 (got '0')"),
        ("slots", "many", "must be a whole number, at least 1 and at most 1024 (got 'many')"),
        ("slots", "", "must be a whole number"),
        ("cache_dir", "", "must be a path, and is empty (got '')"),
        ("context", "-4", "must be a whole number, at least 1 (got '-4')"),
        ("quantum", "1.5", "must be a whole number"),
        ("draft_tokens", "64", "at most 63"),
        ("memory", "much", "must be a number, above 0"),
        ("memory", "0", "must be a number, above 0"),
        ("memory", "nan", "must be a number, above 0"),
        ("memory", "inf", "must be a number, above 0"),
        ("memory", "1e300", "must be a number, above 0"),
        ("cache_memory", "1e300", "must be a number"),
        ("cache_disk", "1e300", "must be a number"),
        ("expert_host", "1e300", "must be a number, above 0"),
        ("dtype", "f64", "must be auto, f32, f16 or bf16 (got 'f64')"),
        ("dtype", "BF16", "(got 'BF16'); did you mean bf16?"),
        ("weights", "pack", "did you mean packed?"),
        ("device", "gpu", "must be auto, cpu, cuda, or cuda:N for the GPU of number N"),
        ("device", "cuda:", "must be auto, cpu, cuda, or cuda:N for the GPU of number N"),
        ("kv_codec", "q5", "must be f32, f16, bf16, q8_0 or q4_0"),
        ("kvflash", "0", "must be a number of tokens, auto or off (got '0')"),
        ("kvflash", "-512", "must be a number of tokens, auto or off"),
        ("kvflash", "some", "must be a number of tokens, auto or off"),
        ("kvflash", "1.5", "must be a number of tokens, auto or off"),
        ("kvflash_tau", "0", "must be a whole number, at least 1"),
        ("kvflash_tau", "often", "must be a whole number, at least 1"),
        ("kvflash_burst", "0", "must be a whole number, at least 1"),
        ("kvflash_most", "0", "must be a whole number, at least 1"),
        ("kvflash_host", "0", "must be a number, above 0"),
        ("kvflash_host", "nan", "must be a number, above 0"),
        ("strict_plugins", "perhaps", "must be yes or no"),
        ("policy", "a,,b", "has an empty name"),
        ("policy", "a,b,a", "names 'a' twice"),
        ("plugins", "a,a", "names 'a' twice"),
        ("op", "rope", "'rope' is not of the form NAME=OPTION (got 'rope')"),
        ("op", "rope=", "'rope=' is not of the form NAME=OPTION"),
        ("op", "a=b,a=c", "names 'a' twice"),
        ("log_level", "loud", "must be debug, info, warning or error"),
    ],
)
def test_a_bad_value_names_its_variable_or_its_flag(monkeypatch, name, value, words):
    with pytest.raises(SettingsError) as caught:
        load_settings(**{name: value})
    assert str(caught.value).startswith(f"{flag(name)}: ")
    assert words in str(caught.value)
    monkeypatch.setenv(variable(name), value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value).startswith(f"{variable(name)}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "text", "value"),
    [
        ("DFLASH_KVFLASH", "kvflash", "4096", 4096),
        ("DFLASH_KVFLASH", "kvflash", "auto", "auto"),
        ("DFLASH_KVFLASH_TAU", "kvflash_tau", "32", 32),
        ("DFLASH_KVFLASH_MAX_POOL", "kvflash_most", "8192", 8192),
    ],
)
def test_a_variable_of_another_program_counts_least(monkeypatch, name, field, text, value):
    assert ALIASES[name] == field
    default = getattr(load_settings(), field)
    monkeypatch.setenv(name, text)
    assert getattr(load_settings(), field) == value
    assert load_settings().asked(field)
    assert getattr(load_settings(defaults={field: 512, "slots": 1}), field) == value
    assert getattr(load_settings(**{field: 256}), field) == 256
    monkeypatch.setenv(variable(field), "128")
    assert getattr(load_settings(), field) == 128
    monkeypatch.delenv(variable(field))
    monkeypatch.setenv(name, " ")
    assert getattr(load_settings(), field) == default


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DFLASH_KVFLASH", "must be a number of tokens, auto or off (got '-3')"),
        ("DFLASH_KVFLASH_TAU", "must be a whole number, at least 1 (got '-3')"),
        ("DFLASH_KVFLASH_MAX_POOL", "must be a whole number, at least 1 (got '-3')"),
    ],
)
def test_a_bad_value_of_such_a_variable_names_it(monkeypatch, name, words):
    monkeypatch.setenv(name, "-3")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == f"{name}: {words}"


def test_every_bad_value_is_named_in_one_line(monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOTS", "0")
    with pytest.raises(SettingsError) as caught:
        load_settings(quantum=0)
    assert "KINFOLK_SLOTS: " in str(caught.value)
    assert "--quantum: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_that_is_no_setting_is_named():
    with pytest.raises(SettingsError, match="'colour' is not a setting of kinfolk"):
        load_settings(colour="red")


def test_the_cache_follows_the_base_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_settings().cache_dir == tmp_path / "kinfolk"
    monkeypatch.setenv("KINFOLK_CACHE_DIR", str(tmp_path / "mine"))
    assert load_settings().cache_dir == tmp_path / "mine"
    monkeypatch.delenv("KINFOLK_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert load_settings().cache_dir == Path.home() / ".cache" / "kinfolk"


def test_unknown_variables_are_found_with_what_was_meant(monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOT", "3")
    monkeypatch.setenv("KINFOLK_ZZZZZZ", "3")
    monkeypatch.setenv("KINFOLK_SLOTS", "3")
    assert unknown_variables() == {"KINFOLK_SLOT": "KINFOLK_SLOTS", "KINFOLK_ZZZZZZ": ""}


def test_only_typed_options_count_so_a_default_cannot_hide_a_variable(monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOTS", "3")
    seen = []

    @click.command()
    @click.option("--slots", type=int, default=99)
    @click.option("--quantum", type=int, default=99)
    @click.option("--colour", default="red")
    @click.pass_context
    def command(context, **parameters):
        seen.append(typed_options(context))

    CliRunner().invoke(command, ["--quantum", "4", "--colour", "blue"], catch_exceptions=False)
    assert seen == [{"quantum": 4}]
    assert load_settings(**seen[0]).slots == 3


def test_what_a_command_sets_for_want_of_a_wish_was_not_asked_for(monkeypatch):
    monkeypatch.setenv("KINFOLK_SLOTS", "3")
    settings = load_settings(defaults={"slots": 1, "context": 20, "quantum": 2}, quantum=4)
    assert (settings.slots, settings.context, settings.quantum) == (3, 20, 4)
    asked = {name for name in Settings.model_fields if settings.asked(name)}
    assert asked == {"slots", "quantum"}


def test_no_message_is_in_the_words_of_the_library():
    """For nonsense in any field, the message states the rule in our own wording."""
    for name in Settings.model_fields:
        with pytest.raises(SettingsError) as caught:
            load_settings(**{name: {"no": object}})
        assert "nput should" not in str(caught.value), name
        assert "alid" not in str(caught.value), name


def test_every_setting_is_described():
    for name, field in Settings.model_fields.items():
        assert field.description or any(
            getattr(part, "description", None) for part in field.metadata
        ), name


@pytest.mark.parametrize(
    "field",
    [
        "cache_dir",
        "draft_model",
        "expert_profile",
        "kvflash_drafter",
        "prefill_compression_drafter",
    ],
)
def test_a_path_may_begin_with_the_home_directory(monkeypatch, tmp_path, field):
    """Shells leave ``--flag=~/file`` alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert getattr(load_settings(**{field: "~/x"}), field) == tmp_path / "x"
    monkeypatch.setenv(f"KINFOLK_{field.upper()}", "~/y")
    assert getattr(load_settings(), field) == tmp_path / "y"
    assert getattr(load_settings(**{field: "~nobody-at-all/x"}), field) == Path("~nobody-at-all/x")
