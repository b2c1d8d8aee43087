"""Random pictures in the forms that sources have."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def picture(k, size=(48, 40)):
    rng = np.random.default_rng(k)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def boxed(image, side=32):
    return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BOX)).tobytes()


def tar_bytes(files):
    """A tar of (name, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def class_tar(start=0):
    return tar_bytes((f"{k}.png", png(picture(k))) for k in range(start, start + 4))


def write_parquet(file, contents, labels, names, row_group_size=3):
    rows = [{"bytes": content, "path": None} for content in contents]
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})}
    table = pa.table({"image": rows, "label": labels}).replace_schema_metadata(metadata)
    pq.write_table(table, file, row_group_size=row_group_size)
