"""A classifier that predicts the class with the nearest mean of features."""

import torch
from torch import Tensor

from gd_ray.networks.classifier import Backbone, Classifier


class NearestMeanClassifier(Classifier):
    """A Classifier that keeps a unit vector for each class; its head learns, the means predict."""

    means: Tensor
    """Shape (classes, features)."""

    def __init__(self, backbone: Backbone, num_classes: int, rng: torch.Generator) -> None:
        super().__init__(backbone, num_classes, rng)
        self.register_buffer("means", torch.zeros(num_classes, backbone.dim))

    def scores(self, inputs: Tensor) -> Tensor:
        """Return products with the means: of unit means, the nearest to the features' direction has the largest."""
        return self.features(inputs).to(self.means) @ self.means.T
