import dataclasses

from gd_ray.methods import METHODS, Method
from gd_ray.spec import TrialSpec


def test_the_defaults_are_the_papers():
    spec = TrialSpec()
    assert (spec.dataset, spec.num_classes, spec.task_size, spec.coreset_size) == ("cifar100", 100, 10, 2000)
    assert (spec.window, spec.ood_ratio, spec.batch_size) == (1_000_000, 0.7, 128)
    assert (spec.network, spec.dropout) == ("wrn-16-2", 0.3)
    assert (spec.learning_rate, spec.momentum, spec.weight_decay, spec.epoch_factor) == (0.1, 0.9, 0.0005, 1)
    assert (spec.temperature, spec.ensemble_temperature, spec.convention) == (2, 1, "paper")
    assert spec.method is METHODS["gd+ext"]


def test_the_id_names_the_spec_and_nothing_else():
    assert TrialSpec().trial_id == TrialSpec(method="gd+ext", epoch_factor=1).trial_id
    assert TrialSpec().trial_id == "d0a62b07b610a3c1"
    changed = {
        "seed": 1,
        "task_size": 5,
        "dataset": "glyphs",
        "ood_ratio": 0.5,
        "window": 10,
        "stream": "other",
        "convention": "released",
        "method": "gd",
    }
    ids = {TrialSpec(**{field: value}).trial_id for field, value in changed.items()}
    assert len(ids | {TrialSpec().trial_id}) == len(changed) + 1


def test_what_cannot_matter_is_not_in_the_id():
    for change in ({"ood_ratio": 0.5}, {"window": 10}, {"stream": "other"}):
        assert TrialSpec(method="gd", **change).trial_id == TrialSpec(method="gd").trial_id
    renamed = dataclasses.replace(METHODS["gd"], title="Another title")
    assert TrialSpec(method=renamed).trial_id == TrialSpec(method="gd").trial_id


def test_first_models_are_shared_where_the_first_stage_is_the_same():
    def first(**changes):
        return TrialSpec(**changes).first_model_id

    assert first(method="gd") == first(method="baseline") == first(method="gd", convention="released")
    assert first(method="gd+ext") == first(method="lwf+ext") == first(method="gd+ext", ood_ratio=0.1)
    assert first(method="gd") != first(method="gd+ext")
    assert first(method="gd+ext") != first(method="gd+ext", stream="other")
    others = {"seed": 1, "task_size": 5, "dataset": "glyphs", "num_classes": 50, "train_per_class": 9}
    others |= {"network": "wrn-10-1", "dropout": 0.0, "batch_size": 64, "epoch_factor": 0.5, "learning_rate": 0.05}
    others |= {"momentum": 0.8, "weight_decay": 0.0, "precision": "bfloat16"}
    ids = {first(method="gd", **{name: value}) for name, value in others.items()}
    assert len(ids | {first(method="gd")}) == len(others) + 1


def test_longer_fine_tuning_matters_to_methods_that_fine_tune_and_not_to_first_models():
    longer = {method: TrialSpec(method=method, fine_tune_factor=4) for method in ("lwf", "e2e")}
    assert longer["lwf"].trial_id == TrialSpec(method="lwf").trial_id
    assert [longer[method].flat()["fine_tune_factor"] for method in ("lwf", "e2e")] == [1, 4]
    assert longer["e2e"].trial_id != TrialSpec(method="e2e").trial_id
    assert longer["e2e"].first_model_id == TrialSpec(method="e2e").first_model_id
    halved = TrialSpec(method="e2e", epoch_factor=0.5, fine_tune_factor=4)
    trainings = ("whole", "before fine-tuning", "fine-tuning")
    assert [halved.schedule(training, 1280).updates for training in trainings] == [1000, 900, 400]


def test_a_method_of_ones_own():
    mine = Method(name="mine", title="Mine", previous="global")
    spec = TrialSpec(method=mine)
    assert spec.method is mine
    assert spec.trial_id != TrialSpec(method="lwf").trial_id


def test_flat_has_a_column_for_every_field():
    row = TrialSpec().flat()
    assert row["method"] == "gd+ext"
    assert row["method_previous"] == "global"
    assert all(isinstance(value, str | int | float | bool | None) for value in row.values())


def grown(kind, **defaults):
    """The dataclass with fields that a later version may add."""
    fields = [(name, type(value), dataclasses.field(default=value)) for name, value in defaults.items()]
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True, kw_only=True)


def test_a_field_with_a_default_that_is_added_later_changes_no_id():
    later_method, later_spec = grown(Method, herding=False, rounds=3), grown(TrialSpec, warm_up=0)
    for method in METHODS.values():
        values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
        before = TrialSpec(method=method, seed=3, task_size=20)
        later = later_spec(method=later_method(**values), seed=3, task_size=20)
        assert (later.trial_id, later.first_model_id) == (before.trial_id, before.first_model_id)
        assert later_spec(method=later_method(**values, rounds=4), seed=3, task_size=20).trial_id != before.trial_id
        changed = later_spec(method=method, seed=3, task_size=20, warm_up=50)
        assert changed.trial_id != before.trial_id


def test_a_first_task_of_its_own_size():
    spec = TrialSpec(first_task_size=50)
    assert (spec.task_sizes, spec.num_tasks) == ((50, 10, 10, 10, 10, 10), 6)
    assert spec.trial_id != TrialSpec().trial_id
    assert TrialSpec(method="gd", first_task_size=50).first_model_id != TrialSpec(method="gd").first_model_id
    assert TrialSpec(first_task_size=10) == TrialSpec()  # the same tasks, so the same trial
    assert TrialSpec(num_classes=95, first_task_size=5).task_sizes == (5, *[10] * 9)


def test_every_field_of_the_spec_and_of_a_method_is_in_the_id_when_it_is_not_the_default():
    values = {"network": "resnet-32", "dropout": 0.1, "batch_size": 64, "precision": "bfloat16", "coreset_size": 1000}
    ids = {TrialSpec(**{name: value}).trial_id for name, value in values.items()}
    assert len(ids | {TrialSpec().trial_id}) == len(values) + 1
    gd = METHODS["gd"]
    changes = [{"learner": "distillation"}, {"options": {"a": 1}}, {"options": {"a": 2}}, {"confidence": False}]
    found = [TrialSpec(method=dataclasses.replace(gd, **change)).trial_id for change in changes]
    assert found[0] == TrialSpec(method="gd").trial_id
    assert len(set(found)) == 4
