"""Keys of ``config.json`` that models of every kind carry and that no file needs, with the reasons.

A key has its place here only if no decoder computes anything else with another value of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kinfolk.convert.checkpoint import TIED, Config

_TEXT: Final = "text_config"


def _of(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


WITHOUT_EFFECT: Final = {
    **_of(
        "how the checkpoint was made or saved",
        """_name_or_path name_or_path _commit_hash transformers_version architectures auto_map
        dtype torch_dtype tokenizer_class use_bfloat16 unsloth_fixed unsloth_fixed_mtp
        unsloth_version""",
    ),
    **_of(
        "counts in training only",
        """initializer_range attention_dropout hidden_dropout embd_dropout resid_dropout
        output_router_logits router_aux_loss_coef router_jitter_noise gradient_checkpointing
        tf_legacy_loss finetuning_task task_specific_params problem_type""",
    ),
    **_of(
        "labels of a classifier, which is a tensor of its own if there is one",
        "id2label label2id num_labels",
    ),
    **_of(
        "how transformers runs a model and what a call of it returns",
        """use_cache output_hidden_states output_attentions return_dict torchscript
        chunk_size_feed_forward pretraining_tp attn_implementation _attn_implementation
        _attn_implementation_autoset _attn_implementation_internal experts_implementation
        _experts_implementation _experts_implementation_internal is_decoder tie_encoder_decoder
        cross_attention_hidden_size""",
    ),
    **_of(
        "tokens with a role, which the tokenizer's part of a file states",
        """bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id
        mask_token_id decoder_start_token_id prefix""",
    ),
    **_of(
        "how answers are chosen, which generation_config.json states",
        """generation_config assistant_confidence_threshold assistant_lookbehind bad_words_ids
        begin_suppress_tokens diversity_penalty do_sample early_stopping
        encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
        max_length min_length no_repeat_ngram_size num_assistant_tokens
        num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences output_scores
        remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
        target_lookbehind temperature top_k top_p typical_p""",
    ),
}

BESIDE_TEXT: Final = {
    **_of(
        "images and sound are files of their own",
        "vision_config audio_config vision_soft_tokens_per_image language_model_only",
    ),
    **_of(
        "tokens that stand for images and sound; the tokenizer's part of a file has them all",
        """image_token_id image_token_index video_token_id vision_start_token_id vision_end_token_id
        boi_token_id eoi_token_id boa_token_id eoa_token_id eoa_token_index audio_token_id
        audio_token_index""",
    ),
}
"""Keys of a multimodal configuration that are beside its text model."""

_WEIGHTS_OF_OTHER_KINDS: Final = ("quantization_config", "quantization", "compression_config")
_USUAL: Final = {"is_encoder_decoder": False, "add_cross_attention": False, "pruned_heads": {}}


def pass_over_common(config: Config) -> None:
    """Account for the keys above; refuses what makes another model of any kind of model."""
    for key in _WEIGHTS_OF_OTHER_KINDS:
        if key in config:
            raise config.fail(
                key, "says that weights are quantised; convert the checkpoint they were made from"
            )
    config.require_usual(_USUAL)
    config.ignore(WITHOUT_EFFECT)


def text_model(config: Config, model_types: Collection[str]) -> Config:
    """The configuration of the text model: a section of a multimodal one, or all of it.

    Keys that no file needs are accounted for, in the section and beside it. Refuses a section of a
    model that is none of the ``model_types``.
    """
    pass_over_common(config)
    if _TEXT not in config:
        return config
    config.ignore(BESIDE_TEXT)
    text = config.section(_TEXT)
    stated = text.text("model_type", "")
    if stated and stated not in model_types:
        raise text.fail(
            "model_type", f"is {stated!r}, expected one of {', '.join(map(repr, model_types))}"
        )
    pass_over_common(text)
    return text


def is_tied(text: Config, whole: Config, *, has_head: bool, default: bool) -> bool:
    """Whether the embedding is the output matrix, by the text model's word and by the whole's.

    An output matrix that is there is left out only if both say so: which of them counts depends on
    the class that transformers loads. Without one, either is enough.
    """
    stated = [part.flag(TIED) for part in (text, whole) if TIED in part] or [default]
    return all(stated) if has_head else any(stated)
