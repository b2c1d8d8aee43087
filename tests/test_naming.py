"""Names of trials say what tells them apart, and nothing else."""

from gd_ray.methods import METHODS, Method
from gd_ray.naming import counted, trial_names
from tests.helpers.made import made_spec


def names(*specs):
    return trial_names([spec.flat() for spec in specs])


def test_fields_that_vary_are_named_where_they_are_used():
    assert names(made_spec("gd+ext", 3)) == ["GD+ext, seed 3"]
    sweep = (made_spec("gd+ext", ood_ratio=0.5), made_spec("gd+ext"), made_spec("gd", 1, ood_ratio=0.1))
    assert names(*sweep) == ["GD+ext, seed 0, OOD ratio 0.5", "GD+ext, seed 0, OOD ratio 0.7", "GD, seed 1"]
    assert names(made_spec("gd"), made_spec("lwf", 0, train_per_class=5, task_size=1)) == [
        "GD, seed 0, task size 2, train per class all",
        "LwF, seed 0, task size 1, train per class 5",
    ]


def test_methods_of_one_title_are_told_apart():
    other = Method(name="gd", title="GD", previous="local")
    twin = Method(name="twin", title="GD", previous="local")
    assert names(*map(made_spec, (other, twin, METHODS["lwf"]))) == [
        "GD, seed 0, method gd",
        "GD, seed 0, method twin",
        "LwF, seed 0",
    ]
    first, second = names(made_spec("gd"), made_spec(other))
    assert first.startswith("GD, seed 0, method previous global, ")
    assert second.startswith("GD, seed 0, method previous local, ")


def test_trials_that_differ_have_different_names_and_younger_fields_their_default():
    changes = {"learning_rate": 0.05, "stream": "other", "network": "wrn-10-1", "precision": "bfloat16", "window": 9}
    specs = [made_spec("gd+ext", seed) for seed in (0, 1)] + [made_spec(**{name: v}) for name, v in changes.items()]
    assert len(set(names(*specs))) == len(specs)
    old = {name: value for name, value in specs[0].flat().items() if name != "precision"}
    assert trial_names([old, made_spec(precision="bfloat16").flat()])[0] == "GD+ext, seed 0, precision float32"


def test_numbers_have_their_nouns():
    assert [counted(1, "trial"), counted(0, "trial"), counted(2, "class")] == ["1 trial", "0 trials", "2 classes"]
