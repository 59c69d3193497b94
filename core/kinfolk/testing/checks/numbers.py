"""Checks of logits: those of the reference, in steps of any composition."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kinfolk.convert.driver import convert
from kinfolk.engine.loading import LoadedModel
from kinfolk.plans import Placement
from kinfolk.testing.kit import Kit, assert_same
from kinfolk.testing.marks import each_tiny, needs
from kinfolk.testing.model_files import numbers_of, rewrite, turned_heads
from kinfolk.types import CHUNK_POSITIONS

few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""Each example runs a model. A failed one is not shrunk, as that would run the model for minutes.
Several test classes share a check by inheritance."""


class NumberChecks:
    """Logits of certain rows."""

    @each_tiny
    @needs("tiny", "reference")
    def test_logits_equal_the_reference(self, kinfolk_kit: Kit) -> None:
        """Logits equal those of the reference implementation that the tiny model names."""
        function = kinfolk_kit.reference(kinfolk_kit.tiny.reference)
        file = kinfolk_kit.file
        tensors = {name: torch.from_numpy(numbers_of(file, name).copy()) for name in file.inventory}
        tokens = kinfolk_kit.tokens
        expected = function(tensors, kinfolk_kit.config, torch.tensor(tokens))
        assert_same(kinfolk_kit.linear(tokens), expected.float())

    @needs("tiny", "row order")
    def test_neighbouring_rows_of_heads_turn_together(self, kinfolk_kit: Kit) -> None:
        """The model rotates query and key rows in the pairs in which files store them.

        Rotating these pairs, of queries and keys alike, changes no attention score; rotating other
        pairs does.
        """
        path = kinfolk_kit.folder / "turned.gguf"
        rewrite(kinfolk_kit.file, path, added=turned_heads(kinfolk_kit.file, kinfolk_kit.plan))
        found = kinfolk_kit.logits(kinfolk_kit.load(path), kinfolk_kit.tokens)
        try:
            assert_same(found, kinfolk_kit.linear(kinfolk_kit.tokens))
        except AssertionError as error:
            raise AssertionError(
                f"files of {kinfolk_kit.tiny.shape.architecture!r} store query and key rows so "
                "that neighbours rotate as a pair, but this model rotates other pairs; apply "
                "half_split of kinfolk.nn.rope to both, and neighbours=True in the conversion"
            ) from error

    @each_tiny
    @needs("tiny", "checkpoint")
    def test_converted_checkpoints_give_their_logits(self, kinfolk_kit: Kit) -> None:
        """A converted Hugging Face model has the logits of the original."""
        folder = kinfolk_kit.folder / "checkpoint"
        folder.mkdir(exist_ok=True)
        # Modules may draw their first weights; a draw of its own each time would fail now and then.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            function = kinfolk_kit.reference(kinfolk_kit.tiny.checkpoint)(folder)
        path = kinfolk_kit.folder / "converted.gguf"
        convert(
            folder,
            path,
            outtype="f32",
            families=[kinfolk_kit.family],
            tokenizer=(folder / "tokenizer.json").exists(),
            overwrite=True,
        )
        drive = kinfolk_kit.driver(kinfolk_kit.load(path))
        vocabulary = drive.loaded.info.vocabulary
        for length in (1, CHUNK_POSITIONS - 1, CHUNK_POSITIONS + 1, len(kinfolk_kit.tokens)):
            tokens = [token % vocabulary for token in kinfolk_kit.tokens[:length]]
            with torch.inference_mode():
                expected = function(torch.tensor(tokens))
            lease = drive.open()
            assert_same(drive.feed({lease: tokens})[lease], expected.float())
            drive.kv_cache.tables.release(lease)

    @each_tiny
    @needs("tiny")
    @few
    @given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=8))
    def test_any_slices_give_the_same_logits(self, kinfolk_kit: Kit, sizes: list[int]) -> None:
        """A prompt has the same logits with any slices."""
        drive = kinfolk_kit.driver()
        lease = drive.open()
        found = kinfolk_kit.feed_in(drive, lease, kinfolk_kit.tokens, sizes)
        assert_same(found, kinfolk_kit.linear(kinfolk_kit.tokens))

    @needs("tiny")
    def test_decoding_equals_prefill(self, kinfolk_kit: Kit) -> None:
        """Decoding token by token gives the logits of one prefill."""
        drive = kinfolk_kit.driver()
        lease = drive.open()
        found = drive.feed({lease: kinfolk_kit.tokens}, rows=1)[lease]
        assert_same(found, kinfolk_kit.linear(kinfolk_kit.tokens))

    @needs("tiny")
    @few
    @given(lengths=st.lists(st.integers(1, 140), min_size=1, max_size=4), rows=st.integers(1, 90))
    def test_neighbours_change_nothing(
        self, kinfolk_kit: Kit, lengths: list[int], rows: int
    ) -> None:
        """Other sequences in the same steps do not change a sequence's logits."""
        drive = kinfolk_kit.driver()
        others = {drive.open(): kinfolk_kit.random_tokens(n, seed=n) for n in lengths[::2]}
        lease = drive.open()
        others |= {drive.open(): kinfolk_kit.random_tokens(n, seed=n) for n in lengths[1::2]}
        found = drive.feed({**others, lease: kinfolk_kit.tokens}, rows=rows)[lease]
        assert_same(found, kinfolk_kit.linear(kinfolk_kit.tokens))

    @needs("tiny")
    @few
    @given(seed=st.integers(0, 1000))
    def test_places_change_nothing(self, kinfolk_kit: Kit, seed: int) -> None:
        """A sequence has the same logits in any slot and blocks."""
        drive = kinfolk_kit.driver()
        drive.shuffle(seed)
        other, lease = drive.open(), drive.open()
        texts = {other: kinfolk_kit.random_tokens(90, seed), lease: kinfolk_kit.tokens}
        found = drive.feed(texts, rows=50)[lease]
        assert_same(found, kinfolk_kit.linear(kinfolk_kit.tokens))

    @needs("tiny")
    def test_other_sequences_are_neither_read_nor_touched(self, kinfolk_kit: Kit) -> None:
        """A sequence runs on, and changes nothing, while the state of others is set to NaN."""
        drive = kinfolk_kit.driver()
        others = [drive.open(), drive.open()]
        lease = drive.open()
        start, rest = kinfolk_kit.tokens[:70], kinfolk_kit.tokens[70:]
        drive.feed({other: kinfolk_kit.random_tokens(100, seed=1) for other in others})
        found = [drive.feed({lease: start})[lease]]
        drive.poison(lease)
        before = [drive.kept(other) for other in others]
        found += [drive.feed({lease: [token]})[lease] for token in rest[:5]]
        found.append(drive.feed({lease: rest[5:]}, rows=40)[lease])
        assert_same(torch.cat(found), kinfolk_kit.linear(kinfolk_kit.tokens))
        for other, known in zip(others, before, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(drive.kept(other), known, strict=True))

    @needs("tiny", "windows")
    def test_windows_are_crossed_at_any_length(self, kinfolk_kit: Kit) -> None:
        """Around the length of every window, steps of any size give the same logits."""
        expected = kinfolk_kit.linear(kinfolk_kit.tokens)
        for window in kinfolk_kit.plan.windows:
            for start in () if window is None else (window - 1, window, window + 1):
                drive = kinfolk_kit.driver()
                lease = drive.open()
                drive.feed({lease: kinfolk_kit.tokens[:start]})
                rest = kinfolk_kit.tokens[start:]
                found = kinfolk_kit.feed_in(drive, lease, rest, (1, 1, CHUNK_POSITIONS, 3))
                assert_same(found, expected[start:])

    @needs("tiny", "experts")
    def test_bays_of_experts_change_nothing(self, kinfolk_kit: Kit) -> None:
        """Logits are the same, bit for bit, whatever bays experts are in."""
        layers = kinfolk_kit.config.experts
        placement = Placement(tuple(tuple(reversed(range(count))) for count in layers))
        models = kinfolk_kit.loaded, placed(kinfolk_kit.loaded, placement)
        usual, turned = (kinfolk_kit.logits(loaded, kinfolk_kit.tokens) for loaded in models)
        assert torch.equal(usual, turned)


def placed(loaded: LoadedModel, placement: Placement) -> LoadedModel:
    """The model loaded once more, with experts in these bays."""
    source = loaded.source
    assert source is not None
    experts = replace(source.ready.experts, placement=placement)
    return replace(source, ready=replace(source.ready, experts=experts)).load()
