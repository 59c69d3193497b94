"""Makes Triton's interpreter do once what it does anew for every call of a function, or number.

For a call of a function inside a kernel it looks through all of its language for what to replace
by its own, which was replaced when the kernel began: a third of a test's time. And it makes a table
of all types for each array, and an object for each side of its shape, which are a handful of
shapes. What it computes is the same.
"""

from __future__ import annotations

import inspect
from functools import cache
from math import prod

import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


def install() -> None:
    """For this process. A Triton that is built otherwise stays as it is."""
    if hasattr(interpreter, "_LangPatchScope") and hasattr(core, "validate_block_shape"):
        _patch_once(interpreter._patch_lang, interpreter._LangPatchScope)
        _remember_types(interpreter._get_np_dtype)
        _remember_shapes(core.block_type.__init__)


def _patch_once(patch, scope) -> None:
    langs_of = cache(
        lambda fn: [
            each
            for each in fn.__globals__.values()
            if inspect.ismodule(each) and (each is tl or each is core)
        ]
    )

    def patch_lang(fn):
        langs = langs_of(fn)
        if langs and not any(core.is_builtin(lang.load) for lang in langs):
            return scope()
        return patch(fn)

    interpreter._patch_lang = patch_lang


def _remember_types(numpy_type) -> None:
    by_name = cache(lambda name, scalar: numpy_type(scalar))

    def of(tt_dtype):
        scalar = tt_dtype.element_ty if isinstance(tt_dtype, tl.block_type) else tt_dtype
        if type(scalar) is not tl.dtype:
            return numpy_type(tt_dtype)
        return by_name(scalar.name, scalar)

    interpreter._get_np_dtype = of


def _remember_shapes(make_block_type) -> None:
    size_of = cache(core.validate_block_shape)
    name_of = cache(lambda shape, element: f"<{shape}, {element}>")
    sides_of = cache(
        lambda shape: (core.constexpr(prod(shape)), core.tuple([core.constexpr(n) for n in shape]))
    )

    def block_type(self, element_ty, shape):
        if not shape or any(type(side) is not int for side in shape):
            make_block_type(self, element_ty, shape)
            return
        self.element_ty, self.shape = element_ty, tuple(shape)
        self.numel = size_of(self.shape)
        self.name = name_of(self.shape, str(element_ty))

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = sides_of(type.shape if type.is_block() else ())

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor
