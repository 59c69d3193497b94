"""Models small enough to test with: a vocabulary of single bytes and a few merges."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ModelOutline, ReleasedShape, TinyModel, VocabularyOutline
from kinfolk.gguf.file_types import layer_of

VOCABULARY: Final = 320

_SPECIALS: Final = (("<|start|>", True), ("<|end|>", True), ("<|pad|>", True))
_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{ '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|start|>assistant\\n' }}{%- endif -%}"
)


def tiny_vocabulary(
    pre: str, size: int = VOCABULARY, chat_template: str = _TEMPLATE
) -> VocabularyOutline:
    """``size`` tokens, cut by the pre-tokenizer ``pre``, with tokens around the turns of a chat."""
    return VocabularyOutline(
        size=size,
        pre=pre,
        first_special=size - len(_SPECIALS) - 1,
        specials=_SPECIALS,
        eos="<|end|>",
        padding="<|pad|>",
        chat_template=chat_template,
    )


def tiny_model(
    architecture: str,
    outline: ModelOutline,
    vocabulary: VocabularyOutline,
    *,
    name: str = "tiny",
    reference: str = "",
    checkpoint: str = "",
    others: tuple[TinyModel, ...] = (),
) -> TinyModel:
    """The :class:`TinyModel` of ``Family.tiny`` with exactly this outline.

    ``name`` tells it from the ``others`` of the family.
    """
    shape = ReleasedShape(
        name=f"{architecture}-{name}",
        architecture=architecture,
        layers=1 + max(layer_of(name) for name, _ in outline.tensors),
        outline=lambda layers: outline,
        vocabulary=vocabulary,
        mixes={},
    )
    return TinyModel(shape, reference, checkpoint, others)
