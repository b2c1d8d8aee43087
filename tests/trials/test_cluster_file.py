"""The file for `ray up` is one that Ray takes."""

from pathlib import Path

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

import trials


def test_ray_accepts_the_cluster_file():
    config = yaml.safe_load(Path(trials.__file__).with_name("cluster.yaml").read_text())
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["provider"]["worker_ips"] == ["10.0.0.2", "10.0.0.3"]
    assert prepared["max_workers"] == 2
