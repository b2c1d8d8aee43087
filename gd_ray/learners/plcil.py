"""PLCiL, pseudo-labeling (Lechat et al., BMVC 2021): FixMatch on stream images, with labels of M and of P.

Learning rate, weight decay and batches are the authors' where the spec has its defaults: 0.03, 1e-4, and 32 labelled
with 224 stream images. Strong views are RandAugment's and cutout; the authors learn theirs while they train.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gd_ray.data.strong_view import ViewBatches
from gd_ray.errors import UserError
from gd_ray.learner import Learner, Stage
from gd_ray.learners.dmc import IMAGES
from gd_ray.losses import classification, loss_weight
from gd_ray.networks.classifier import Classifier, as_reference, expand_head
from gd_ray.networks.dropout import DropoutRng
from gd_ray.schedule import Cosine
from gd_ray.seeding import generator, step_purposes
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step

TRAINING = Cosine((10, 20, 40, 80), share=0.3)
DECAY_SHARE = 0.2
"""Of the spec's weight decay."""
LABELLED_DIVISOR = 4
"""A batch has the spec's batch size divided by this of labelled images."""


def pseudo_label_terms(
    logits: Tensor, labels: Tensor, strong: Tensor, labelled_by: dict[str, Tensor], threshold: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Return cross-entropies on labels and on pseudo-labels of M and P, and the share of images that each gives one.

    `logits` are of labelled images, `strong` of strong views, `labelled_by` of weak views by 'model' and 'previous'.
    """
    terms, shares = {"cls": classification(logits, labels).mean()}, []
    for name, weak in labelled_by.items():
        probability, label = F.softmax(weak, dim=1).max(dim=1)
        sure = (probability >= threshold).to(strong.dtype)
        weight = loss_weight(weak.shape[1], strong.shape[1])  # 1 for M
        terms[f"pseudo-labels of {name}"] = weight * (classification(strong, label) * sure).mean()
        shares.append(sure.mean())
    return terms, torch.stack(shares)


class PseudoLabelLoss:
    """The loss of batches of labelled images, weak views and strong views, in this order.

    M labels as it is while it learns, with the statistics of the batch, but without dropout.
    """

    def __init__(self, previous: Classifier, labelled: int, threshold: float, precision: str) -> None:
        self.labelled, self.threshold, self.bfloat16 = labelled, threshold, precision == "bfloat16"
        self.previous = as_reference(previous, bfloat16=self.bfloat16)
        self.shares = torch.zeros(2, device=previous.device, dtype=previous.head.weight.dtype)
        """Sums over updates of the shares of stream images with a pseudo-label of M and of P."""

    def __call__(self, network: Classifier, inputs: Tensor, labels: Tensor, dropout: DropoutRng) -> dict[str, Tensor]:
        images, views = inputs.tensor_split((self.labelled,))
        weak, strong = views.chunk(2)
        with torch.no_grad():
            models = {"model": network, "previous": self.previous}
            labelled_by = {name: model.logits(weak, bfloat16=self.bfloat16) for name, model in models.items()}
        logits = [network.logits(part, dropout, bfloat16=self.bfloat16) for part in (images, strong)]
        terms, shares = pseudo_label_terms(logits[0], labels[: self.labelled], logits[1], labelled_by, self.threshold)
        self.shares += shares
        return terms


class PseudoLabeling(Learner):
    """The stream images of a stage are random ones of its window; the first model is the one that methods share."""

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        method, number = spec.method, spec.batch_size
        self.threshold, self.ratio = float(method.option("threshold", 0.8)), int(method.option("stream_ratio", 7))
        if not method.external:
            raise UserError(f"method {method.name!r} learns from stream images; give it external=True and a stream.")
        if self.threshold <= 0:
            raise UserError(f"method {method.name!r}: threshold {self.threshold} must be above 0.")
        if self.ratio < 1:
            raise UserError(f"method {method.name!r}: stream_ratio {self.ratio} must be at least 1.")
        if number < LABELLED_DIVISOR:
            need = f"takes a quarter of batch_size {number} as labelled images of a batch, which is none"
            raise UserError(f"method {method.name!r} {need}; raise it to {LABELLED_DIVISOR} or more.")

    def external_size(self, labelled: int) -> int:  # noqa: ARG002
        return min(int(self.spec.method.option("images", IMAGES)), self.spec.window)

    def _batch(self, sizes: StageSizes) -> tuple[int, int]:
        """Return the labelled and the stream images of an update."""
        labelled = self.spec.batch_size // LABELLED_DIVISOR
        return min(labelled, sizes.labelled), min(self.ratio * labelled, sizes.external)

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        labelled, stream = self._batch(sizes)
        size = labelled + stream
        epoch = sizes.labelled // labelled * size  # all labelled images once
        references = 2 * stream / size  # M and P label stream images
        return [Step("model", TRAINING, sizes.all, references, epoch_images=epoch, batch_size=size)]

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        assert previous is not None, "this method shares its first model"
        (step,), (labelled, stream) = self.steps(stage.sizes), self._batch(stage.sizes)
        updates = step.schedule(self.spec).updates
        batches = ViewBatches(
            stage.batches(step.name, stage.labelled, labelled, updates),
            stage.batches("stream", stage.external, stream, updates),
            generator(self.spec.seed, stage.number, step_purposes("strong views")[1]),
        )
        model = expand_head(previous, stage.num_new, stage.init_rng())
        loss = PseudoLabelLoss(previous, labelled, self.threshold, self.spec.precision)
        decay = DECAY_SHARE * self.spec.weight_decay
        stage.fit(step, model, loss, stage.all, batches=batches, weight_decay=decay, nesterov=True)
        shares = zip(("model", "previous"), (loss.shares / updates).tolist(), strict=True)
        stage.log.recorded |= {f"share with pseudo-label of {name}": share for name, share in shares}
        return model
