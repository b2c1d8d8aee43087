"""Backbones by name. The networks themselves are imported when one is built, so that naming one needs no torch.

A backbone is an `nn.Module` with an attribute `dim` and `forward(images, dropout=None)`, which returns features of
shape (n, dim); `dropout` is what `gd_ray.networks.dropout.drop` draws from while training, and None otherwise.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gd_ray.errors import UserError, unknown_name
from gd_ray.plugins import Registry, imported

if TYPE_CHECKING:
    from gd_ray.networks.classifier import Backbone

BackboneBuilder = Callable[[float], "Backbone"]
"""Build a backbone with a dropout rate."""
NETWORKS: Registry[BackboneBuilder] = Registry("network")

NETWORKS["resnet-32"] = imported("gd_ray.networks.resnet", "resnet_32")
NETWORKS["resnet-18"] = imported("gd_ray.networks.resnet", "resnet_18")


def backbone_builder(name: str) -> BackboneBuilder:
    """Return the builder of a registered network or of any WideResNet, wrn-DEPTH-WIDTH."""
    if name in NETWORKS:
        return NETWORKS[name]
    wide = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if wide is None:
        raise unknown_name("network", name, ["wrn-16-2", *NETWORKS])
    depth, width = int(wide[1]), int(wide[2])
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise UserError(
            f"network {name!r} is no WideResNet: its depth must be 6n + 4 (10, 16, 22, 28 …) and its width at least 1."
        )
    build = imported("gd_ray.networks.wide_resnet", "WideResNet")
    return lambda dropout: build(depth, width, dropout)
