import pytest

from gd_ray.errors import UserError
from gd_ray.methods import METHODS
from gd_ray.paper import METHODS as PAPERS_METHODS
from trials.cost import spec_cost
from trials.experiments import EXPERIMENTS, experiment_named
from trials.grid import read_grid, select, unique, with_settings


def specs(name):
    return EXPERIMENTS[name].specs()


def test_the_sizes_of_the_papers_grids():
    sizes = {name: len({spec.trial_id for spec in experiment.specs()}) for name, experiment in EXPERIMENTS.items()}
    assert sizes["table1"] == 10 * 3 * (10 + 9)
    assert (sizes["table2"], sizes["table3"], sizes["table4"], sizes["table5"]) == (40, 50, 40, 50)
    assert sizes["ood-ratio"] == 11 * (10 + 9)
    assert sizes["validation"] == 11
    assert sizes["smoke"] == 10


def test_what_goes_beyond_the_paper_shares_its_settings():
    beyond, table1 = specs("beyond"), specs("table1")
    assert {spec.method.name for spec in beyond} == set(METHODS) - PAPERS_METHODS
    assert {(s.task_size, s.seed) for s in beyond} == {(k, seed) for k in (5, 10, 20) for seed in range(10)}
    assert {s.first_model_id for s in beyond if s.method.name == "wa"} <= {s.first_model_id for s in table1}
    assert {spec.task_sizes for spec in specs("b50")} == {(50, 10, 10, 10, 10, 10)}
    assert {spec.coreset_size for spec in specs("memory")} == {500, 1000, 2000, 4000, 8000}
    for name in ("beyond", "b50", "memory"):  # every learner takes them, from its cost on
        assert all(spec_cost(spec) for spec in specs(name) if spec.seed == 0)


def test_new_methods_do_not_join_an_experiment_that_was_run():
    beyond = [spec for spec in specs("reduced-more") if spec.method.name not in PAPERS_METHODS]
    assert {spec.method.learner for spec in beyond} == {"distillation", "wa", "bic", "icarl", "dmc"}
    assert len(specs("reduced-more")) == 96


def test_controls_are_trials_of_reduced():
    controls, reduced = specs("reduced-controls"), {spec.trial_id for spec in specs("reduced")}
    assert len(controls) == 9
    assert {spec.trial_id for spec in controls} < reduced


def test_trials_shared_between_experiments_are_the_same():
    table1 = {spec.trial_id for spec in specs("table1")}
    shared = {spec.trial_id for spec in specs("table5")} & table1
    assert len(shared) == 20  # gd and gd+ext, ten seeds
    ratios = {spec.trial_id for spec in specs("ood-ratio")}
    assert len(ratios & table1) == 19  # ratio 0.7 on both data sets


def test_imagenet_reports_seeds_1_to_9_and_validates_on_0():
    assert {spec.seed for spec in specs("table1") if spec.dataset == "imagenet32"} == set(range(1, 10))
    assert {spec.seed for spec in specs("validation")} == {0}


def test_the_papers_sizes_are_the_defaults_everywhere():
    for name in ("table1", "table2", "table3", "table4", "table5", "ood-ratio", "distance", "validation"):
        for spec in specs(name):
            assert (spec.network, spec.epoch_factor, spec.window) == ("wrn-16-2", 1.0, 1_000_000)


def test_settings_and_conditions():
    found = select(specs("table1"), ["dataset=cifar100", "seed=0,1", "method=gd,gd+ext", "task_size=10"])
    assert len(found) == 4
    swept = unique(with_settings(found, ["ood_ratio=0.5,0.6", "epoch_factor=0.1"]))
    assert len(swept) == 2 + 4  # the ratio does not matter to gd
    assert {spec.epoch_factor for spec in swept} == {0.1}


@pytest.mark.parametrize("ratio", ["0.5", "0.6"])
def test_conditions_do_not_depend_on_the_order_of_settings(ratio):
    swept = with_settings(specs("smoke"), ["ood_ratio=0.5,0.6"])
    assert len(unique(select(swept, [f"ood_ratio={ratio}"]))) == len(specs("smoke"))


def test_a_grid_from_yaml(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("method: [gd, gd+ext]\nseed: [0, 1, 2]\ntask_size: 20\nweight_decay: 5e-4\ntrain_per_class: none\n")
    name, found = read_grid(str(file))
    assert name == "mine"
    assert len(found) == 6
    assert {spec.task_size for spec in found} == {20}
    assert {(spec.weight_decay, spec.train_per_class) for spec in found} == {(0.0005, None)}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("ood=1", "grid key 'ood' does not exist; did you mean 'ood_ratio'"),
        ("ood_ratio", "has no value"),
        ("ood_ratio=2", "ood_ratio 2.0 is outside"),
        ("seed=x", "seed 'x' must be a whole number"),
        ("depth=10", "'depth' is now part of network; write network=wrn-DEPTH-WIDTH, such as network=wrn-10-1.$"),
        ("width=1", "'width' is now part of network"),
        ("plugin=0123", "give --plugin FILE, or 'plugin: FILE' in a grid file"),
        ("network=wrn-10", "wrn-10"),
    ],
)
def test_bad_settings(entry, says):
    with pytest.raises(UserError, match=says):
        with_settings(specs("smoke"), [entry])


def test_bad_grids(tmp_path):
    with pytest.raises(UserError, match="experiment 'tabel2' does not exist; did you mean 'table2'"):
        experiment_named("tabel2")
    with pytest.raises(UserError, match="--where seed=77 leaves no trial; here seed is 0.$"):
        select(specs("smoke"), ["method=gd,dr", "seed=77"])
    with pytest.raises(UserError, match="names 'seed' twice"):
        with_settings(specs("smoke"), ["seed=1", "seed=2"])
    with pytest.raises(UserError, match="cannot be read"):
        read_grid(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="is not YAML"):
        read_grid(str(tmp_path / "bad.yaml"))
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="has no keys"):
        read_grid(str(tmp_path / "list.yaml"))
    (tmp_path / "key.yaml").write_text("metod: gd")
    with pytest.raises(UserError, match="did you mean 'method'"):
        read_grid(str(tmp_path / "key.yaml"))
    (tmp_path / "empty.yaml").write_text("method: []\nseed: 1")
    with pytest.raises(UserError, match="has no value for 'method'; give one, or leave 'method' out"):
        read_grid(str(tmp_path / "empty.yaml"))
    (tmp_path / "twice.yaml").write_text("seed: 1\nseed: 2")
    with pytest.raises(UserError, match="names 'seed' twice; give all its values at once"):
        read_grid(str(tmp_path / "twice.yaml"))
    (tmp_path / "nested.yaml").write_text("seed: [[1, 2]]")
    with pytest.raises(UserError, match="seed .* must be a whole number"):
        read_grid(str(tmp_path / "nested.yaml"))
    (tmp_path / "latin.yaml").write_bytes("dataset: é".encode("latin1"))
    with pytest.raises(UserError, match="is not YAML"):
        read_grid(str(tmp_path / "latin.yaml"))


def test_a_plugin_of_a_grid_file_is_relative_to_it(tmp_path):
    plugin = (
        "from gd_ray.methods import Method, register_method\nregister_method(Method(name='of-a-grid', title='Mine'))\n"
    )
    (tmp_path / "mine.py").write_text(plugin)
    (tmp_path / "grid.yaml").write_text("plugin: mine.py\nmethod: [of-a-grid, gd]\n")
    name, (own, gd) = read_grid(str(tmp_path / "grid.yaml"))
    del METHODS["of-a-grid"]  # for the tests after this one
    assert (name, own.method.title, len(own.plugin), gd.plugin) == ("grid", "Mine", 16, "")
    (tmp_path / "grid.yaml").write_text("plugin: other.py\nmethod: of-a-grid\n")
    with pytest.raises(UserError, match="plugin .*other.py' cannot be read"):
        read_grid(str(tmp_path / "grid.yaml"))
