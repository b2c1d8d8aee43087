"""The one switch that changes results: bfloat16 autocast while the networks learn."""

import pytest
import torch

from gd_ray.errors import UserError
from gd_ray.trial import run_trial
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


def run(precision, tiny_data, tiny_stream, method="gd+ext"):
    weights = []
    spec = tiny_spec(method=method, num_classes=4, precision=precision)
    result = run_trial(spec, tiny_data, tiny_stream, on_stage=lambda _, checkpoint: weights.append(checkpoint.weights))
    return result, weights[-1]


def test_bfloat16_changes_losses_by_little_and_repeats(tiny_data, tiny_stream):
    exact, exact_weights = run("float32", tiny_data, tiny_stream)
    result, weights = run("bfloat16", tiny_data, tiny_stream)
    _, again = run("bfloat16", tiny_data, tiny_stream)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["backbone.stem.weight"], exact_weights["backbone.stem.weight"])
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}
    first, exact_first = result.stages[0].losses, exact.stages[0].losses
    for name, value in exact_first.items():
        assert first[name] == pytest.approx(value, rel=0.05)  # bfloat16 has three digits; a few updates add up
        assert first[name] != value


def test_the_shared_part_is_in_bfloat16_and_heads_and_losses_are_not(tiny_data, tiny_stream, monkeypatch):
    convolved, heads = set(), set()
    conv2d, linear = torch.nn.functional.conv2d, torch.nn.functional.linear

    def watched(function, seen):
        def call(*arguments, **named):
            result = function(*arguments, **named)
            seen.add((result.dtype, torch.is_inference_mode_enabled()))
            return result

        return call

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched(conv2d, convolved))
    monkeypatch.setattr(torch.nn.functional, "linear", watched(linear, heads))
    run("bfloat16", tiny_data, tiny_stream, method="gd")
    assert convolved == {(torch.bfloat16, False), (torch.float32, True)}  # the latter where models are tested
    assert heads == {(torch.float32, False), (torch.float32, True)}


def test_ids_tell_precisions_apart_and_the_default_is_the_old_one():
    assert tiny_spec().trial_id == tiny_spec(precision="float32").trial_id != tiny_spec(precision="bfloat16").trial_id
    with pytest.raises(UserError, match="precision 'bfloat' does not exist; did you mean 'bfloat16'?"):
        tiny_spec(precision="bfloat")
