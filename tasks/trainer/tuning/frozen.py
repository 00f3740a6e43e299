"""Frozen weights: buffers that no optimizer, gradient or checkpoint has."""

from torch import nn


def freeze(module: nn.Module) -> None:
    """Turns all parameters of a module, and of those in it, into buffers of the same names that it does not save."""
    for each in list(module.modules()):
        for name, weight in list(each._parameters.items()):
            if weight is not None:
                del each._parameters[name]
                each.register_buffer(name, weight.detach(), persistent=False)
