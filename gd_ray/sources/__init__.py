"""Formats that images come in. Importing the package registers them; error messages list them in this order."""

from gd_ray.sources import parquet as parquet  # isort: skip
from gd_ray.sources import tars as tars  # isort: skip
from gd_ray.sources import imagenet_batches as imagenet_batches  # isort: skip
from gd_ray.sources import folder as folder  # isort: skip
from gd_ray.sources import tiny_images as tiny_images  # isort: skip
