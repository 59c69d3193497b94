"""Every check of drafters fails for a drafter that breaks its rule."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import attending_drafter
import pytest
import torch

from kinfolk.draft_api import Proposals
from kinfolk.errors import KinfolkError, ModelFormatError
from kinfolk.testing.checks.drafter_proposals import DrafterProposalChecks
from kinfolk.testing.checks.drafter_state import DrafterStateChecks
from kinfolk.testing.conformance import DrafterConformance
from kinfolk.testing.facts import drafter_facts_of

SLICES = "test_any_slices_keep_the_same_state"
UNKEPT = "test_drafted_rows_change_nothing_until_kept"
CHAIN = "test_kept_rows_of_a_chain_are_state"
TREE = "test_kept_paths_of_a_tree_are_state"
CHECKPOINT = "test_checkpoints_inside_a_slice_hold_that_row"
FORK = "test_forks_go_two_ways"
CANDIDATES = "test_proposals_are_candidates"
LANES = "test_lanes_do_not_see_each_other"
ARENA = "test_drafts_write_to_the_arena_only"
TARGET = "test_the_target_is_left_alone"
END = "test_drafts_reach_to_the_end_of_the_context"
HOST = "test_nothing_is_read_on_the_host"
SHORT = "test_a_shorter_draft_begins_alike"

DIFFERENT = "differ"


def run(kit, name, **arguments):
    """Run a check, eagerly where it can run in replays too."""
    check = getattr(DrafterConformance(), name)
    if "replays" in inspect.signature(check).parameters:
        arguments.setdefault("replays", False)
    check(kinfolk_drafter=kit, **arguments)


def fails(kit, name, message=None, **arguments):
    """The check fails for the drafter, and says why."""
    with pytest.raises((AssertionError, KinfolkError, pytest.fail.Exception), match=message):
        run(kit, name, **arguments)


def failing(kit):
    """The checks of state and proposals that fail."""
    found = set()
    for checks in (DrafterStateChecks, DrafterProposalChecks):
        for name in (name for name in vars(checks) if name.startswith("test_")):
            if name == CHECKPOINT and not kit.recurrent:
                continue
            try:
                run(kit, name)
            except Exception:
                found.add(name)
    return found


# -- a drafter that is wrong in one way -----------------------------------------------------------


class Paged(attending_drafter.AttendingDrafter):
    """The sound drafter with a layer of attention; the wrong ones change one method."""


def recurrent_head():
    from kinfolk_drafter_demo.head import RecurrentHead

    return RecurrentHead


def drafted_rows(batch):
    drafted = torch.zeros(batch.rows, dtype=torch.bool)
    for segment in batch.layout.segments:
        drafted[segment.start : segment.stop] = segment.drafted
    return drafted


class ByStepSize(Paged):
    """A row's state depends on the number of rows of its step."""

    def extend(self, features, batch, view):
        shift = torch.arange(features.shape[1]) * (0.01 * batch.rows)
        return super().extend(features + shift.bfloat16(), batch, view)


class FirstRowsOnly(Paged):
    """Slices of more than 96 rows are not written to their end."""

    def extend(self, features, batch, view):
        late = torch.arange(batch.rows) >= 96
        return super().extend(features.masked_fill(late[:, None], 0), batch, view)


class ForgetsChains(Paged):
    """Drafted rows of chains are written nowhere, as if they would come again."""

    def extend(self, features, batch, view):
        lost = drafted_rows(batch) & (batch.arena_row < 0)
        batch = replace(batch, write_row=batch.write_row.masked_fill(lost, 0))
        return super().extend(features, batch, view)


class BlindToBranches(Paged):
    """Rows of a tree are taken for a chain: they get the features of the row before."""

    def extend(self, features, batch, view):
        rows = torch.arange(batch.rows)
        branch = (batch.arena_row > 0) & (batch.parent_row != rows - 1)
        rows = torch.where(branch, rows - 1, rows)
        return super().extend(features[rows], batch, view)


class TouchesTheTarget(Paged):
    """A layer of the target is written to."""

    def extend(self, features, batch, view):
        for layer in (0, 1, 2, 3):
            if layer in view._paged:
                view.paged(layer).pool("v").add_(1e-3)
        return super().extend(features, batch, view)


class ChangesFeatures(Paged):
    """The features of the step are changed in place, behind their use."""

    def extend(self, features, batch, view):
        trace = super().extend(features, batch, view)
        features.mul_(2)
        return trace


class MixesLanes(Paged):
    """The mean of all lanes is a part of each."""

    def draft(self, block, view):
        found = super().draft(block, view)
        mean = found.scores.mean(0, keepdim=True)
        return replace(found, scores=(found.scores + mean) / 2)


class ReadsEverything(Paged):
    """The keys of other sequences change the scores."""

    def draft(self, block, view):
        found = super().draft(block, view)
        layer = len(view.plan.layers) - 1
        return replace(found, scores=found.scores - view.paged(layer).pool("k").sum() * 0)


class ChangesItsInputs(Paged):
    def draft(self, block, view):
        block.seed.add_(1)
        return super().draft(block, view)


class StopsTooEarly(Paged):
    """A token less than is wanted, where not all are."""

    def draft(self, block, view):
        found = super().draft(block, view)
        depth = max(1, block.depth - (block.depth < self.block - 1))
        return replace(found, tokens=found.tokens[:, :depth], scores=found.scores[:, :depth])


class DoubtsShortDrafts(Paged):
    """The fewer tokens are wanted, the lower are the scores."""

    def draft(self, block, view):
        found = super().draft(block, view)
        return replace(found, scores=found.scores - (self.block - 1 - block.depth))


class RunsOverTheEnd(Paged):
    """Positions of the block go on behind the end of the context."""

    def draft(self, block, view):
        place = torch.arange(block.batch.rows) % self.block
        positions = block.positions.repeat_interleave(self.block) + place
        return super().draft(replace(block, batch=replace(block.batch, positions=positions)), view)


class CountsCalls(Paged):
    """Every other draft makes a tensor more."""

    calls = 0

    def draft(self, block, view):
        self.calls += 1
        if self.calls % 2:
            torch.zeros(3)
        return super().draft(block, view)


@pytest.mark.parametrize(
    ("wrong", "expected", "message"),
    [
        (ByStepSize, {SLICES: 1, CHAIN: 2, TREE: 3, FORK: 4}, DIFFERENT),
        (FirstRowsOnly, {SLICES: 1, FORK: 2}, DIFFERENT),
        (ForgetsChains, {CHAIN: 1}, DIFFERENT),
        (BlindToBranches, {TREE: 1}, DIFFERENT),
        (TouchesTheTarget, {TARGET: 1}, "extend changed a layer of the target"),
        (ChangesFeatures, {TARGET: 1}, "extend changed what it was given"),
        (MixesLanes, {LANES: 1}, DIFFERENT),
        (ReadsEverything, {LANES: 1, CHAIN: 2, TREE: 3}, "what is NaN was read"),
        (ChangesItsInputs, {ARENA: 1}, "draft changed what it was given"),
        (StopsTooEarly, {SHORT: 1}, "tokens are proposed of"),
        (DoubtsShortDrafts, {SHORT: 1}, DIFFERENT),
        (RunsOverTheEnd, {END: 1}, "out of range|out of bounds"),
        (CountsCalls, {HOST: 1}, "steps of equal shapes call other functions"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_paged_drafter_that_is_wrong_is_found(drafter_kit, wrong, expected, message):
    """It fails the first of these checks with this message, and no others than these."""
    kit = drafter_kit("paged", build=wrong)
    with pytest.raises(Exception, match=message):
        run(kit, next(iter(expected)))
    assert failing(kit) == set(expected)


def forgets_to_commit(head):
    class Wrong(head):
        def commit(self, trace, kept, view):
            """As if nothing were pending."""

    return Wrong


def commits_the_longest(head):
    """The last row of the path, whatever number of rows is kept."""

    class Wrong(head):
        def commit(self, trace, kept, view):
            count = (kept.path >= 0).sum(1).clamp_min(1)
            super().commit(trace, replace(kept, n_keep=count), view)

    return Wrong


def advances_drafts(head):
    class Wrong(head):
        def extend(self, features, batch, view):
            spans = batch.layout.spans.clone()
            spans[:, 3] = 0
            layout = replace(batch.layout, spans=spans)
            return super().extend(features, replace(batch, layout=layout), view)

    return Wrong


def ignores_checkpoints(head):
    class Wrong(head):
        def extend(self, features, batch, view):
            none = torch.full_like(batch.store_rows, -1)
            return super().extend(features, replace(batch, store_rows=none), view)

    return Wrong


def advances_in_drafts(head):
    """The hidden row of the draft stays in the state."""

    class Wrong(head):
        def draft(self, block, view):
            state = view.recurrent(self.layer)["feature"]
            found = super().draft(block, view)
            state[block.slots] = self.step(state[block.slots], block.tokens)
            return found

    return Wrong


def loops_over_segments(head):
    """Right on the CPU. On a GPU there are no segments, and a capture would repeat its own."""

    class Wrong(head):
        def extend(self, features, batch, view):
            kept = view.recurrent(self.layer)["feature"]
            rows = features.to(kept.dtype)
            for segment in batch.layout.segments:
                if not segment.drafted:
                    kept[segment.slot] = rows[segment.stop - 1]
            for row, slot in zip(
                batch.store_rows.unbind(), batch.store_slots.unbind(), strict=True
            ):
                kept[slot] = torch.where(row >= 0, rows[row.clamp_min(0)], kept[slot])
            return (rows,)

    return Wrong


def counts_from_the_end(head):
    """The last sequence is taken to end with the step: wrong where a step is padded."""

    class Wrong(head):
        def extend(self, features, batch, view):
            trace = super().extend(features, batch, view)
            segments = batch.layout.segments
            if segments and not segments[-1].drafted:
                kept = view.recurrent(self.layer)["feature"]
                kept[segments[-1].slot] = features[-1].to(kept.dtype)
            return trace

    return Wrong


@pytest.mark.parametrize(
    ("change", "expected", "message"),
    [
        (forgets_to_commit, {CHAIN: 1, TREE: 2}, DIFFERENT),
        (commits_the_longest, {CHAIN: 1}, DIFFERENT),
        (advances_drafts, {UNKEPT: 1, CHAIN: 2}, "drafted rows changed 'feature'"),
        (ignores_checkpoints, {CHECKPOINT: 1}, DIFFERENT),
        (advances_in_drafts, {ARENA: 1, LANES: 2, SHORT: 3}, "changed the state of sequences"),
        (loops_over_segments, {HOST: 1}, "steps of equal shapes call other functions"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_recurrent_drafter_that_is_wrong_is_found(drafter_kit, change, expected, message):
    kit = drafter_kit("recurrent", build=change(recurrent_head()))
    fails(kit, next(iter(expected)), message)
    assert failing(kit) == set(expected)


def test_a_drafter_that_is_wrong_in_padded_steps_is_found(drafter_kit):
    kit = drafter_kit("recurrent", build=counts_from_the_end(recurrent_head()))
    run(kit, SLICES)
    fails(kit, SLICES, DIFFERENT, replays=True)


@pytest.mark.parametrize("which", ["paged", "recurrent"])
def test_sound_drafters_pass(drafter_kit, which):
    assert failing(drafter_kit(which)) == set()


# -- proposals ------------------------------------------------------------------------------------


def logits(found):
    return replace(found, scores=found.scores + 9)


def likely_everywhere(found):
    return replace(found, scores=torch.zeros_like(found.scores))


def worst_first(found):
    return Proposals(found.tokens.flip(2), found.scores.flip(2))


def one_too_short(found):
    return Proposals(found.tokens[:, 1:], found.scores[:, 1:])


def other_scores(found):
    return replace(found, scores=found.scores[:, :, :1])


def short_integers(found):
    return replace(found, tokens=found.tokens.int())


def halves(found):
    return replace(found, scores=found.scores.half())


def outside(found):
    return replace(found, tokens=found.tokens + 10_000)


def below(found):
    return replace(found, tokens=found.tokens - 10_000)


def twice(found):
    return replace(found, tokens=found.tokens[:, :, :1].expand_as(found.tokens))


def not_finite(found):
    return replace(found, scores=found.scores.log())


def children_first(found):
    lanes, depth, columns = found.tokens.shape
    parents = torch.arange(depth * columns).expand(lanes, -1)
    return replace(found, parents=parents)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (logits, "a score is above 0"),
        (likely_everywhere, "candidates for one token sum to 3.000"),
        (worst_first, "scores rise"),
        (one_too_short, r"tokens have shape \(4, 2, 3\), the plan promises \(4, 3, 3\)"),
        (other_scores, r"scores have shape \(4, 3, 1\)"),
        (short_integers, "tokens are torch.int32"),
        (halves, "scores are torch.float16"),
        (outside, "is not below"),
        (below, "is below 0"),
        (twice, "is proposed 3 times for one place"),
        (not_finite, "not finite"),
        (children_first, "candidate 0 follows 0"),
    ],
)
def test_proposals_that_are_wrong_are_found(drafter_kit, change, message):
    class Wrong(Paged):
        def draft(self, block, view):
            return change(super().draft(block, view))

    fails(drafter_kit("paged", build=Wrong), CANDIDATES, message)


# -- the host -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda block: block.positions[0].item(), "the host reads a tensor: item"),
        (lambda block: block.slots.tolist(), "reads a tensor: tolist"),
        (lambda block: int(block.positions.max()), "reads a tensor: __int__"),
        (lambda block: bool((block.slots > 0).all()), "reads a tensor: __bool__"),
        (lambda block: block.tokens.numpy(), "reads a tensor: numpy"),
        (lambda block: block.tokens[block.slots > 0], "an index that is a mask"),
        (lambda block: block.tokens.nonzero(), "reads a tensor: nonzero"),
        (lambda block: torch.where(block.slots > 0), "reads a tensor: where"),
        (lambda block: torch.tensor([1, 2]), "makes a tensor of its own numbers: tensor"),
        (lambda block: block.batch.tokens[[0, 1]], "an index that is a list"),
        (lambda block: block.slots.repeat_interleave(block.slots), "without output_size"),
    ],
)
def test_reads_on_the_host_are_found(drafter_kit, read, message):
    class Wrong(Paged):
        def draft(self, block, view):
            read(block)
            return super().draft(block, view)

    fails(drafter_kit("paged", build=Wrong), HOST, message)


# -- the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["test_chains_change_no_token", "test_trees_change_no_token"])
def test_a_drafter_that_changes_answers_is_found(drafter_kit, name):
    fails(drafter_kit("paged", build=Spoils), name, "was chosen", graphs="off")


class Spoils(Paged):
    """Recurrent state of the target changes its sign."""

    def extend(self, features, batch, view):
        trace = super().extend(features, batch, view)
        for tensor in view.recurrent_tensors():
            tensor.mul_(-1)
        return trace


@pytest.mark.parametrize("name", ["test_chains_change_no_token", "test_trees_change_no_token"])
def test_a_drafter_that_fails_is_found(drafter_kit, name):
    class Wrong(Paged):
        def draft(self, block, view):
            if block.lanes == 3:
                raise RuntimeError("three is too many")
            return super().draft(block, view)

    fails(drafter_kit("paged", build=Wrong), name, "draft failed", graphs="off")


# -- files ----------------------------------------------------------------------------------------


def prepared(change):
    """A ``prepare`` whose plan is changed; ``change(plan, file, facts)``."""

    def prepare(file, facts):
        plan = attending_drafter.prepare(file, facts)
        return change(plan, file, facts)

    return prepare


def takes_any_width(plan, file, facts):
    return replace(plan, width=facts.config.width)


def forgets_a_tensor(plan, file, facts):
    kept = tuple(spec for spec in plan.weights if spec.name != "v.weight")
    return replace(plan, weights=replace(plan.weights, weights=kept))


def test_a_target_of_another_width_that_is_accepted_is_found(drafter_kit):
    kit = drafter_kit("paged", prepare=prepared(takes_any_width))
    fails(kit, "test_targets_of_another_width_are_refused", "is accepted by a drafter")


def test_a_tensor_that_is_not_used_is_found(drafter_kit):
    kit = drafter_kit("paged", prepare=prepared(forgets_a_tensor))
    fails(kit, "test_every_tensor_is_used_once", r"does not know: \['v.weight'\]")


def test_a_tensor_without_which_the_plan_does_is_found(drafter_kit):
    def prepare(file, facts):
        if "v.weight" in file.inventory:
            return attending_drafter.prepare(file, facts)
        return forgets_a_tensor(kit.plan, file, facts)

    kit = drafter_kit("paged", prepare=prepare)
    fails(kit, "test_missing_tensors_are_named", "the plan does without 'v.weight'")


def unnamed(file, facts):
    raise ModelFormatError("the file is damaged", path=file.path)


def with_a_fault(file, facts):
    return {}["window"]


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (unnamed, "is no refusal: .*the file is damaged"),
        (with_a_fault, "is no refusal: .*KeyError"),
        (None, "no key of the architecture is required"),
    ],
)
def test_missing_keys_that_are_not_named_are_found(drafter_kit, without, message):
    """``without`` is asked for files in which the key of the window is missing."""

    def prepare(file, facts):
        if without is None:
            return kit.plan if "plan" in kit.__dict__ else attending_drafter.prepare(file, facts)
        missing = file.metadata.arch_key("window") not in file.metadata
        return (without if missing else attending_drafter.prepare)(file, facts)

    kit = drafter_kit("paged", prepare=prepare)
    assert kit.plan
    fails(kit, "test_missing_keys_are_named", message)


def test_a_drafter_that_takes_a_model_for_its_file_is_found(drafter_kit):
    def prepare(file, facts):
        return kit.plan if file.path == facts.path else attending_drafter.prepare(file, facts)

    kit = drafter_kit("paged", prepare=prepare)
    fails(kit, "test_a_model_is_no_drafter", "takes the target's own file for a drafter")


def test_a_drafter_without_a_tiny_one_is_found(drafter_kit):
    kit = drafter_kit("paged", tiny=None)
    fails(kit, "test_tiny_drafter_is_usable", "its DrafterSpec has no tiny")
    assert "cannot be used" in drafter_facts_of(kit).missing["tiny drafter"]


def test_a_file_of_an_architecture_that_is_not_stated_is_found(drafter_kit):
    kit = drafter_kit("paged", architectures=("another",))
    fails(kit, "test_tiny_drafter_is_usable", "which its spec does not list")


def test_a_plugin_that_registers_a_drafter_twice_is_found(drafter_kit, monkeypatch):
    kit = drafter_kit("paged")
    module = sys.modules[kit.record.module]
    monkeypatch.setattr(module, "register_drafters", lambda: [kit.spec, kit.spec])
    fails(kit, "test_drafter_is_registered")


def test_a_drafter_that_imports_torch_to_prepare_is_found(drafter_kit, tmp_path, monkeypatch):
    kit = drafter_kit("paged")
    (tmp_path / "heavy_drafter.py").write_text(
        "from kinfolk.descriptors import DrafterSpec\n\n\n"
        "def register_drafters():\n"
        "    return [DrafterSpec('heavy', prepare='torch:tensor', build='torch:tensor')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kit.__dict__["record"] = replace(kit.record, module="heavy_drafter")
    fails(kit, "test_discovery_loads_nothing_heavy", "imports torch at discovery")


# -- drafters of the host -------------------------------------------------------------------------


class Told:
    """Proposes what a function says."""

    def __init__(self, told):
        self.propose = told

    def release(self, known):
        """Nothing is kept."""


def greedy(known, limit):
    return [0] * (limit + 1)


def foreign(known, limit):
    return [10_000]


def growing(known, limit):
    known.append(0)
    return []


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (greedy, "2 tokens, the limit is 1"),
        (foreign, "token 10000 is not below"),
        (growing, "changed the text of the request"),
    ],
)
def test_a_drafter_of_the_host_that_is_wrong_is_found(drafter_kit, told, message):
    kit = drafter_kit("host", create=lambda info: Told(told))
    fails(kit, "test_proposals_are_tokens_within_the_limit", message)


def test_a_drafter_of_the_host_that_raises_is_found(drafter_kit):
    def raises(known, limit):
        raise RuntimeError("no idea")

    kit = drafter_kit("host", create=lambda info: Told(raises))
    fails(kit, "test_drafts_change_no_token", "propose failed")


def test_checks_of_weights_do_not_apply_to_the_host_nor_the_other_way_round(drafter_kit):
    host = drafter_kit("host", create=lambda info: Told(lambda known, limit: []))
    assert "host" not in drafter_facts_of(host).missing
    assert "no weights" in drafter_facts_of(host).missing["tiny drafter"]
    paged = drafter_facts_of(drafter_kit("paged")).missing
    assert paged["host"] == "the drafter has weights"
    assert paged["recurrent"] == "the drafter keeps no recurrent state"
    assert "tiny drafter" not in paged


# -- all of them ----------------------------------------------------------------------------------


def test_there_is_a_drafter_that_fails_for_every_check():
    """Every check of drafters is named above as one that fails."""
    tree = ast.parse(Path(__file__).read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    checks = {name for name in dir(DrafterConformance) if name.startswith("test_")}
    assert len(checks) > 20
    assert checks - words == set()
