"""Random models of transformers, converted and run by us: the logits are the same.

Every released variant in small, and lengths that cross the borders of chunks and windows.
"""

from __future__ import annotations

import pytest
import torch

from kinfolk.convert.driver import convert
from kinfolk.testing.driver import Driver

BOUND = 2e-4
WINDOW = 72
LENGTHS = (1, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 127, 128, 129, WINDOW + 65)
LOCAL, FULL = "sliding_attention", "full_attention"
BASE = {
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "sliding_window": WINDOW,
    "max_position_embeddings": 1024,
    "layer_types": [LOCAL, LOCAL, FULL] * 2,
    "final_logit_softcapping": 30.0,
}
EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
INPUTS = {
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 10,
    "layer_types": [LOCAL, LOCAL, LOCAL, LOCAL, FULL] * 2,
}
VISION = {
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    **dict(zip(("boi_token_id", "eoi_token_id", "image_token_id", "video_token_id",
                "boa_token_id", "eoa_token_index", "audio_token_id"), range(505, 512),
               strict=True)),
}  # fmt: skip
VARIANTS = {
    "26B-A4B": KEYS_AS_VALUES | EXPERTS,
    "31B": KEYS_AS_VALUES,
    "E2B": INPUTS
    | {"num_kv_shared_layers": 5, "use_double_wide_mlp": True, "num_key_value_heads": 1},
    "E4B": INPUTS | {"num_kv_shared_layers": 4},
    "experts, values of their own": EXPERTS | {"top_k_experts": 3},
    "no sharing, all wide keys given": INPUTS | {"use_double_wide_mlp": True},
    "untied, no softcap": {"tie_word_embeddings": False, "final_logit_softcapping": None},
    "another share of turning pairs": {
        "rope_parameters": {
            LOCAL: {"rope_type": "default", "rope_theta": 3e4},
            FULL: {"rope_type": "proportional", "rope_theta": 2e5, "partial_rotary_factor": 0.5},
        }
    },
    "all pairs turn": {
        "rope_parameters": {
            LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "proportional", "rope_theta": 1e5},
        }
    },
    "one embedding for all": {
        "rope_parameters": {
            LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "default", "rope_theta": 1e5},
        }
    },
    "12B": KEYS_AS_VALUES | {"unified": True},
    "inside a multimodal model": INPUTS | {"num_kv_shared_layers": 4, "wrapped": True},
}


def random_model(overrides):
    import transformers

    options = BASE | overrides
    if options.pop("wrapped", False):
        config = transformers.Gemma4Config(text_config=options, **VISION)
        model = transformers.Gemma4ForConditionalGeneration(config)
    elif options.pop("unified", False):
        for key in ("vocab_size_per_layer_input", "hidden_size_per_layer_input"):
            del options[key]
        config = transformers.Gemma4UnifiedTextConfig(**options)
        model = transformers.Gemma4UnifiedForCausalLM(config)
    else:
        model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**options))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in (*model.named_parameters(), *model.named_buffers()):
            # Fresh norms and scales are ones, which hide mistakes.
            if name.endswith("layer_scalar"):
                weight.fill_(0.6 + 0.5 * torch.rand(()).item())
            elif name.endswith("inv_freq") or "embed_scale" in name:
                continue
            elif "q_norm" in name or "k_norm" in name:
                # Scores are not divided by anything: as in trained models, the norms keep them low.
                weight.copy_((1 + 0.3 * torch.randn_like(weight)) * weight.shape[0] ** -0.25)
            elif name.endswith("router.scale"):
                weight.copy_((1 + 0.3 * torch.randn_like(weight)) * weight.shape[0] ** 0.5)
            elif weight.ndim == 1:
                weight.copy_(1 + 0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture(scope="module", params=VARIANTS, ids=list(VARIANTS))
def pair(request, tmp_path_factory, registry, load):
    """A model of transformers and ours, loaded from its conversion."""
    model = random_model(VARIANTS[request.param])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder / "hf")
    families = [provided.value for provided in registry.families.values()]
    path = folder / "model.gguf"
    convert(folder / "hf", path, outtype="f32", families=families, tokenizer=False)
    return model, load(path)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers(pair, row_error, length):
    model, loaded = pair
    tokens = torch.randint(0, 505, (length,), generator=torch.Generator().manual_seed(length))
    with torch.inference_mode():
        expected = model(tokens[None]).logits[0]
    drive = Driver(loaded)
    whole, sliced = drive.open(), drive.open()
    found = drive.feed({whole: tokens.tolist()})[whole]
    assert row_error(found, expected) <= BOUND
    assert row_error(drive.feed({sliced: tokens.tolist()}, rows=50)[sliced], expected) <= BOUND
