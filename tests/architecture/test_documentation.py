"""What the documentation says is checked against the code, and its samples run."""

from __future__ import annotations

import ast
import importlib
import json
import operator
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kinfolk.hookcheck import DISCOVERY, MODEL


@pytest.fixture(scope="module")
def plugins_page(repo) -> str:
    return (repo / "docs/plugins.md").read_text()


@pytest.fixture(scope="module")
def hooks_page(repo) -> str:
    return (repo / "docs/hooks.md").read_text()


def pages(repo: Path) -> list[Path]:
    return [repo / "README.md", *sorted((repo / "docs").glob("*.md"))]


# -- pages ----------------------------------------------------------------------------------------


def test_generated_parts_are_up_to_date(repo):
    pages = runpy.run_path(str(repo / "docs/generate.py"))["pages"]()
    stale = [path.name for path, text in pages.items() if path.read_text() != text]
    assert stale == [], "run: python docs/generate.py"


def test_links_between_pages_lead_somewhere(repo):
    broken = []
    for page in pages(repo):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name} -> {target}")
    assert broken == []


def test_the_readme_lists_every_page(repo):
    text = (repo / "README.md").read_text()
    listed = text.partition("## Where things are")[2]
    names = [page.name for page in (repo / "docs").glob("*.md")]
    assert [name for name in names if listed.count(f"](docs/{name})") != 1] == []


def outside_of_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_paths_in_the_pages_exist(repo):
    """Paths with a folder in backquotes exist from the root, the core or the kernels."""
    parts = ("", "core", "core/kinfolk", "kernels")
    missing, seen = [], 0
    for page in pages(repo):
        text = outside_of_blocks(page.read_text()).partition("\n## Old names\n")[0]
        # The tutorial names paths of a plugin; the example plugin has the same paths.
        own = ("examples/kinfolk-qwen3",) if page.name == "tutorial.md" else ()
        roots = [repo / part for part in (*parts, *own)]
        for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.\w+)`", text):
            seen += 1
            if not any((root / path).is_file() for root in roots):
                missing.append(f"{page.name}: {path}")
    assert missing == []
    assert seen > 100


def tasks(repo: Path) -> dict[str, list[str]]:
    """The steps of each task of a newcomer."""
    page = (repo / "docs/contributing.md").read_text()
    found = page.partition("## Five tasks of a newcomer")[2].split("\n### ")[1:]
    step = re.compile(r"^\d+\. (.*(?:\n +.*)*)$", re.MULTILINE)
    return {text.partition("\n")[0]: step.findall(text) for text in found}


def test_the_tasks_of_a_newcomer_name_what_is_in_their_files(repo, library):
    """Types in square brackets are passed on; they may be defined in any file."""
    found = tasks(repo)
    assert len(found) == 5
    nodes = [node for source in library for node in source.tree.body]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    wrong = []
    for task, steps in found.items():
        assert len(steps) >= 5, task
        for step in steps:
            passed_on = re.findall(r"`(\w+)`", " ".join(re.findall(r"\[(.*?)\]", step, re.DOTALL)))
            wrong += [f"{task}: no class {name}" for name in passed_on if name not in classes]
            names = re.findall(r"`([^`]+)`", re.sub(r"\[.*?\]", "", step, flags=re.DOTALL))
            paths = [repo / name for name in names if "/" in name]
            beside = {path.name for known in paths for path in known.parent.iterdir()}
            text = "".join(path.read_text() for path in paths)
            wrong += [
                f"{task}: {paths[0].name} has no {name}"
                for name in names
                if "/" not in name and not re.search(rf"\b{re.escape(name)}\b", text)
                if name not in beside
            ]
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_links_to_headings_lead_to_one(repo):
    broken = []
    for page in pages(repo):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            if anchor not in anchors(page.parent / target if target else page):
                broken.append(f"{page.name} -> {target}#{anchor}")
    assert broken == []


# -- hooks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", sorted(DISCOVERY | MODEL))
def test_every_hook_has_a_section_with_its_exact_arguments(hooks_page, hook):
    arguments = ", ".join((DISCOVERY | MODEL)[hook])
    assert hooks_page.count(f"\n### `{hook}({arguments})`\n") == 1


def test_the_page_has_no_section_for_a_hook_that_does_not_exist(hooks_page):
    named = re.findall(r"^### `(\w+)\(", hooks_page, re.MULTILINE)
    assert sorted(named) == sorted(DISCOVERY | MODEL)


@pytest.mark.parametrize("hook", sorted(DISCOVERY))
def test_every_discovery_hook_has_a_sample_in_the_guide(samples, hook):
    bringing = [name for name, text in samples.items() if f"def {hook}(" in text]
    assert bool(bringing) == (hook != "register_families")  # which the tutorial shows


def test_the_reference_says_which_hooks_nothing_calls(repo, tmp_path):
    reference = runpy.run_path(str(repo / "docs/hooks_reference.py"))
    (tmp_path / "testing").mkdir()
    (tmp_path / "testing/kit.py").write_text("hooks.verify(step, draft, sampling)\n")
    (tmp_path / "engine.py").write_text("plan = hooks.allocate_cache(config, limits)\n")
    lines = reference["summary"](tmp_path)
    assert "| `allocate_cache` | the first | `engine.py` |" in lines
    uncalled = {
        name for name in MODEL if f"| `{name}` | the first | nothing calls it yet |" in lines
    }
    assert uncalled == set(MODEL) - {"allocate_cache"}


def test_every_hook_has_a_caller_as_the_guide_says(plugins_page, hooks_page):
    assert "Every hook has a caller." in plugins_page
    assert "nothing calls it yet" not in hooks_page


def test_an_expert_without_a_bay_is_an_error_as_the_guide_says(plugins_page):
    import torch

    from kinfolk.errors import UnsupportedModelError
    from kinfolk.experts.store import ExpertStore

    assert "An\nexpert without a bay is an error if" in plugins_page
    with pytest.raises(UnsupportedModelError, match="1 of 2 experts have no bay"):
        ExpertStore.place(0, *(torch.zeros(2, 4, 4) for _ in range(3)), (0,))


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
    """The modules of the page's sample plugins, by name, importable."""
    blocks = re.findall(
        r"^```python\n# (kinfolk_example/\S+)\n(.*?)^```", plugins_page, re.M | re.S
    )
    folder = tmp_path_factory.mktemp("sample")
    (folder / "kinfolk_example").mkdir()
    for name, text in blocks:
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    yield dict(blocks)
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "kinfolk_example"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def registry(samples):
    """Built from the sample plugin modules, and one of our families to run them with."""
    from kinfolk.registry import Registry

    found = [name for name in samples if name.endswith("_plugin.py")]
    modules = [name.removesuffix(".py").replace("/", ".") for name in found]
    plugins = {module.split(".")[1]: importlib.import_module(module) for module in modules}
    return Registry.build({**plugins, "family": importlib.import_module("kinfolk_qwen35.plugin")})


def logits(path, registry, **options):
    import torch

    from kinfolk.engine.loading import load_model
    from kinfolk.engine.score import logits as score
    from kinfolk.settings import load_settings

    loaded = load_model(path, load_settings(device="cpu", context=256, **options), registry)
    return loaded, torch.cat(list(score(loaded, list(range(40)))))


def test_the_sample_plugins_register_without_a_problem(registry):
    assert registry.problems() == ()
    brought = {kind: getattr(registry, kind) for kind in ("policies", "drafters", "commands")}
    assert {"no-drafts", "shared-tokens", "follows-use"} == set(brought["policies"])
    assert {"stutter"} < set(brought["drafters"])
    assert {"greet"} == set(brought["commands"])
    assert "SIGNS" in {provided.value.name for provided in registry.quant_formats}


def test_the_sample_op_back_end_is_chosen_and_right(cases, registry):
    import torch

    loaded, found = logits(cases / "qwen35.gguf", registry, op="rms_norm=mine")
    assert [d.backend for d in loaded.ops.decisions.values() if d.op == "rms_norm"] == ["mine"]
    _, expected = logits(cases / "qwen35.gguf", registry, op="rms_norm=reference")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_sample_policy_is_asked_first(cases, registry):
    loaded, _ = logits(cases / "qwen35.gguf", registry, policy="no-drafts")
    assert [who.split()[0] for who in loaded.hooks.asked("verify")] == ["policy", "family", "core"]


def test_the_sample_policy_for_experts_swaps_what_is_used(samples):
    from kinfolk.hooks import HookProvider, ModelHookCaller
    from kinfolk.plans import ExpertResidency, ExpertSwap, ExpertUse

    policy = importlib.import_module("kinfolk_example.swaps_plugin").create(None)
    caller = ModelHookCaller(
        HookProvider("family 'f'", object()), [], [HookProvider("policy 'p'", policy)]
    )
    use = ExpertUse(64, ((9, 1, 5, 0), (), (1, 1, 2, 2)), ((9, 5, 1), (0, 0, 0), (2, 0, 4)))
    residency = ExpertResidency((4, 0, 4), ((0, 1), (), (0, 1)), (1, 0, 0), (8, 0, 8))
    assert caller.swap_experts(use, residency).swaps == (ExpertSwap(0, 2, 1),)


def test_the_sample_checks_of_expert_back_ends_can_pass(samples, tmp_path):
    from kinfolk.testing.kit import Kit

    module = importlib.import_module("kinfolk_example.test_expert_back_ends")
    module.test_any_number_of_bays_gives_the_same_bits(Kit("qwen35moe", tmp_path), "K")


def test_the_sample_drafter_proposes(registry):
    from kinfolk.descriptors import resolve

    drafter = resolve(registry.drafter("stutter").value.create)(None)
    assert drafter.propose([4, 7], 3) == [7, 7, 7]


def test_the_sample_format_reads_its_blocks(registry):
    from kinfolk.descriptors import resolve
    from kinfolk.quant.formats import QuantFormats

    formats = QuantFormats([provided.value for provided in registry.quant_formats])
    block = np.concatenate([np.array([0.5], "<f2").view(np.uint8), np.array([1, 0, 0, 128], "u1")])
    numbers = resolve(formats.named("SIGNS").dequantize)(np.concatenate([block, block])[None])
    assert numbers.shape == (1, 64)
    assert numbers[0, :3].tolist() == [0.5, -0.5, -0.5]
    assert numbers[0, 31] == 0.5


def test_the_sample_command_runs(registry):
    from click.testing import CliRunner

    done = CliRunner().invoke(registry.commands["greet"].value.command, ["you"])
    assert done.output == "Hello, you.\n"


def test_the_sample_error_names_the_file_and_the_key(samples):
    from kinfolk.errors import UnsupportedModelError
    from kinfolk.gguf.metadata import Metadata

    read = importlib.import_module("kinfolk_example.window").read_window
    keys = {"general.architecture": "example"}
    assert read(Metadata.from_dict(keys, "some/model.gguf")) == 0
    keys["example.attention.sliding_window"] = 512
    with pytest.raises(UnsupportedModelError, match=r"some/model.gguf: .*sliding_window' is 512"):
        read(Metadata.from_dict(keys, "some/model.gguf"))


# -- tables ---------------------------------------------------------------------------------------


def rows_of(page, head):
    """The cells of the table that begins with these titles."""
    (table,) = re.findall(
        rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE
    )
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


def test_the_table_of_dense_keys_is_what_is_read(plugins_page):
    from kinfolk.convert.dense import DenseShape, metadata
    from kinfolk.errors import ModelFormatError
    from kinfolk.gguf.metadata import Metadata
    from kinfolk.nn.dense.config import DenseConfig, read_dense

    shape = DenseShape(320, 64, 1024, 2, 4, 2, 32, 96, 5e5)
    keys = {f"plain.{key}": value for key, value in metadata(shape).items()}
    keys |= {"general.architecture": "plain", "plain.vocab_size": 320}
    fields = DenseConfig(**read_dense(Metadata.from_dict(keys)))
    rows = rows_of(plugins_page, "field | key | if it is missing")
    told = {name.split(".")[0] for field, *_ in rows for name in re.findall(r"`([\w.]+)`", field)}
    assert told == set(DenseConfig.model_fields) - {"architecture", "name", "experts"}
    for field, key, missing in rows:
        if key == "–" or "scaling" in key:
            continue
        rest = {k: v for k, v in keys.items() if k != f"plain.{key.strip('`')}"}
        assert len(rest) == len(keys) - 1, key
        for follower in ("attention.value_length", "rope.dimension_count"):
            rest.pop(f"plain.{follower}", None)
        if missing == "error":
            with pytest.raises(ModelFormatError, match=key.strip("`")):
                read_dense(Metadata.from_dict(rest))
        else:
            found = DenseConfig(**read_dense(Metadata.from_dict(rest)))
            assert (
                operator.attrgetter(field.strip("`"))(found)
                == {
                    "as many as `heads`": fields.heads,
                    "`width` / `heads`": 16,
                    "`head_dim`": 32,
                    "10000": 1e4,
                }[missing]
            ), field


def test_the_calls_of_the_page_are_read_with_the_syntax_beside_them(plugins_page):
    from kinfolk import descriptors
    from kinfolk.text.tool_calls import ToolArguments, ToolCallParser, ToolGrammar, ToolStart

    rows = rows_of(plugins_page, "a call | arguments")
    assert len(rows) == 2
    for call, stated in rows:
        arguments, name = re.findall(r"`([^`]*\))`", stated)
        syntax = eval(f"ToolSyntax({arguments}, {name})", vars(descriptors))
        parser = ToolCallParser(ToolGrammar("<call>", "</call>", syntax))
        events = [*parser.feed(f"<call>{call.strip('`')}</call>"), *parser.finish()]
        assert [event.name for event in events if isinstance(event, ToolStart)] == ["f"]
        made = "".join(event.json for event in events if isinstance(event, ToolArguments))
        assert json.loads(made)["city"] == "Rome"


def test_what_the_page_says_is_built_in_is(plugins_page):
    from kinfolk.text.pretokenizers import GENERIC

    (sentence,) = re.findall(r"Built in \(.*?\) are (.*?)\. Of several", plugins_page, re.DOTALL)
    assert set(re.findall(r"`([\w-]+)`", sentence)) == set(GENERIC)


# -- tutorial -------------------------------------------------------------------------------------


def test_the_drafters_tutorial_writes_the_files_of_the_example(repo):
    """The packaging tests play both tutorials, with pip, in an environment of their own."""
    tutorial = runpy.run_path(str(repo / "docs/tutorial.py"))
    page = (repo / "docs/drafter.md").read_text()
    files = {step.path: step.text for step in tutorial["steps"](page) if step.kind == "file"}
    assert len(files) == 8
    for path, text in files.items():
        assert (repo / "examples" / path).read_text() == text, path
