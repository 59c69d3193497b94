"""What is wrong with an object that a plugin registers, found at discovery and not at first use.

Each check returns a sentence about the object, or the empty string. Nothing is imported and no
reference is resolved: discovery stays light.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kinfolk.descriptors import (
    REFERENCE,
    DrafterSpec,
    Family,
    FamilyBase,
    OpBackend,
    PolicySpec,
    QuantFormat,
)

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_METHODS: Final = MappingProxyType(
    {
        "read_config": ("meta",),
        "weight_plan": ("config", "inventory"),
        "build": ("config", "weights", "context"),
        "hooks": ("config",),
        "chat": ("meta",),
        "pretokenizers": (),
        "shapes": (),
        "model_cards": (),
        "convert": ("checkpoint",),
        "tiny": (),
        "bundled_model": (),
    }
)


def check_family(family: Any) -> str:
    if inspect.isclass(family):
        return "is a class; register an instance of it"
    missing = [name for name in (*_ATTRIBUTES, *_METHODS) if not hasattr(family, name)]
    if missing:
        return (
            f"has no {', '.join(missing)}; subclass kinfolk.descriptors.{FamilyBase.__name__} "
            "for the optional parts"
        )
    return (
        _name(family.name)
        or _architectures(family)
        or next(filter(None, (_method(family, name) for name in _METHODS)), "")
    )


def check_op_backend(backend: Any) -> str:
    return (
        _instance(backend, OpBackend)
        or _name(backend.op, "op")
        or _name(backend.name)
        or _own_reference(backend.name)
        or _reference(backend.function, "function")
        or (_reference(backend.supports, "supports") if backend.supports else "")
        or _integer(backend.priority, "priority")
    )


def check_quant_format(form: Any) -> str:
    return (
        _instance(form, QuantFormat)
        or _name(form.name)
        or _integer(form.ggml_type, "ggml_type", least=0)
        or _integer(form.block, "block", least=1)
        or _integer(form.bytes, "bytes", least=1)
        or _reference(form.dequantize, "dequantize")
        or (_reference(form.quantize, "quantize") if form.quantize else "")
    )


def check_drafter(drafter: Any) -> str:
    return _instance(drafter, DrafterSpec) or _created(drafter)


def check_policy(policy: Any) -> str:
    return _instance(policy, PolicySpec) or _created(policy)


_ATTRIBUTES: Final = ("name", "architectures", "drafter_architectures")

CHECKS: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "register_families": check_family,
        "register_op_backends": check_op_backend,
        "register_quant_formats": check_quant_format,
        "register_drafters": check_drafter,
        "register_policies": check_policy,
    }
)
"""The check of every object returned by a hook that returns a list."""


def _instance(value: object, kind: type) -> str:
    if isinstance(value, kind):
        return ""
    return f"is no {kind.__name__}; return kinfolk.descriptors.{kind.__name__} objects"


def _name(value: object, field: str = "name") -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return ""
    return f"has {field} {value!r}; a name is made of letters, digits, '.', '_' and '-'"


def _own_reference(name: str) -> str:
    if name != REFERENCE:
        return ""
    return f"has name {name!r}, which belongs to the op's own reference"


def _integer(value: object, field: str, least: int | None = None) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"has {field} {value!r}, which is no int"
    if least is not None and value < least:
        return f"has {field} {value}, which is less than {least}"
    return ""


def _reference(value: object, field: str) -> str:
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return ""
    return f'has {field} {value!r}; a reference is a string "module:attribute"'


def _created(spec: Any) -> str:
    if not isinstance(spec.summary, str):
        return f"has summary {spec.summary!r}, which is no str"
    return _name(spec.name) or _reference(spec.create, "create")


def _architectures(family: Family) -> str:
    for field in ("architectures", "drafter_architectures"):
        value = getattr(family, field)
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            return f"has {field} {value!r}; it must be a tuple of str"
        for item in value:
            if not item or item != item.strip() or item != item.lower():
                return f"has {field} with {item!r}; architectures are lower case and not blank"
    if not family.architectures and not family.drafter_architectures:
        return "claims no architecture"
    return ""


def _method(family: Family, name: str) -> str:
    method = getattr(family, name)
    arguments = _METHODS[name]
    shape = f"{name}({', '.join(arguments)})"
    if not callable(method):
        return f"has {name} that is no method; it must be {shape}"
    try:
        signature = inspect.signature(method)
    except ValueError:  # written in C, without a readable signature
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        return f"has {name}{signature}; it must be {shape}"
    return ""
