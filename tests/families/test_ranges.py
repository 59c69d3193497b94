"""Every number that a family reads has a range; a number outside it is refused by name."""

from __future__ import annotations

import tracemalloc

import pytest

from kinfolk.errors import KinfolkError, ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.metadata import Metadata
from kinfolk.gguf.values import Value
from kinfolk.testing.checks.ranges import FLOAT_EDGES, INTEGERS

STRETCHED = {
    "rope.scaling.type": Value("string", "yarn"),
    "rope.scaling.factor": Value("f32", 4.0),
    "rope.scaling.original_context_length": Value("u32", 64),
}
ENDS = ("minimum", "above", "allowed")


class Stated(Metadata):
    """Metadata that notes which numbers are read, and whether a range is stated."""

    def __init__(self, values, path):
        super().__init__(values, path)
        self.stated = {}

    def _note(self, key, options):
        has = any(options.get(end) is not None for end in ENDS)
        self.stated[key] = self.stated.get(key, True) and has

    def integer(self, key, **options):
        self._note(key, options)
        return super().integer(key, **options)

    def number(self, key, **options):
        self._note(key, options)
        return super().number(key, **options)

    def per_layer(self, key, layers, **options):
        self._note(key, options)
        return super().per_layer(key, layers, **options)


@pytest.fixture
def read(case, cases, registry):
    """``read(**changes)``: the configuration of a reference case with some of its keys changed."""
    with GGUFFile.open(cases / f"{case}.gguf") as file:
        meta = file.metadata
        family = registry.family_for(meta.architecture, None)
        values = {key: meta.value(key) for key in meta}

        def with_changes(kind=Metadata, **changes):
            changed = values | {meta.arch_key(key): value for key, value in changes.items()}
            changed_meta = kind(changed, file.path)
            return family.read_config(changed_meta), changed_meta

        yield with_changes


def stretches(read):
    """The keys of a stretched context; none where the family has no such contexts."""
    return {} if refusal(lambda: read(**STRETCHED)) else STRETCHED


def refusal(action, *arguments):
    """The message of the refusal; empty if nothing is refused."""
    try:
        action(*arguments)
    except KinfolkError as error:
        return str(error)
    return ""


def test_every_number_that_is_read_has_a_stated_range(read):
    _, meta = read(Stated, **stretches(read))
    assert len(meta.stated) > 10
    assert [key for key, has in meta.stated.items() if not has] == []


@pytest.mark.parametrize("count", [0, 1025, 300_000_000, 2**31, 2**63])
def test_layers_that_no_model_has_are_refused_before_anything_is_made_of_them(read, count):
    read()
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=rf"block_count' is {count}, expected 1 to 1024"):
            read(block_count=Value("u64", count))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "name",
    [
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.attn_factor",
        "rope.scaling.yarn_attn_factor",
        "attention.layer_norm_rms_epsilon",
        "attention.head_count",
        "attention.head_count_kv",
        "expert_feed_forward_length",
        "expert_weights_scale",
        "final_logit_softcapping",
    ],
)
def test_numbers_are_sound_or_refused_by_name(read, case, name):
    stretched = stretches(read)
    for number in (*INTEGERS, *FLOAT_EDGES):
        kind = "f32" if isinstance(number, float) else "u64" if number == 2**63 else "i64"
        said = refusal(lambda value: read(**stretched | {name: value}), Value(kind, number))
        assert not said or (f"{case}.gguf: " in said and f".{name}" in said)
