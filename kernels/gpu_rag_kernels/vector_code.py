"""Vector code for numba functions: what its loops do not give without fastmath, since they may not reorder a sum.

Imports numba; import it at use.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

INT64, INT32 = ir.IntType(64), ir.IntType(32)


class VectorEmitter:
    """Emits code on vectors of `lanes` elements into a function that numba is building.

    Arguments of the function are named by their position; arrays are contiguous, rows of `lanes` elements.
    """

    def __init__(self, context: Any, builder: Any, kinds: Any, values: Any, *, lanes: int, scalar: Any) -> None:
        """Take the function's arguments, and the numba type of an element."""
        self.builder = builder
        self.lanes = lanes
        self.data = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else None
            for kind, value in zip(kinds, values, strict=True)
        ]
        self.scalar = context.get_value_type(scalar)
        self.width = 32 if isinstance(self.scalar, ir.FloatType) else 64
        self.vector = ir.VectorType(self.scalar, lanes)
        self.zero = ir.Constant(self.vector, [0.0] * lanes)

    def splat(self, value: Any) -> Any:
        """Return a vector of that value."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        single = self.builder.insert_element(undefined, value, ir.Constant(INT32, 0))
        mask = ir.Constant(ir.VectorType(INT32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(single, undefined, mask)

    def load_at(self, argument: int, offset: Any) -> Any:
        """Return the vector that starts at that element."""
        pointer = self.builder.gep(self.data[argument], [offset])
        value = self.builder.load(self.builder.bitcast(pointer, self.vector.as_pointer()))
        value.align = self.width // 8
        return value

    def load(self, argument: int, row: Any) -> Any:
        """Return a row."""
        return self.load_at(argument, self.builder.mul(row, ir.Constant(INT64, self.lanes)))

    def store(self, value: Any, argument: int, row: Any) -> None:
        """Write a row."""
        pointer = self.builder.gep(self.data[argument], [self.builder.mul(row, ir.Constant(INT64, self.lanes))])
        self.builder.store(value, self.builder.bitcast(pointer, self.vector.as_pointer())).align = self.width // 8

    def item(self, argument: int, index: Any) -> Any:
        """Return an element; integers are taken as unsigned and widened."""
        value = self.builder.load(self.builder.gep(self.data[argument], [index]))
        narrow = isinstance(value.type, ir.IntType) and value.type.width < 64
        return self.builder.zext(value, INT64) if narrow else value

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what LLVM's element-wise intrinsic gives."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(arguments))
        full = f"llvm.{name}.v{self.lanes}f{self.width}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full), arguments)

    def sum(self, value: Any) -> Any:
        """Return the sum of a vector's elements: halves are added until one is left."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                self.builder.shuffle_vector(
                    value, ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(INT32, lanes), list(range(start, start + lanes))),
                )
                for start in (0, lanes)
            ]  # fmt: skip
            value = self.builder.fadd(*halves)
        return self.builder.extract_element(value, ir.Constant(INT32, 0))
