"""Installed plugins are found by their metadata, in a fixed order, without heavy imports."""

import json
import os
import subprocess
import sys

import pytest

from kinfolk.errors import PluginError, SettingsError
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

OURS = {"qwen35", "qwen35moe", "gemma4", "laguna"}
HEAVY = {"torch", "triton", "transformers"}

DISCOVER = """
import json, sys
from kinfolk.registry import Registry, describe
from kinfolk.settings import load_settings
registry = Registry.discover(load_settings())
print(json.dumps({"plugins": describe(registry), "modules": sorted(sys.modules)}))
"""


def statuses(registry: Registry) -> dict[str, str]:
    return {record.name: record.status for record in registry.records}


def problems_of(registry: Registry, distribution: str) -> list[str]:
    """The problems of its plugins only: other, broken plugins may be installed here."""
    return [problem for problem in registry.problems() if distribution in problem]


def discover_in_a_process(path, **variables):
    search_path = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": search_path} | variables
    done = subprocess.run(
        [sys.executable, "-c", DISCOVER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_an_installed_plugin_is_found_by_its_metadata_and_discovery_stays_light(toy_site):
    seen = discover_in_a_process(toy_site)
    (toy,) = [plugin for plugin in seen["plugins"] if plugin["name"] == "toy"]
    assert toy["status"] == "ok", toy
    assert (toy["distribution"], toy["version"]) == ("kinfolk-toy", "1.2")
    assert toy["provides"] == {
        "families": ["toy"],
        "op_backends": ["rope=toy"],
        "quant_formats": ["TOY_1"],
        "drafters": ["parrot"],
        "policies": ["frugal"],
        "commands": ["toy"],
    }
    assert "kinfolk_toy.plugin" in seen["modules"]
    assert HEAVY.isdisjoint(seen["modules"])


def test_our_own_families_come_through_the_same_door(toy_site):
    seen = discover_in_a_process(toy_site)
    status = {plugin["name"]: plugin["status"] for plugin in seen["plugins"]}
    assert {status.get(name) for name in OURS} == {"ok"}


def test_records_are_sorted_by_name_whatever_the_order_on_disk(site, discover):
    for name in ("zebra", "ant", "mole"):
        site(name, f"kinfolk-{name}", "")
    names = [record.name for record in discover().records if record.name != "kinfolk"]
    assert names == sorted(names)
    assert {"ant", "mole", "zebra"} <= set(names)


# -- KINFOLK_PLUGINS ------------------------------------------------------------------------------


def test_an_unset_variable_loads_all_plugins(site, discover, monkeypatch):
    monkeypatch.delenv("KINFOLK_PLUGINS", raising=False)
    site("ant", "kinfolk-ant", "")
    assert statuses(discover())["ant"] == "ok"


def test_an_empty_variable_loads_none_but_the_core(site, discover, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "")
    site("ant", "kinfolk-ant", "raise RuntimeError('imported')")
    status = statuses(discover())
    assert status.pop("kinfolk") == "ok"
    assert set(status.values()) == {"skipped"}
    assert len(status) >= 5


def test_a_list_loads_exactly_the_named_plugins(site, discover, monkeypatch):
    monkeypatch.setenv("KINFOLK_PLUGINS", "ant, mole")
    for name in ("ant", "mole", "zebra"):
        site(name, f"kinfolk-{name}", "")
    registry = discover()
    status = statuses(registry)
    assert (status["ant"], status["mole"], status["zebra"]) == ("ok", "ok", "skipped")
    (zebra,) = [record for record in registry.records if record.name == "zebra"]
    assert zebra.reason == "not named in KINFOLK_PLUGINS"


def test_a_name_that_is_not_installed_is_an_error_that_lists_those_that_are(site, discover):
    site("ant", "kinfolk-ant", "")
    with pytest.raises(SettingsError) as caught:
        discover(plugins=("anti",))
    assert "KINFOLK_PLUGINS names 'anti', which is not installed" in str(caught.value)
    installed = str(caught.value).rpartition(": ")[2].split(", ")
    assert {"ant", "gemma4"} <= set(installed)


# -- duplicates -----------------------------------------------------------------------------------


def test_one_module_shipped_by_two_distributions_is_one_plugin(site, discover):
    site("ant", "kinfolk-ant", "", module="site_ant", version="1.0")
    site("ant", "kinfolk-all", None, module="site_ant", version="2.0")
    (ant,) = [record for record in discover().records if record.name == "ant"]
    assert ant.status == "ok"
    assert (ant.distribution, ant.version) == ("kinfolk-all, kinfolk-ant", "2.0, 1.0")


def test_one_name_for_two_modules_is_a_conflict_and_neither_is_loaded(site, discover):
    body = "raise RuntimeError('imported')"
    site("ant", "kinfolk-ant", body, module="site_ant")
    site("ant", "kinfolk-bee", body, module="site_bee")
    records = [record for record in discover().records if record.name == "ant"]
    assert [record.status for record in records] == ["conflict", "conflict"]
    for record in records:
        assert record.reason == (
            "site_ant (kinfolk-ant) and site_bee (kinfolk-bee) use the name 'ant'; "
            "uninstall one of them"
        )


def test_a_second_name_for_a_loaded_module_is_skipped(site, discover):
    site("ant", "kinfolk-ant", "", module="site_ant")
    site("emmet", "kinfolk-ant", None, module="site_ant")
    records = {record.name: record for record in discover().records}
    assert records["ant"].status == "ok"
    assert records["emmet"].status == "skipped"
    assert records["emmet"].reason == "names the same module as plugin 'ant'"


def test_the_name_that_was_asked_for_is_loaded_whatever_others_its_module_has(site, discover):
    site("ant", "kinfolk-ant", "", module="site_ant")
    site("emmet", "kinfolk-ant", None, module="site_ant")
    records = {record.name: record for record in discover(plugins=("emmet",)).records}
    assert (records["ant"].status, records["emmet"].status) == ("skipped", "ok")
    assert records["ant"].reason == "not named in KINFOLK_PLUGINS"


def test_a_distribution_that_another_shadows_is_not_read(site, tmp_path, monkeypatch, discover):
    site("ant", "kinfolk-ant", "", module="site_ant", version="2.0")
    older = tmp_path / "older"
    (older / "kinfolk_ant-1.0.dist-info").mkdir(parents=True)
    (older / "kinfolk_ant-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kinfolk-ant\nVersion: 1.0\n"
    )
    (older / "kinfolk_ant-1.0.dist-info" / "entry_points.txt").write_text(
        "[kinfolk]\nant = site_older\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    (ant,) = [record for record in discover().records if record.name == "ant"]
    assert (ant.status, ant.version, ant.module) == ("ok", "2.0", "site_ant")


# -- isolation ------------------------------------------------------------------------------------


def test_a_broken_plugin_takes_nothing_else_down(site, discover):
    site("broken", "kinfolk-broken", "raise RuntimeError('boom')")
    site(
        "whole",
        "kinfolk-whole",
        "@hookimpl\ndef register_drafters(): return [DrafterSpec('whole', 'm:f')]",
    )
    registry = discover(plugins=("broken", "whole"))
    assert statuses(registry)["broken"] == "failed"
    assert "whole" in registry.drafters
    assert "ngram" in registry.drafters
    (line,) = problems_of(registry, "kinfolk-broken")
    assert line.startswith("plugin 'broken' (kinfolk-broken 1.0): importing site_broken")


def test_unreadable_entry_points_of_one_distribution_hide_no_other(site, discover):
    info = site("broken", "kinfolk-broken", "")
    (info / "entry_points.txt").write_text("[kinfolk]\nno equals sign here\n")
    site("whole", "kinfolk-whole", "")
    registry = discover()
    assert statuses(registry)["whole"] == "ok"
    (line,) = problems_of(registry, "kinfolk-broken")
    assert "its entry points cannot be read" in line


def test_strict_plugins_makes_a_broken_plugin_an_error(site, discover):
    site("broken", "kinfolk-broken", "raise RuntimeError('boom')")
    with pytest.raises(PluginError, match=r"plugin 'broken' \(kinfolk-broken 1\.0\): .*boom"):
        discover(strict_plugins=True)


def test_a_command_of_the_core_cannot_be_replaced(site):
    site(
        "greedy",
        "kinfolk-greedy",
        """
        @hookimpl
        def register_commands(cli):
            cli.command("serve")(lambda: None)
            cli.command("mine")(lambda: None)
        """,
    )
    registry = Registry.discover(load_settings(), reserved_commands=("serve", "run"))
    assert "mine" in registry.commands
    assert "serve" not in registry.commands
    (line,) = problems_of(registry, "kinfolk-greedy")
    assert "command 'serve' is the core's own and was withdrawn" in line
