"""Every check of the conformance kit fails for a family that breaks its rule."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kinfolk import hookimpl
from kinfolk.descriptors import ChatFormat, PreTokenizer, TinyModel
from kinfolk.errors import KinfolkError, ModelFormatError
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.dense.state import DenseHooks
from kinfolk.plans import Paged, StatePlan, WeightPlan, WeightSpec
from kinfolk.score_api import KEEP, Scores
from kinfolk.testing.conformance import FamilyConformance
from kinfolk.testing.facts import facts_of
from kinfolk.testing.kit import Kit


def fails(kit, name, message=None, **arguments):
    """The check fails for the family, and says why."""
    with pytest.raises((AssertionError, KinfolkError, pytest.fail.Exception), match=message):
        getattr(FamilyConformance(), name)(kinfolk_kit=kit, **arguments)


# -- a model that is wrong in one way -------------------------------------------------------------


class Changed(Decoder):
    """The sound model, with something done to its rows."""

    def __init__(self, model, change, commit=None):
        self.__dict__.update(model.__dict__)
        self.change = change

    def forward(self, batch, view):
        result = super().forward(batch, view)
        return replace(result, hidden=self.change(result.hidden, batch, view))


def changed(change):
    return {"build": lambda build, *arguments: Changed(build(*arguments), change)}


def scaled_everywhere(hidden, batch, view):
    return hidden + torch.arange(hidden.shape[1]) * 0.01


def by_step_size(hidden, batch, view):
    """A value that depends on the number of rows of the step."""
    return hidden * (1 + 0.01 * batch.rows * torch.arange(hidden.shape[1]))


def by_neighbour(hidden, batch, view):
    mean = hidden.mean(0)
    return hidden + (0.1 * mean if len(batch.layout.segments) > 1 else 0)


def by_slot(hidden, batch, view):
    slots = batch.slot_of_sequence[batch.sequence_of_row]
    return hidden + 0.05 * slots[:, None] * torch.arange(hidden.shape[1])


def by_block(hidden, batch, view):
    blocks = (batch.write_row[0] // 64).float()
    return hidden + 0.01 * blocks[:, None] * torch.arange(hidden.shape[1])


def reads_everything(hidden, batch, view):
    return hidden + view.paged(0).pool("k").sum() * 1e-3


def writes_everywhere(hidden, batch, view):
    view.paged(0).pool("v").add_(1e-3)
    return hidden


def wrong_for_drafts(hidden, batch, view):
    drafted = torch.zeros(batch.rows, dtype=torch.bool)
    for segment in batch.layout.segments:
        drafted[segment.start : segment.stop] = segment.drafted and segment.rows > 1
    return torch.where(drafted[:, None], hidden * torch.linspace(0.5, 1, hidden.shape[1]), hidden)


def blind_to_branches(hidden, batch, view):
    """Rows of a tree are taken for a chain: wrong where a row's parent is not the one before."""
    rows = torch.arange(batch.rows)
    branch = (batch.arena_row > 0) & (batch.parent_row != rows - 1)
    return torch.where(branch[:, None], hidden.roll(1, 1), hidden)


def remembers(hidden, batch, view):
    """The earlier content of a sequence's slot changes its output."""
    last = view.paged(0).pool("k")[:, :, -1].abs().sum((1, 2))
    return hidden + 1e-3 * last[batch.write_row[0] // 64, None] * torch.arange(hidden.shape[1])


DIFFERENT = "rows differ"
MOVED = "torch.equal|assert False"


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (scaled_everywhere, "test_logits_equal_the_reference", DIFFERENT),
        (by_step_size, "test_any_slices_give_the_same_logits", DIFFERENT),
        (by_step_size, "test_decoding_equals_prefill", DIFFERENT),
        (by_neighbour, "test_neighbours_change_nothing", DIFFERENT),
        (by_slot, "test_places_change_nothing", DIFFERENT),
        (by_block, "test_places_change_nothing", DIFFERENT),
        (reads_everything, "test_other_sequences_are_neither_read_nor_touched", DIFFERENT),
        (writes_everywhere, "test_other_sequences_are_neither_read_nor_touched", DIFFERENT),
        (by_slot, "test_forks_go_two_ways", DIFFERENT),
        (remembers, "test_reused_slots_remember_nothing", DIFFERENT),
        (reads_everything, "test_evicted_chunks_are_unread_and_come_back", "was read"),
        (writes_everywhere, "test_drafts_change_nothing_until_kept", MOVED),
        (wrong_for_drafts, "test_chains_go_on_from_what_is_kept", DIFFERENT),
        (wrong_for_drafts, "test_paths_of_trees_equal_linear_decoding", DIFFERENT),
        (blind_to_branches, "test_paths_of_trees_equal_linear_decoding", DIFFERENT),
        (wrong_for_drafts, "test_drafts_stand_beside_prompts_and_decodes", DIFFERENT),
        (by_step_size, "test_greedy_answers_are_the_models_choice", "was chosen"),
        (wrong_for_drafts, "test_drafts_change_no_token", "was chosen"),
        (by_step_size, "test_prompts_that_begin_alike_are_reused", "was chosen"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value.removeprefix("test_")[:30],
)
def test_a_model_that_is_wrong_is_found(kit_of, change, name, message):
    fails(kit_of(**changed(change)), name, message)


class Forgetful(Changed):
    """Recurrent state that is not stored where a checkpoint is asked for, or not committed."""

    def forward(self, batch, view):
        none = torch.zeros(0, dtype=torch.int64)
        if self.change == "stores":
            batch = replace(batch, store_rows=none, store_slots=none)
        return Decoder.forward(self, batch, view)

    def commit(self, trace, kept, view):
        if self.change != "commits":
            super().commit(trace, kept, view)


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("stores", "test_checkpoints_inside_a_slice_hold_that_row"),
        ("commits", "test_chains_go_on_from_what_is_kept"),
        ("commits", "test_paths_of_trees_equal_linear_decoding"),
    ],
)
def test_recurrent_state_that_is_forgotten_is_found(tmp_path, what, name):
    kit = Kit("qwen35", tmp_path)
    build = kit.family.family.build
    kit.family.family.build = lambda *arguments: Forgetful(build(*arguments), what)
    fails(kit, name, DIFFERENT)


def test_a_checkpoint_that_is_not_exact_is_found(kit_of):
    fails(
        kit_of(**changed(remembers)), "test_checkpoints_bring_back_a_sequence", DIFFERENT, length=77
    )


def test_a_model_that_quantised_weights_change_is_found(kit_of):
    """The model's output depends on how many weights are kept as bytes."""

    def build(build, config, weights, context):
        kept = sum(not isinstance(weight, torch.Tensor) for weight in weights.values())
        return Changed(build(config, weights, context), lambda h, batch, view: h.roll(kept, 1))

    fails(kit_of(build=build), "test_quantised_weights_load", DIFFERENT, quant_format="Q8_0")


def test_a_slot_that_survives_its_release_is_found(kit_of, monkeypatch):
    monkeypatch.setattr(
        "kinfolk.state.sequence_tables.SequenceTables.release", lambda tables, lease: None
    )
    fails(kit_of(), "test_released_sequences_are_gone", "DID NOT RAISE")


# -- features -------------------------------------------------------------------------------------


class Features(Decoder):
    """The sound model with other features: ``ask`` changes what is asked for, ``change`` the
    result of a forward."""

    def __init__(self, model, ask=None, change=None):
        self.__dict__.update(model.__dict__)
        self.ask, self.change = ask, change

    def features(self, layers, *, final=False):
        layers = list(layers)
        super().features(self.ask(layers, len(self.layers)) if self.ask else layers, final=final)

    def forward(self, batch, view):
        result = super().forward(batch, view)
        if self.change is None or result.features is None:
            return result
        return self.change(self, result, batch)


def features(ask=None, change=None):
    return {"build": lambda build, *arguments: Features(build(*arguments), ask, change)}


def ascending(layers, count):
    return sorted(layers)


def another_if_alone(layers, count):
    return layers if len(layers) > 1 else [(layers[0] + 1) % count]


def one_too_early(layers, count):
    return [(layer - 1) % count for layer in layers]


def one_too_late(layers, count):
    """The outputs of the next layers, and those of the last one for the last."""
    return [(layer + 1) % count for layer in layers]


def without_repetition(layers, count):
    return list(dict.fromkeys(layers))


def within_range(layers, count):
    return [layer for layer in layers if layer < count]


def from_behind(layers, count):
    return [layer % count for layer in layers]


def rounded_stream(model, result, batch):
    return replace(result, hidden=result.hidden.bfloat16().float())


def wider(model, result, batch):
    return replace(result, features=result.features.float())


def final_without_norm(model, result, batch):
    """Asked for ``final``, the hidden states; else the sound features."""
    width = result.hidden.shape[1]
    if model._features.final:
        result.features[:, -width:] = result.hidden
    return result


def repeated_layer(model, result, batch):
    """Features of layer 0 in the place of those of layer 1."""
    first, second = (
        model._features.layers.index(layer) if layer in model._features.layers else None
        for layer in (0, 1)
    )
    if first is not None and second is not None:
        parts = result.features.split(result.hidden.shape[1], 1)
        parts[second].copy_(parts[first])
    return result


def of_the_first_step(model, result, batch):
    """Features of the first step of so many rows."""
    kept = model.__dict__.setdefault("kept", {})
    features = kept.setdefault(batch.rows, result.features)
    return replace(result, features=features)


def of_padded_steps(model, result, batch):
    """Features are moved by a row if the step has padding."""
    rows = sum(segment.rows for segment in batch.layout.segments)
    return replace(result, features=result.features.roll(int(rows < batch.rows), 0))


def of_the_row_before(model, result, batch):
    """Features of drafted rows are those of the row before, whatever their parent is."""
    rows = torch.arange(batch.rows)
    drafted = torch.zeros(batch.rows, dtype=torch.bool)
    for segment in batch.layout.segments:
        drafted[segment.start : segment.stop] = segment.drafted
    before = torch.where(drafted & (rows > 0), rows - 1, rows)
    return replace(result, features=result.features[before])


def of_trees_by_place(model, result, batch):
    """Rows of a tree whose parent is not the row before have the features of that row."""
    rows = torch.arange(batch.rows)
    branch = (batch.arena_row > 0) & (batch.parent_row != rows - 1)
    return replace(result, features=result.features[torch.where(branch, rows - 1, rows)])


STAND = "test_features_are_those_of_their_layers"
SLICES = "test_slices_and_decoding_have_the_features_of_one_pass"
DRAFTED = "test_drafts_have_the_features_of_one_pass"


@pytest.mark.parametrize(
    ("wrong", "name", "message", "arguments"),
    [
        (
            features(change=rounded_stream),
            "test_features_change_no_logits",
            "change the logits",
            {},
        ),
        (features(ascending), STAND, "of the last layer are not|differ by place", {}),
        (features(another_if_alone), STAND, r"layer \d differ by place", {}),
        (features(one_too_early), STAND, "of the last layer are not", {}),
        (features(one_too_late), STAND, "of the last layer are not", {}),
        (features(change=wider), STAND, "float32, not bfloat16", {}),
        (features(change=final_without_norm), STAND, r"final is not norm\(hidden\)", {}),
        (features(change=repeated_layer), STAND, "layers 0 and 1 are the same", {}),
        (features(change=of_the_first_step), SLICES, DIFFERENT, {"replays": False}),
        (features(change=of_padded_steps), SLICES, DIFFERENT, {"replays": True}),
        (features(change=of_the_row_before), DRAFTED, DIFFERENT, {"replays": False}),
        (features(change=of_trees_by_place), DRAFTED, DIFFERENT, {"replays": False}),
        (features(change=of_trees_by_place), DRAFTED, DIFFERENT, {"replays": True}),
        (features(without_repetition), "test_features_of_no_layer_are_refused", "DID NOT", {}),
        (features(within_range), "test_features_of_no_layer_are_refused", "DID NOT", {}),
        (features(from_behind), "test_features_of_no_layer_are_refused", "DID NOT", {}),
    ],
)
def test_features_that_are_wrong_are_found(kit_of, wrong, name, message, arguments):
    fails(kit_of(**wrong), name, message, **arguments)


def test_a_model_without_features_is_not_checked_for_them(kit_of):
    def build(build, *arguments):
        model = build(*arguments)
        names = ("forward", "commit", "embed", "norm", "logits")
        return SimpleNamespace(**{name: getattr(model, name) for name in names})

    bare = facts_of(kit_of(build=build))
    assert bare.missing["features"] == (
        "the model has no features, so no drafter that reads them can draft for it"
    )
    assert "features" not in facts_of(kit_of()).missing


# -- windows and experts --------------------------------------------------------------------------


class Windowed(DenseHooks):
    """States a window, which the layers of a plain decoder then have."""

    @hookimpl
    def allocate_cache(self, config, limits):
        plan = DenseHooks.allocate_cache(self, config, limits)
        sections = plan.layers[0].sections
        return StatePlan((Paged(sections, 72), *plan.layers[1:]))


def windowed(hooks, config):
    return Windowed()


def test_a_window_is_run_through_the_checks_of_windows(kit_of):
    kit = kit_of(hooks=windowed)
    FamilyConformance().test_windows_are_crossed_at_any_length(kit)
    FamilyConformance().test_chunks_leave_behind_a_window(kit)


def test_a_window_that_depends_on_the_step_is_found(kit_of):
    kit = kit_of(hooks=windowed, **changed(by_step_size))
    fails(kit, "test_windows_are_crossed_at_any_length", DIFFERENT)


def test_a_row_that_reads_behind_its_window_is_found(kit_of):
    kit = kit_of(hooks=windowed, **changed(reads_everything))
    fails(kit, "test_chunks_leave_behind_a_window", DIFFERENT)


def test_experts_that_matter_by_their_bay_are_found(kit_of):
    """The model's output depends on the bays of its experts."""

    def read_config(read_config, meta):
        return read_config(meta).model_copy(update={"experts": (4, 4, 4)})

    def build(build, config, weights, context):
        first = 0 if context.placement is None else context.placement.bays[0][0]
        return Changed(build(config, weights, context), lambda h, batch, view: h.roll(first, 1))

    kit = kit_of(read_config=read_config, build=build)
    fails(kit, "test_bays_of_experts_change_nothing")


def test_experts_that_are_read_wrongly_from_their_homes_are_found(tmp_path, monkeypatch):
    from kinfolk_kernels.experts import torch_backend

    read = torch_backend.of_expert

    def doubled(arguments, *rest):
        found = read(arguments, *rest)
        return found if arguments.far is None else tuple(2 * matrix for matrix in found)

    monkeypatch.setattr(torch_backend, "of_expert", doubled)
    kit = Kit("laguna", tmp_path)
    fails(kit, "test_experts_may_be_anywhere", "differs", bays="0")
    fails(kit, "test_answers_do_not_depend_on_where_experts_are", "request")


def test_rows_of_heads_that_are_taken_in_other_pairs_are_found(kit_of):
    """A new plugin of this name turns halves; what holds for neighbours must not hold for it."""
    fails(
        kit_of(), "test_neighbouring_rows_of_heads_turn_together", "this model rotates other pairs"
    )


# -- the contract ---------------------------------------------------------------------------------


def test_a_descriptor_under_another_name_is_found(kit_of):
    kit = kit_of()
    kit.family.family.architectures = ("Olive",)
    fails(kit, "test_descriptor_is_valid", "lower case")


def test_a_plugin_that_is_not_installed_is_found(kit_of):
    fails(kit_of(), "test_entry_point_registers_the_family", "no installed distribution")


def test_a_plugin_that_imports_torch_is_found(kit_of, olive):
    kit = kit_of()
    module = olive / "kinfolk_olive_heavy.py"
    module.write_text("import torch\nfrom kinfolk_olive.plugin import register_families\n")
    kit.record = replace(kit.record, module="kinfolk_olive_heavy")
    fails(kit, "test_discovery_loads_nothing_heavy", "imports torch at discovery")


def test_hooks_that_state_no_cache_are_found(kit_of):
    sound = kit_of()
    assert sound.loaded
    sound.family.family.hooks = lambda config: object()
    fails(sound, "test_hooks_are_sound_and_asked", "allocate_cache")


def test_one_hooks_object_for_all_models_is_found(kit_of):
    one = DenseHooks()
    fails(kit_of(hooks=lambda hooks, config: one), "test_each_model_has_hooks_of_its_own", "is not")


# -- files ----------------------------------------------------------------------------------------


def test_a_tiny_model_that_is_none_or_compared_with_nothing_is_found(kit_of):
    fails(kit_of(tiny=lambda tiny: None), "test_tiny_model_is_usable", "returned None")
    alone = kit_of(tiny=lambda tiny: TinyModel(tiny().shape))
    fails(alone, "test_tiny_model_is_usable", "neither reference nor checkpoint")
    twins = kit_of(tiny=lambda tiny: replace(tiny(), others=(replace(tiny(), others=()),)))
    fails(twins, "test_tiny_model_is_usable", "with the same name")


def test_keys_that_are_not_required_or_not_named_are_found(kit_of):
    config = kit_of().config
    fails(
        kit_of(read_config=lambda read, meta: config),
        "test_missing_keys_are_named",
        "no key of the architecture is required",
    )

    def unnamed(read, meta):
        try:
            return read(meta)
        except ModelFormatError:
            raise ModelFormatError("something is missing") from None

    fails(kit_of(read_config=unnamed), "test_missing_keys_are_named", "does not name")

    def plain(read, meta):
        return read(meta) if "olive.block_count" in meta else {}["layers"]

    fails(kit_of(read_config=plain), "test_missing_keys_are_named", "KeyError")


def test_keys_that_are_converted_are_found(kit_of):
    def lenient(read, meta):
        try:
            return read(meta)
        except ModelFormatError as error:
            sound = {key: meta.value(key) for key in meta}
            sound[error.key] = kit_of().file.metadata.value(error.key)
            return read(type(meta)(sound, meta.path)).model_copy(update={"layers": 1})

    fails(kit_of(read_config=lenient), "test_keys_of_another_type_are_named", "changed the config")


def in_thirds(read, meta):
    return read(meta).model_copy(update={"width": 192 // meta.integer("olive.thirds", default=3)})


def any_layers(read, meta):
    values = {key: meta.value(key) for key in meta} | {"olive.block_count": Value("u32", 3)}
    return read(Metadata(values, meta.path)).model_copy(
        update={"layers": meta.integer("olive.block_count", minimum=1)}
    )


def unnamed_width(read, meta):
    if meta.value("olive.embedding_length").content != 64:
        raise ModelFormatError("this width cannot be")
    return read(meta)


def any_slowness(read, meta):
    config = read(meta)
    factor = meta.number("olive.slowness", default=1.0)
    return config.model_copy(
        update={"rope": config.rope.model_copy(update={"linear_factor": factor})}
    )


@pytest.mark.parametrize(
    ("read_config", "message"),
    [
        (in_thirds, r"'olive\.thirds' = 0 \(i64\) led to PluginError: .*ZeroDivisionError"),
        (
            any_layers,
            r"'olive\.block_count' = 3000000 \(i64\) led to .* kinfolk.config.layer_count",
        ),
        (unnamed_width, r"'olive\.embedding_length' = 0 .* does not name it: this width"),
        (any_slowness, r"'olive\.slowness' = 0 .* logits that are not finite"),
    ],
)
def test_a_number_without_a_range_is_found(kit_of, read_config, message):
    fails(kit_of(read_config=read_config), "test_numbers_out_of_range_are_named", message)


def planned(change):
    def weight_plan(weight_plan, config, inventory):
        return change(weight_plan(config, inventory), inventory)

    return {"weight_plan": weight_plan}


def without_last(plan, inventory):
    return WeightPlan(plan.weights[:-1])


def twice(plan, inventory):
    return WeightPlan((*plan.weights, WeightSpec("more", (256, 64), source="blk.0.ffn_up.weight")))


def overlapping(plan, inventory):
    name = "blk.0.ffn_up.weight"
    kept = [spec for spec in plan if spec.name != name]
    parts = [WeightSpec(f"part {n}", (130, 64), source=name, rows=(126 * n, 126 * n + 130))
             for n in (0, 1)]  # fmt: skip
    return WeightPlan((*kept, *parts))


def ignored_too(plan, inventory):
    return WeightPlan(plan.weights, {"blk.0.ffn_up.weight": "not needed"})


def ignored_without_reason(plan, inventory):
    return WeightPlan(plan.weights[:-1], {plan.weights[-1].name: ""})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_last, "the plan does not know"),
        (twice, "is used for"),
        (overlapping, "gaps or overlaps"),
        (ignored_too, "used and ignored"),
        (ignored_without_reason, "without a reason"),
    ],
)
def test_a_plan_that_does_not_use_every_tensor_once_is_found(kit_of, change, message):
    kit = kit_of()
    sound = kit.family.family.weight_plan
    kit.family.family.weight_plan = lambda config, inventory: change(
        sound(config, inventory), inventory
    )
    fails(kit, "test_every_tensor_is_used_once", message)


def test_a_plan_that_swallows_unknown_tensors_is_found(kit_of, caplog):
    def swallow(plan, inventory):
        rest = set(inventory) - {spec.tensor for spec in plan}
        return WeightPlan(plan.weights, dict.fromkeys(rest, "who knows"))

    fails(kit_of(**planned(swallow)), "test_unknown_tensors_are_reported", caplog=caplog)


def test_a_plan_that_passes_over_biases_is_found(kit_of):
    def swallow(plan, inventory):
        biases = [name for name in inventory if name.endswith(".bias")]
        return WeightPlan(plan.weights, dict.fromkeys(biases, "nobody has them"))

    fails(kit_of(**planned(swallow)), "test_biases_are_not_passed_over", "bias' is ignored")

    def use(plan, inventory):
        biases = [tensor for name, tensor in inventory.items() if name.endswith(".bias")]
        specs = (WeightSpec(tensor.name, tensor.shape, "vector") for tensor in biases)
        return WeightPlan((*plan.weights, *specs))

    FamilyConformance().test_biases_are_not_passed_over(kit_of(**planned(use)))


def test_a_plan_that_takes_what_there_is_is_found(kit_of):
    def lenient(plan, inventory):
        return WeightPlan(tuple(spec for spec in plan if spec.tensor in inventory))

    fails(kit_of(**planned(lenient)), "test_missing_tensors_are_named", "no tensor is required")

    def shaped(plan, inventory):
        fit = (replace(spec, shape=inventory[spec.tensor].shape) for spec in plan)
        return WeightPlan(tuple(fit))

    fails(kit_of(**planned(shaped)), "test_misshapen_tensors_are_named", "expected a ModelFormat")


# -- conversion -----------------------------------------------------------------------------------


def wrong_checkpoint(directory):
    """Saves a model and returns the logits of another one."""
    from kinfolk_olive.tiny import SHAPE
    from transformers import LlamaConfig, LlamaForCausalLM

    from kinfolk.testing.checkpoints import dense_options, save_random

    config = LlamaConfig(**dense_options(SHAPE))
    save_random(LlamaForCausalLM(config), directory)
    other = LlamaForCausalLM(config).eval()
    return lambda tokens: other(tokens[None]).logits[0]


def right_checkpoint(directory):
    from kinfolk_olive.tiny import SHAPE
    from transformers import LlamaConfig, LlamaForCausalLM

    from kinfolk.testing.checkpoints import dense_options, save_random

    return save_random(LlamaForCausalLM(LlamaConfig(**dense_options(SHAPE))), directory)


def test_a_conversion_that_gives_other_logits_is_found(kit_of, monkeypatch):
    """A new plugin's decoder is that of Llama, so a checkpoint of it will do."""
    monkeypatch.setattr(
        "kinfolk_olive.convert.is_of_type",
        lambda checkpoint, name: checkpoint.config.text("model_type") == "llama",
    )
    kit = kit_of()
    kit.tiny = replace(kit.tiny, checkpoint="right")
    kit.reference = lambda name: {"right": right_checkpoint, "wrong": wrong_checkpoint}[name]
    FamilyConformance().test_converted_checkpoints_give_their_logits(kit)
    kit.tiny = replace(kit.tiny, checkpoint="wrong")
    fails(kit, "test_converted_checkpoints_give_their_logits", DIFFERENT)


# -- scores of chunks -----------------------------------------------------------------------------


class ScoringHooks(DenseHooks):
    """The sound hooks of a family, and chunks that are worth what a function of the query says."""

    def __init__(self, told):
        self.told = told

    @hookimpl
    def score_chunks(self, query):
        return self.told(query)


@pytest.fixture
def scoring_kit(kit_of):
    """``scoring_kit(told)``: the kit on a family that scores by a function of the query."""
    return lambda told: kit_of(hooks=lambda hooks, config: ScoringHooks(told))


def in_order(query):
    return Scores(torch.arange(query.chunks, dtype=torch.float32))


SCORES = (
    "test_scores_are_one_finite_number_a_chunk",
    "test_equal_queries_have_equal_scores",
    "test_queries_are_left_alone",
    "test_long_requests_lose_no_round",
)


def test_a_family_that_scores_well_passes(scoring_kit):
    kit = scoring_kit(lambda query: KEEP if query.reason == "prefix" else in_order(query))
    assert "scores" not in facts_of(kit).missing
    for name in SCORES:
        getattr(FamilyConformance(), name)(kinfolk_kit=kit)


def test_checks_of_scores_do_not_apply_to_a_family_that_scores_nothing(kit_of):
    assert facts_of(kit_of()).missing["scores"] == "the family does not answer score_chunks"


def too_many(query):
    return Scores(torch.zeros(query.chunks + 1))


def endless(query):
    return Scores(torch.full((query.chunks,), float("inf")))


def of_nowhere(query):
    return Scores(torch.rand(query.chunks))


def marks_all(query):
    query.resident[:] = True
    return in_order(query)


def fails_in_answers(query):
    """Right for as many chunks as the checks without an engine ask for."""
    if query.reason == "interval" and query.chunks == 11:
        raise RuntimeError("no idea")
    return in_order(query)


@pytest.mark.parametrize(
    ("told", "name", "message"),
    [
        (too_many, SCORES[0], "3 scores for 2 chunks"),
        (endless, SCORES[0], "chunk 0 of 2 is inf"),
        (of_nowhere, SCORES[1], "other scores for the same query"),
        (marks_all, SCORES[2], "changed resident"),
        (fails_in_answers, SCORES[3], "rounds failed: .*no idea"),
    ],
)
def test_a_family_that_scores_wrongly_is_found(scoring_kit, told, name, message):
    fails(scoring_kit(told), name, message)


# -- text -----------------------------------------------------------------------------------------


def test_a_vocabulary_that_loses_text_is_found(kit_of):
    """The last of the bytes has no token of its own."""
    kit = kit_of()
    tokenizer = kit.text[0]
    encode = tokenizer.encode
    tokenizer.encode = lambda text, **options: encode(text.replace("\n", ""), **options)
    fails(kit, "test_texts_come_back", text="a\nb")


def test_special_tokens_that_are_spelled_out_are_found(kit_of):
    kit = kit_of()
    tokenizer = kit.text[0]
    tokenizer.encode = lambda text, **options: tokenizer.encode_plain(text)
    fails(kit, "test_special_tokens_are_taken_whole")


def test_a_pattern_that_is_none_is_found(kit_of):
    broken = (PreTokenizer("olive", ("(",)),)
    kit = kit_of(pretokenizers=lambda pretokenizers: broken)
    fails(kit, "test_patterns_compile", "not a regular expression")


def test_markers_that_end_the_answer_are_found(kit_of):
    confused = ChatFormat(stop_tokens=("</think>",), think=("<think>", "</think>"))
    fails(kit_of(chat=lambda chat, meta: confused), "test_markers_are_distinct")


def test_a_template_that_forgets_a_turn_is_found(kit_of):
    def forgetful(tiny):
        sound = tiny()
        template = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}"
        vocabulary = replace(sound.shape.vocabulary, chat_template=template)
        return replace(sound, shape=replace(sound.shape, vocabulary=vocabulary))

    fails(kit_of(tiny=forgetful), "test_conversations_are_rendered", "a turn is missing")


# -- all of them ----------------------------------------------------------------------------------


def test_there_is_a_family_that_fails_for_every_check():
    """Every check of the kit is named above as one that fails."""
    tree = ast.parse(Path(__file__).read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    checks = {name for name in dir(FamilyConformance) if name.startswith("test_")}
    assert len(checks) > 35
    assert checks - words == set()
