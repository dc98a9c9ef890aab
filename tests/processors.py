"""A processor that computes "medium" float32 products from bfloat16 operands, as those with AMX do,
on any machine."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


class RoundedProducts(TorchDispatchMode):
    """Rounds the operands of float32 products wherever the process-wide setting allows it; counts
    how often."""

    rounded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in PRODUCTS and torch.get_float32_matmul_precision() == "medium":
            first = len(args) - 2  # the operands come last, behind what is added to their product
            operands = args[first:]
            if operands[0].dtype == torch.float32:
                self.rounded += 1
                args = (*args[:first], *(x.bfloat16().float() for x in operands))
        return func(*args, **(kwargs or {}))
