"""The network without training: logits of uint8 images in batches of one fixed size."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.data.loader import normalised
from gd_ray.data.pixels import Statistics
from gd_ray.network import WideResNet

BATCH = 256


@torch.inference_mode()
def predict(
    network: WideResNet, images: Tensor | NDArray[np.uint8], statistics: Statistics, batch_size: int = BATCH
) -> Tensor:
    """Logits of every image.

    Batches always have `batch_size` images, the last one padded: on some machines a result depends on the batch's size
    in its last bits, and a score must not depend on how the work was cut.
    """
    device = network.head.weight.device
    was_training = network.training
    network.eval()
    parts = []
    for start in range(0, len(images), batch_size):
        pixels = images[start : start + batch_size]
        batch = (pixels if isinstance(pixels, Tensor) else torch.tensor(pixels)).to(device)
        number = len(batch)
        if number < batch_size:
            batch = torch.cat([batch, batch.new_zeros(batch_size - number, *batch.shape[1:])])
        parts.append(network(normalised(batch, statistics))[:number])
    network.train(was_training)
    return torch.cat(parts) if parts else torch.empty(0, network.head.out_features, device=device)
