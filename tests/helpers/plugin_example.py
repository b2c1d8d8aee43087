"""A plugin: a learner outside the paper's family, a network, a sampling rule and a data set, for `--plugin`.

Weight aligning (Zhao et al., CVPR 2020) distils the previous model and then scales the head's new rows.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gd_ray.data import DATASETS
from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import pixel_statistics
from gd_ray.learner import Learner
from gd_ray.learners import LEARNERS
from gd_ray.losses import EXTERNAL, distillation, softmax_with_temperature
from gd_ray.methods import Method, register_method
from gd_ray.networks import NETWORKS
from gd_ray.networks.classifier import expand_head
from gd_ray.wild.sampling import RANKINGS, Ranking


class AligningLoss:
    """(1 - lambda) cross-entropy + lambda distillation, lambda being the share of previous classes."""

    def __init__(self, previous, num_seen, temperature):
        self.previous, self.temperature = previous, temperature
        self.share = previous.num_classes / num_seen

    def __call__(self, network, inputs, labels, dropout):
        with torch.no_grad():
            reference = softmax_with_temperature(self.previous.logits(inputs), self.temperature)
        logits = network.logits(inputs, dropout)
        cross_entropy = F.cross_entropy(logits, labels, ignore_index=EXTERNAL)
        distilled = distillation(logits[:, : self.previous.num_classes], reference, self.temperature).mean()
        return {"ce": (1 - self.share) * cross_entropy, "kd": self.share * distilled}


@LEARNERS.register("aligning")
class Aligning(Learner):
    """Train with distillation, then give new classes the mean weight norm of previous ones."""

    def train(self, stage, previous):
        model = expand_head(previous, stage.num_new, stage.init_rng())
        loss = AligningLoss(previous, sum(stage.task_sizes), self.spec.method.option("temperature", 2.0))
        (step,) = self.steps(stage.sizes)
        stage.fit(step, model, loss, stage.all)
        with torch.no_grad():
            norms = model.head.weight.norm(dim=1)
            gamma = norms[: stage.num_prev].mean() / norms[stage.num_prev :].mean()
            model.head.weight[stage.num_prev :] *= gamma
            model.head.bias[stage.num_prev :] *= gamma
        return model


@NETWORKS.register("two-convolutions")
class TwoConvolutions(nn.Module):
    """A network that trains in no time."""

    def __init__(self, dropout):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
        self.dim = 16

    def forward(self, images, dropout=None):
        return F.relu(self.second(F.relu(self.first(images)))).mean(dim=(2, 3))


def _rank_by_margin(outputs):
    """Let each image compete for its best class by the distance to the second best logit."""
    order = np.sort(outputs.logits, axis=1)
    margin = order[:, -1] - order[:, -2] if order.shape[1] > 1 else order[:, -1]
    return np.arange(len(order)), outputs.logits.argmax(axis=1), margin


RANKINGS["margin"] = Ranking(_rank_by_margin, "margin")


@DATASETS.register("stripes")
def load_stripes(folder, train_per_class, test_per_class):
    """Draw stripes: the class decides their distance and colour."""
    rng = np.random.default_rng(0)

    def draw(number):
        labels = np.repeat(np.arange(6), number)
        rows = (np.arange(32)[None] // (2 + labels[:, None])) % 2 * 200
        colours = np.eye(3)[labels % 3] * 0.5 + 0.5
        noise = rng.integers(0, 55, (len(labels), 32, 32, 3))
        images = rows[:, :, None, None] * colours[:, None, None, :] + noise
        return ImageSet.from_arrays(images.astype(np.uint8), labels)

    train, test = draw(train_per_class or 20), draw(test_per_class or 10)
    return LabelledData("stripes", train, test, pixel_statistics(train.images), tuple(f"stripes {k}" for k in range(6)))


register_method(
    Method(
        name="wa-margin",
        title="WA by margin",
        learner="aligning",
        external=True,
        previous_sampling="margin",
        ood_sampling="random",
        options={"temperature": 2.0},
    )
)
register_method(Method(name="wa-plain", title="WA", learner="aligning"))
