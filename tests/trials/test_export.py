"""Kept models: they predict without gd_ray what the trial's results say, and whoever asks wrongly gets one sentence."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from gd_ray.checkpoint import Checkpoint
from gd_ray.data.tasks import ClassIncrementalData
from gd_ray.errors import UserError
from gd_ray.evaluation import in_batches
from gd_ray.fingerprint import Fingerprints
from gd_ray.kept_models import keep_model, kept_stages
from gd_ray.networks.classifier import new_classifier
from gd_ray.store import read_rows, write_stages, write_trial
from gd_ray.trial import run_trial
from tests.helpers.made import made_spec, write_made
from tests.helpers.tiny import tiny_spec
from trials.export import export_model
from trials.registry import DataLocations
from trials.worker import Job

ROOT = Path(__file__).parents[2]
PREDICT = """
import importlib.util, json, sys
from pathlib import Path
sys.path = [folder for folder in sys.path if not Path(folder, "gd_ray").exists()]
assert importlib.util.find_spec("gd_ray") is None
import torch
torch.set_num_threads(1)
images, predicted = torch.load("images.pt"), {}
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("load_model", Path(folder, "load_model.py"))
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    loader.BATCH = 16
    model = loader.load_model()
    classes = model.config["classes"]
    predicted[folder] = [classes[k]["number"] for k in model.predict(images)]
    with torch.inference_mode():
        predicted[f"{folder} head"] = [classes[k]["number"] for k in model(images).argmax(dim=1)]
print(json.dumps(predicted))
"""


def predictions(folder, images, *names):
    """The classes that exported models predict in a process that cannot import gd_ray."""
    torch.save(images, folder / "images.pt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-I", "-c", PREDICT, *names]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def kept(tmp_path_factory, tiny_data):
    """Two finished trials with the models of all stages, and one that kept none."""
    folder = tmp_path_factory.mktemp("kept")
    results = str(folder / "results")
    specs = [tiny_spec(method=method, epoch_factor=0.02) for method in ("baseline", "icarl")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gd_ray.evaluation.BATCH", 16)
        for spec in specs:
            result = run_trial(
                spec, tiny_data, on_stage=lambda _, c, spec=spec: keep_model(results, spec, tiny_data, c, "abc-dirty")
            )
            write_stages(results, spec, result.stages)
            write_trial(results, result, device="cpu", threads=1)
    write_made(results, "mine", made_spec("gd"), lambda stage, task: 90)
    return folder, results, specs


def test_an_exported_model_predicts_without_gd_ray_what_the_results_count(kept, tiny_data):
    folder, results, specs = kept
    exports = {"last": (specs[0], None), "second": (specs[0], 2), "icarl": (specs[1], None)}
    for name, (spec, stage) in exports.items():
        export_model(results, spec.trial_id[:10], str(folder / name), stage)
    found = predictions(folder, tiny_data.test.images, *exports)
    assert found["icarl"] != found["icarl head"]
    for name, (spec, stage) in exports.items():
        seen = ClassIncrementalData.of(spec, tiny_data).order[: 2 * (stage or 3)].tolist()
        rows = read_rows(results, "confusions", [spec.trial_id])[0].to_pylist()
        stored = [row for row in rows if row["stage"] == (stage or 3)]
        for predicted, column in ((name, "count"), (f"{name} head", "head_count" if name == "icarl" else "count")):
            pairs = zip(tiny_data.test.labels.tolist(), found[predicted], strict=True)
            counts = Counter(pair for pair in pairs if pair[0] in seen)
            assert counts == {(row["true_class"], row["predicted_class"]): row[column] for row in stored if row[column]}


def test_the_description_and_the_card_of_an_exported_model(kept, tiny_data):
    folder, results, specs = kept
    (folder / "described").mkdir()  # an empty folder is no obstacle
    export_model(results, specs[1].trial_id, str(folder / "described"), 2)
    assert {path.name for path in (folder / "described").iterdir()} == {
        *("model.safetensors", "config.json", "README.md", "load_model.py")
    }
    config = json.loads((folder / "described" / "config.json").read_text())
    order = ClassIncrementalData.of(specs[1], tiny_data).order[:4].tolist()
    assert config["classes"] == [
        {"name": tiny_data.class_names[number], "number": number, "task": 1 + k // 2} for k, number in enumerate(order)
    ]
    assert (config["network"], config["stage"], config["predicts_by"]) == ("wrn-10-1", 2, "nearest mean")
    assert config["mean"] == list(tiny_data.statistics.mean)
    assert config["std"] == list(tiny_data.statistics.std)
    assert config["spec"] == specs[1].flat()
    assert (config["digests"]["data"], config["revision"]) == (tiny_data.digest, "abc-dirty")
    card = (folder / "described" / "README.md").read_text()
    assert "# iCaRL on glyphs after stage 2 of 3" in card
    assert f"Of {config['accuracy']['total']} test images" in card
    assert "| coreset_size | 7 |" in card
    assert "ood_ratio" not in card  # which this method does not use
    assert (folder / "described" / "load_model.py").read_text().count("gd_ray") == 0


def test_the_loader_has_every_network(tmp_path, tiny_data, small_inference):
    images, expected = tiny_data.test.images[:16], {}
    for network in ("wrn-16-2", "resnet-32", "resnet-18"):
        spec = tiny_spec(method="baseline", network=network)
        model = new_classifier(network, 0.3, 2, torch.Generator().manual_seed(1))
        logits = in_batches(model.logits, model, images, tiny_data.statistics)
        model.head.bias.data -= logits.mean(dim=0)  # else untrained weights predict one class for all
        checkpoint = Checkpoint(spec.trial_id, "", Fingerprints(), model.state_dict(), None, (None,))  # of stage 1
        keep_model(str(tmp_path), spec, tiny_data, checkpoint, None)
        export_model(str(tmp_path), spec.trial_id, str(tmp_path / network))
        order = ClassIncrementalData.of(spec, tiny_data).order
        expected[network] = order[in_batches(model.predict, model, images, tiny_data.statistics)].tolist()
        assert len(set(expected[network])) == 2
    assert predictions(tmp_path, images, *expected).items() >= expected.items()


PLUGIN = """
import sys
import torch
from gd_ray.checkpoint import Checkpoint
from gd_ray.data import DATASETS
from gd_ray.evaluation import in_batches
from gd_ray.fingerprint import Fingerprints
from gd_ray.kept_models import keep_model
from gd_ray.networks.classifier import new_classifier
from gd_ray.plugins import load_plugins, read_plugin
from gd_ray.spec import TrialSpec
from trials.export import export_model
load_plugins(read_plugin(sys.argv[1]))
data = DATASETS["stripes"]("", 8, 4)
spec = TrialSpec(method="wa-plain", dataset="stripes", network="two-convolutions", num_classes=6, task_size=2)
model = new_classifier(spec.network, 0.3, 2, torch.Generator().manual_seed(1))
checkpoint = Checkpoint(spec.trial_id, "", Fingerprints(), model.state_dict(), None, (None,))
keep_model("results", spec, data, checkpoint, None)
config = export_model("results", spec.trial_id, "out")
assert config["plugin"] == "plugin.py" and open("out/plugin.py").read() == open(sys.argv[1]).read()
assert "comes from a plugin: `plugin.py` beside this file is needed" in open("out/README.md").read()
sys.path.insert(0, "out")
from load_model import load_model
images = data.test.images
assert load_model().predict(images) == in_batches(model.predict, model, images, data.statistics).tolist()
sys.modules["gd_ray.learners"] = None
load_model()
"""


def test_a_plugins_network_travels_with_its_file(tmp_path):
    plugin = ROOT / "tests" / "helpers" / "plugin_example.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PLUGIN, str(plugin)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "This model's network is in plugin.py, which needs gd_ray: install it first.\n"


@pytest.mark.parametrize(("keep", "stages"), [("last", [3]), ("all", [1, 2, 3]), ("none", [])])
def test_which_models_a_job_keeps(keep, stages):
    job = Job(tiny_spec(method="gd"), "results", "storage", DataLocations(), "run", keep)
    assert [stage for stage in (1, 2, 3) if job.keeps_model(stage)] == stages


def test_what_cannot_be_exported_is_one_sentence(kept, tmp_path):
    _, results, specs = kept
    first = specs[0].trial_id
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    cases = [
        (("zzz", "new"), f"trial 'zzz' is not in results '{results}'; 'gd-ray report' lists the ids of its trials."),
        (("", "new"), "trial '' is not in results"),
        ((first, "full"), "full' exists and is not an empty folder; give another one."),
        ((first, "full/file"), "full/file' exists and is not an empty folder"),
        ((first, "full/file/below"), "below' cannot be written (Not a directory); choose another folder."),
        (
            (first, "new", 4),
            f"--stage 4 of trial {first} was not kept, only 1, 2, 3; to keep every stage, run it again",
        ),
        ((made_spec("gd").trial_id, "new"), "was kept in results"),
    ]
    for (trial, out, *stage), says in cases:
        with pytest.raises(UserError) as error:
            export_model(results, trial, str(tmp_path / out), *stage)
        assert says in str(error.value)
        assert "\n" not in str(error.value)
    assert "run it again with --keep-models last (or all) and another --results folder" in str(error.value)
    with pytest.raises(UserError, match="is an address"):
        export_model(results, first, "s3://bucket/out")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_beginning_of_two_ids_is_refused(tmp_path):
    for stage in (1, 2):
        for trial_id in ("ab12", "ab34"):
            path = tmp_path / "models" / f"{trial_id}-{stage}.safetensors"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * 20)
    assert kept_stages(str(tmp_path)) == {"ab12": [1, 2], "ab34": [1, 2]}
    with pytest.raises(UserError, match=r"trial 'ab' is the beginning of 2 ids \(ab12, ab34\); give more of it."):
        export_model(str(tmp_path), "ab", str(tmp_path / "out"))
    with pytest.raises(UserError, match="ab12-2.safetensors is not a kept model; restore it from a copy."):
        export_model(str(tmp_path), "ab1", str(tmp_path / "out"))
