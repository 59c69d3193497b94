"""What the documentation says is checked against the code, and its samples run."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
import tomllib

import gguf
import numpy as np
import pytest

from kinfolk.hookcheck import DISCOVERY, MODEL


@pytest.fixture(scope="module")
def plugins_page(repo) -> str:
    return (repo / "docs/plugins.md").read_text()


# -- pages ----------------------------------------------------------------------------------------


def test_generated_parts_are_up_to_date(repo):
    pages = runpy.run_path(str(repo / "docs/generate.py"))["pages"]()
    stale = [path.name for path, text in pages.items() if path.read_text() != text]
    assert stale == [], "run: python docs/generate.py"


def test_links_between_pages_lead_somewhere(repo):
    broken = []
    for page in (repo / "README.md", *sorted((repo / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name} -> {target}")
    assert broken == []


@pytest.mark.parametrize("hook", sorted(DISCOVERY | MODEL))
def test_every_hook_has_a_section_with_its_exact_arguments(plugins_page, hook):
    arguments = ", ".join((DISCOVERY | MODEL)[hook])
    assert plugins_page.count(f"\n### `{hook}({arguments})`\n") == 1


def test_the_page_has_no_section_for_a_hook_that_does_not_exist(plugins_page):
    named = re.findall(r"^### `(\w+)\(", plugins_page, re.MULTILINE)
    assert sorted(named) == sorted(DISCOVERY | MODEL)


def test_ci_runs_the_readmes_own_commands(repo):
    for name in ("test", "answer"):
        command = subprocess.run(
            [sys.executable, repo / ".ci/readme_command.py", name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert (repo / "README.md").read_text().count(f"```sh\n{command}\n```") == 1
    assert "readme_command.py test" in (repo / ".ci/run").read_text()


def test_the_readme_names_every_command_and_every_plugin(repo, families):
    from kinfolk.cli.main import BUILT_IN

    page = (repo / "README.md").read_text()
    assert [
        name for name in BUILT_IN if f"`{name}`" not in page and f"kinfolk {name}" not in page
    ] == []
    assert [name for name in families if f"| `{name}` |" not in page] == []


def test_a_plugin_is_called_a_skeleton_exactly_while_it_registers_no_family(repo, families):
    from kinfolk.registry import Registry
    from kinfolk.settings import load_settings

    found = Registry.discover(load_settings()).families.values()
    working = {provided.plugin for provided in found}
    page = (repo / "README.md").read_text()
    for name in families:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
        assert ("skeleton" in row) == (name not in working), row
        own = (repo / "plugins" / name / "README.md").read_text()
        assert ("skeleton" in own) == (name not in working), f"plugins/{name}/README.md"


# -- samples --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(plugins_page, tmp_path_factory) -> dict[str, str]:
    """The files of the page's sample plugin, by name, importable."""
    blocks = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", plugins_page, re.M | re.S)
    folder = tmp_path_factory.mktemp("sample")
    for name, text in blocks:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, str(folder))
    yield dict(blocks)
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_example"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def registry(samples):
    """Built from the sample's three plugin modules."""
    from kinfolk.registry import Registry

    names = ("plugin", "op_plugin", "policy_plugin")
    return Registry.build({n: importlib.import_module(f"kinfolk_example.{n}") for n in names})


@pytest.fixture(scope="module")
def example_file(tmp_path_factory):
    """A tiny model file of the sample's architecture."""
    path = tmp_path_factory.mktemp("model") / "example.gguf"
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "example")
    width, vocabulary, up = 32, 17, 48
    writer.add_block_count(2)
    writer.add_embedding_length(width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(256)
    writer.add_feed_forward_length(up)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    shapes = {"token_embd": (vocabulary, width), "output": (vocabulary, width)}
    for block in ("blk.0", "blk.1"):
        shapes |= {f"{block}.attn_{name}": (width, width) for name in ("q", "output")}
        shapes |= {f"{block}.attn_{name}": (width // 2, width) for name in ("k", "v")}
        shapes |= {f"{block}.ffn_{name}": (up, width) for name in ("gate", "up")}
        shapes |= {f"{block}.ffn_down": (width, up)}
        shapes |= {f"{block}.{name}_norm": (width,) for name in ("attn", "ffn")}
    shapes["output_norm"] = (width,)
    for name, shape in shapes.items():
        numbers = random.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
        writer.add_tensor(f"{name}.weight", np.ones_like(numbers) if len(shape) == 1 else numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_samples_project_file_names_its_plugin(samples):
    data = tomllib.loads(samples["pyproject.toml"])
    assert data["project"]["entry-points"]["kinfolk"] == {"example": "kinfolk_example.plugin"}


def test_the_sample_plugins_register_without_a_problem(registry):
    assert registry.problems() == ()
    assert set(registry.families) == {"example"}
    assert set(registry.policies) == {"no-drafts"}


def logits(path, registry, **options):
    import torch

    from kinfolk.engine.loading import load_model
    from kinfolk.engine.score import logits as score
    from kinfolk.settings import load_settings

    loaded = load_model(path, load_settings(device="cpu", **options), registry)
    return loaded, torch.cat(list(score(loaded, list(range(16)) * 9)))


def test_the_sample_family_runs(example_file, registry):
    loaded, found = logits(example_file, registry)
    assert loaded.family.name == "example"
    assert tuple(found.shape) == (144, 17)
    assert bool(found.isfinite().all())
    assert float(found.std()) > 0.1


def test_the_sample_op_back_end_is_chosen_and_right(example_file, registry):
    import torch

    loaded, found = logits(example_file, registry, op="rms_norm=mine")
    assert [d.backend for d in loaded.ops.decisions.values() if d.op == "rms_norm"] == ["mine"]
    _, expected = logits(example_file, registry, op="rms_norm=reference")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_hooks_of_family_and_policy_are_in_the_models_manager(example_file, registry):
    loaded, _ = logits(example_file, registry, policy="no-drafts")
    assert loaded.hooks.asked("allocate_cache") == ("family 'example'",)
    assert [who.split()[0] for who in loaded.hooks.asked("verify")] == ["policy", "core"]
