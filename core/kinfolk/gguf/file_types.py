"""Quantisation mixes such as Q4_K_M: the type of each tensor in a quantised file.

The rules follow llama.cpp's quantiser without an importance matrix: matrices get the base type,
sensitive matrices more bits in some layers, and vectors, norms, short convolutions and routers stay
F32. A tensor's role is read from its GGUF name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from kinfolk.gguf.tensor_types import TENSOR_TYPES

Shape = tuple[int, ...]

PLAIN_TYPES: Final = frozenset({"F32", "F16", "BF16"})
EMBEDDINGS: Final = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
OUTPUT: Final = "output.weight"

_UNQUANTISED_PARTS: Final = ("_norm.weight", "ffn_gate_inp", "ssm_conv1d")
_IN_BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)")
_VALUES: Final = frozenset({"attn_v.weight", "attn_qkv.weight"})
_DOWN: Final = frozenset({"ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight"})

FALLBACKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Q2_K": "Q4_0",
        "Q3_K": "Q4_0",
        "Q4_K": "Q5_0",
        "Q5_K": "Q5_1",
        "Q6_K": "Q8_0",
        "IQ4_XS": "IQ4_NL",
    }
)
"""Type -> its replacement for a tensor whose rows are not whole blocks."""

_BLOCK: Final = {kind.name: kind.block for kind in TENSOR_TYPES.values()}


@dataclass(frozen=True, slots=True)
class TensorOrdinal:
    """Tensor ``index`` of ``count`` of its role; ``group`` query heads share a key head."""

    index: int
    count: int
    group: int


Rule = Callable[[TensorOrdinal], str]
"""The type name of a tensor; empty = the base type."""


@dataclass(frozen=True, slots=True)
class TypeMix:
    """A named quantisation mix. ``file_type`` is the value of ``general.file_type``.

    ``base`` is the type of matrices, ``output`` that of the output matrix (of the embedding, if the
    model ties them). ``values`` is the rule for value projections (also fused QKV), with the index
    counted over all of them; ``down`` the rule for down projections, with the index of the layer.
    ``overrides`` maps a name without ``blk.N.`` to a type; tensors named there are not counted.
    """

    name: str
    file_type: int
    base: str
    output: str = "Q6_K"
    values: Rule = field(default=lambda tensor: "")
    down: Rule = field(default=lambda tensor: "")
    attention_output: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def quantised(self) -> bool:
        return self.base not in PLAIN_TYPES

    def overridden(self, overrides: Mapping[str, str], name: str = "") -> TypeMix:
        """The mix with further overrides; an unquantised mix is returned unchanged."""
        if not self.quantised:
            return self
        return replace(self, name=name or self.name, overrides={**self.overrides, **overrides})


# -- rules ----------------------------------------------------------------------------------------


def more_bits(index: int, count: int) -> bool:
    """llama.cpp's ``use_more_bits``: the first and last eighth of the layers, and every third
    between them."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _always(kind: str) -> Rule:
    return lambda tensor: kind


def _in_more_bits(kind: str) -> Rule:
    return lambda tensor: kind if more_bits(tensor.index, tensor.count) else ""


def _first(number: int, kind: str, rest: str = "") -> Rule:
    return lambda tensor: kind if tensor.index < number else rest


def _first_part(divisor: int, kind: str, rest: str = "") -> Rule:
    return lambda tensor: kind if tensor.index < tensor.count // divisor else rest


def _if_grouped(kind: str, rest: str = "") -> Rule:
    """More bits for value tensors if at least four query heads share a key head: they are small."""
    return lambda tensor: kind if tensor.group >= 4 else rest


def _by_name(*mixes: TypeMix) -> Mapping[str, TypeMix]:
    return MappingProxyType({mix.name: mix for mix in mixes})


MIXES: Final = _by_name(
    TypeMix("f32", 0, "F32", "F32"),
    TypeMix("f16", 1, "F16", "F16"),
    TypeMix("bf16", 32, "BF16", "BF16"),
    TypeMix("q8_0", 7, "Q8_0", "Q8_0"),
    TypeMix("q4_0", 2, "Q4_0"),
    TypeMix("q4_1", 3, "Q4_1"),
    TypeMix("q5_0", 8, "Q5_0"),
    TypeMix("q5_1", 9, "Q5_1"),
    TypeMix(
        "q2_k",
        10,
        "Q2_K",
        values=_if_grouped("Q4_K", "Q3_K"),
        down=_always("Q3_K"),
        attention_output="Q3_K",
    ),
    TypeMix("q3_k_s", 11, "Q3_K"),
    TypeMix(
        "q3_k_m",
        12,
        "Q3_K",
        values=_first(2, "Q5_K", "Q4_K"),
        down=_first_part(16, "Q5_K", "Q4_K"),
        attention_output="Q4_K",
    ),
    TypeMix(
        "q3_k_l",
        13,
        "Q3_K",
        values=_always("Q5_K"),
        down=_always("Q5_K"),
        attention_output="Q5_K",
    ),
    TypeMix("q4_k_s", 14, "Q4_K", values=_first(4, "Q5_K"), down=_first_part(8, "Q5_K")),
    TypeMix("q4_k_m", 15, "Q4_K", values=_in_more_bits("Q6_K"), down=_in_more_bits("Q6_K")),
    TypeMix("q5_k_s", 16, "Q5_K"),
    TypeMix("q5_k_m", 17, "Q5_K", values=_in_more_bits("Q6_K"), down=_in_more_bits("Q6_K")),
    TypeMix("q6_k", 18, "Q6_K"),
    TypeMix("iq4_nl", 25, "IQ4_NL", values=_if_grouped("Q5_K"), down=_first_part(8, "Q5_K")),
    TypeMix("iq4_xs", 30, "IQ4_XS", values=_if_grouped("Q5_K"), down=_first_part(8, "Q5_K")),
)
"""Mixes by the name used in ``--outtype``; ``general.file_type`` as in llama.cpp."""

UNKNOWN_FILE_TYPE: Final = 1024
"""``general.file_type`` of a mix that has no number in llama.cpp (``LLAMA_FTYPE_GUESSED``)."""


# -- choosing -------------------------------------------------------------------------------------


def choose_types(
    tensors: Iterable[tuple[str, Shape]],
    mix: TypeMix,
    *,
    group: int = 1,
    blocks: Mapping[str, int] = _BLOCK,
) -> dict[str, str]:
    """Tensor name -> type name.

    ``tensors`` are (name, shape in torch order) in the order of layers. ``group`` is the number of
    query heads that share a key head, ``blocks`` the numbers in a block of each type.
    """
    shapes = dict(tensors)
    values = [name for name in shapes if _local(name) in _VALUES - set(mix.overrides)]
    value_index = {name: index for index, name in enumerate(values)}
    layers = 1 + max((layer_of(name) for name in shapes), default=-1)

    def preferred_type(name: str) -> str:
        local = _local(name)
        if local in mix.overrides:
            return mix.overrides[local]
        if name == OUTPUT or (name in EMBEDDINGS and OUTPUT not in shapes):
            return mix.output
        if local in _VALUES:
            return mix.values(TensorOrdinal(value_index[name], len(values), group))
        if local in _DOWN:
            return mix.down(TensorOrdinal(layer_of(name), layers, group))
        return mix.attention_output if local == "attn_output.weight" else ""

    return {
        name: type_for_row(preferred_type(name) or mix.base, shape[-1], blocks)
        if is_matrix(name, shape)
        else "F32"
        for name, shape in shapes.items()
    }


def is_matrix(name: str, shape: Shape) -> bool:
    """Whether the tensor may be stored in another type than F32."""
    return (
        len(shape) > 1
        and name.endswith("weight")
        and not any(part in name for part in _UNQUANTISED_PARTS)
    )


def layer_of(name: str) -> int:
    """The layer N of a tensor ``blk.N.*``, -1 for any other name."""
    match = _IN_BLOCK.fullmatch(name)
    return int(match[1]) if match else -1


def type_for_row(kind: str, row: int, blocks: Mapping[str, int] = _BLOCK) -> str:
    """``kind``, or its fallback if a row of ``row`` numbers is not whole blocks of it."""
    if row % blocks[kind] == 0:
        return kind
    fallback = FALLBACKS.get(kind, "F16")
    return fallback if row % blocks[fallback] == 0 else "F16"


def _local(name: str) -> str:
    match = _IN_BLOCK.fullmatch(name)
    return match[2] if match else name
