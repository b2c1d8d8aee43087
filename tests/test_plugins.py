"""A user's own file adds learners, networks, rankings, data sets and methods; its mistakes get one sentence."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gd_ray.data
import gd_ray.spec
import gd_ray.wild.sampling  # noqa: F401
from gd_ray.errors import UserError
from gd_ray.plugins import Plugin, Registry, load_plugins, read_plugin

EXAMPLE = Path(__file__).parent / "helpers" / "plugin_example.py"

RUN = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import replace
import numpy as np
from gd_ray.plugins import load_plugins, read_plugin
plugin = read_plugin({plugin!r})
load_plugins(plugin)
{code}
"""


def in_a_process(code: str, plugin: Path = EXAMPLE) -> str:
    """Run code after a plugin in a process of its own: registries of this one stay as they are."""
    root = str(Path(__file__).parent.parent)
    program = RUN.format(root=root, plugin=str(plugin), code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 120


def test_a_plugins_method_learns_all_stages_and_resumes_to_the_same_bytes():
    code = """
import torch
from gd_ray.data import DATASETS
from gd_ray.spec import TrialSpec
from gd_ray.trial import run_trial
from gd_ray.wild.stream import MemoryStream
torch.set_num_threads(1)
data = DATASETS["stripes"]("", 8, 4)
stream = MemoryStream(np.random.default_rng(1).integers(0, 256, (120, 32, 32, 3), dtype=np.uint8), block=32)
spec = TrialSpec(method="wa-margin", dataset="stripes", network="two-convolutions", num_classes=6, task_size=2,
    coreset_size=12, window=60, batch_size=8, epoch_factor=0.02, ood_ratio=0.5)
kept = []
whole = run_trial(spec, data, stream, on_stage=lambda _, checkpoint: kept.append(checkpoint))
assert sorted(name for name in whole.stages[2].losses) == ["model ce", "model kd"]
assert whole.stages[2].samples.previous_kind == "margin"
norms = kept[2].weights["head.weight"].norm(dim=1)
torch.testing.assert_close(norms[:4].mean(), norms[4:].mean())
again = []
run_trial(spec, data, stream, resume=kept[1], on_stage=lambda _, checkpoint: again.append(checkpoint))
assert all(torch.equal(kept[2].weights[name], value) for name, value in again[0].weights.items())
assert spec.plugin == plugin.digest
from trials.cost import spec_cost
assert {step.step for step in spec_cost(spec)} == {"teacher", "score", "model", "evaluate"}
print(spec.trial_id, spec.first_model_id)
"""
    trial, first = in_a_process(code).split()
    assert trial != first


def test_the_digest_is_part_of_the_identity_only_where_the_plugin_is_used(tmp_path):
    code = """
from gd_ray.spec import TrialSpec
print(TrialSpec().trial_id, TrialSpec(method="wa-plain").trial_id, TrialSpec(method="wa-plain").first_model_id,
    TrialSpec(method="gd").first_model_id)
"""
    changed = tmp_path / "changed.py"
    changed.write_text(EXAMPLE.read_text() + "\n# another version\n")
    one, two = in_a_process(code).split(), in_a_process(code, changed).split()
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] == two[2] == one[3]  # the shared first model does not depend on the plugin
    message = """
import gd_ray.data
import gd_ray.spec
import gd_ray.wild.sampling  # noqa: F401
from gd_ray.errors import UserError
from gd_ray.spec import TrialSpec
try:
    TrialSpec(method="wa-plain", plugin="0123456789abcdef")
except UserError as error:
    print(error)
"""
    assert "plugin 0123456789abcdef made this trial, but the plugin that is loaded now is" in in_a_process(message)


def test_what_a_plugin_defines_survives_pickling_between_processes():
    code = """
import pickle
from gd_ray.networks.classifier import new_classifier
import torch
model = new_classifier("two-convolutions", 0.0, 3, torch.Generator())
print(pickle.dumps((plugin, pickle.dumps(model))).hex())
"""
    packed = bytes.fromhex(in_a_process(code))
    plugin, model = pickle.loads(packed)
    assert isinstance(plugin, Plugin)
    assert plugin.module.encode() in model


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:\n", "has a syntax error in line 1"),
        ("\n\nraise KeyError('x')\n", "fails in line 3: KeyError"),
        ("import not_a_module_at_all\n", "fails in line 1: ModuleNotFoundError: No module named 'not_a_module_at_all'"),
        (
            "from gd_ray.methods import *\nregister_method(Method(name='gd', title='Mine'))\n",
            "fails in line 2: method 'gd' exists already; give yours another name.",
        ),
        (
            "from gd_ray.networks import NETWORKS\nNETWORKS['fresh'] = None\nNETWORKS['resnet-32'] = None\n",
            "fails in line 3: network 'resnet-32' exists already",
        ),
        ("from gd_ray.methods import *\nMethod(name='x', title='X', previous='globl')\n", "did you mean 'global'?"),
    ],
)
def test_a_mistake_in_a_plugin_is_one_sentence_and_leaves_nothing_behind(source, message, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(source)
    before = {id(registry): dict(registry) for registry in Registry.all}
    with pytest.raises(UserError) as error:
        load_plugins(read_plugin(str(file)))
    assert str(error.value).startswith(f"plugin {str(file)!r} ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert {id(registry): dict(registry) for registry in Registry.all} == before


def test_a_plugin_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_plugin(str(tmp_path / "none.py"))


def test_registries_name_the_nearest_entry():
    registry: Registry[int] = Registry("thing")
    Registry.all.remove(registry)
    registry["alpha"] = 1
    with pytest.raises(UserError, match="thing 'alpah' does not exist; did you mean 'alpha'?"):
        registry.named("alpah")
    assert registry.register("beta")(2) == 2
    assert np.sum(list(registry.values())) == 3
