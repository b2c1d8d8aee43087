"""A stage made from tensors, for tests and benchmarks that need no trial around it."""

import numpy as np

from gd_ray.coreset import class_quotas
from gd_ray.learner import Stage
from gd_ray.progress import no_progress


def make_stage(spec, number, images, labels, statistics, current, labelled) -> Stage:
    """The first `current` images are the current task's, those up to `labelled` exemplars, the rest external."""
    indices = np.split(np.arange(len(labels)), [current, labelled])
    return Stage(
        spec=spec,
        number=number,
        images=images,
        labels=labels,
        statistics=statistics,
        current=indices[0],
        exemplars=indices[1],
        ranked_exemplars=indices[1],
        external=indices[2],
        external_previous=len(indices[2]) * 3 // 10,
        quotas=class_quotas(spec.coreset_size, sum(spec.task_sizes[:number])),
        progress=no_progress,
    )
