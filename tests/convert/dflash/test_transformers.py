"""A drafter of transformers, an implementation of others: converted, it computes the same."""

from __future__ import annotations

import pytest
import torch
from dflash_bench import Bench, TableTarget, random_features, relative
from dflash_reference import Shape, random_tensors
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

from kinfolk.gguf.file import GGUFFile
from kinfolk.spec.dflash.reader import read_config

BOUND = 1e-5
STEPS = (9, 3, 1, 6, 14)
FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {"full": [FULL, FULL], "sliding": [SLIDING, SLIDING], "both": [SLIDING, FULL]}
SHAPE = Shape(
    (None, None), dim=16, heads=4, kv_heads=2, feature_layers=(1, 3, 4), block=6, eps=1e-5
)


@pytest.fixture(params=LAYERS.values(), ids=LAYERS)
def model(request):
    """A random drafter without trivial weights."""
    config = MuseGlimmerAssistantConfig(
        hidden_size=SHAPE.width,
        intermediate_size=SHAPE.ff,
        num_hidden_layers=2,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.dim,
        rms_norm_eps=SHAPE.eps,
        layer_types=request.param,
        sliding_window=11,
        block_size=SHAPE.block,
        mask_token_id=SHAPE.mask,
        target_layer_ids=list(SHAPE.feature_layers),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    torch.manual_seed(5)
    model = MuseGlimmerAssistantModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1, 0.3)
            else:
                weight.normal_(std=1.3 * weight.shape[-1] ** -0.5)
    return model


def test_steps_are_those_of_transformers(model, tmp_path, converted):
    """Windowed layers of transformers get the whole context in every step: their cache forgets more
    than their mask says if a step has few rows."""
    directory = tmp_path / "hf"
    model.save_pretrained(directory)
    cached = SLIDING not in model.config.layer_types
    target = TableTarget(SHAPE)
    bench = Bench(converted(directory, SHAPE).path, target, SHAPE)
    lease, cache, past = bench.open(), DFlashCache(config=model.config), 0
    context = random_features(SHAPE, sum(STEPS))
    for step, rows in enumerate(STEPS):
        anchor, end = 11 + step, past + rows
        tokens = torch.tensor([anchor] + [SHAPE.mask] * (SHAPE.block - 1))
        bench.extend({lease: context[past:end]})
        if not cached:
            cache, past = DFlashCache(config=model.config), 0
        elif past:
            cache.crop(-SHAPE.block)
        cache.set_previous_accepted_tokens(end - past)
        with torch.no_grad():
            expected = model(
                noise_embeds=target.table[tokens][None],
                context_hidden_states=context[None, past:end],
                position_ids=torch.arange(past, end + SHAPE.block)[None],
                cache=cache,
                use_cache=True,
            ).last_hidden_state[0]
        assert relative(bench.hidden({lease: anchor})[0], expected) <= BOUND
        past = end


def test_what_transformers_leaves_out_has_its_defaults(save, converted):
    """A configuration is saved without values that its class has anyway."""
    shape = Shape((9,) * 5, (False,) * 5, feature_layers=(1, 13, 25, 37, 49), mask=0)
    sizes = {
        "model_type": "muse_glimmer_assistant",
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "intermediate_size": shape.ff,
    }
    vocabulary = Shape(vocabulary=201819)
    path = converted(save(sizes, random_tensors(shape)), vocabulary).path
    with GGUFFile.open(path) as file:
        config = read_config(file.metadata, file.inventory)
    assert config.feature_layers == (1, 13, 25, 37, 49)
    assert (config.block, config.mask_token) == (16, 201818)
    assert {(layer.window, layer.causal) for layer in config.layers} == {(2049, False)}
    assert config.rope.base == 500000.0
    assert config.norm_eps == pytest.approx(1e-5)
