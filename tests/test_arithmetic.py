"""The spec decides the arithmetic, from any state that a process or its environment had before."""

import os
import subprocess
import sys

import pytest
import torch

from gd_ray.arithmetic import set_arithmetic, training_arithmetic
from gd_ray.checks import check_device
from gd_ray.errors import UserError
from gd_ray.hardware import check_gpu, cpu_model, describe, tf32_note
from tests.helpers.tiny import tiny_spec

IEEE = {
    "convolution": "ieee",
    "rnn": "ieee",
    "cudnn": "ieee",
    "cudnn allows tf32": False,
    "matmul": "ieee",
    "matmul allows tf32": False,
    "CPU convolution": "ieee",
    "CPU matmul": "ieee",
}
TF32 = {**IEEE, "convolution": "tf32", "rnn": "tf32", "cudnn": "tf32", "cudnn allows tf32": True}
B = torch.backends
PRIOR = [
    lambda: None,
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: setattr(B.cuda.matmul, "allow_tf32", True),
    lambda: setattr(B.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(B.cudnn, "allow_tf32", False),
    lambda: setattr(B.cudnn.conv, "fp32_precision", "ieee"),
    lambda: setattr(B.cudnn.rnn, "fp32_precision", "tf32"),
    lambda: setattr(B, "fp32_precision", "tf32"),
    lambda: setattr(B.mkldnn.matmul, "fp32_precision", "bf16"),
]


def float32_state():
    """Every switch that decides the arithmetic of float32."""
    return {
        "convolution": B.cudnn.conv.fp32_precision,
        "rnn": B.cudnn.rnn.fp32_precision,
        "cudnn": B.cudnn.fp32_precision,
        "cudnn allows tf32": B.cudnn.allow_tf32,
        "matmul": B.cuda.matmul.fp32_precision,
        "matmul allows tf32": B.cuda.matmul.allow_tf32,
        "CPU convolution": B.mkldnn.conv.fp32_precision,
        "CPU matmul": B.mkldnn.matmul.fp32_precision,
    }


def check_every_prior_state():
    for first in PRIOR:
        for second in PRIOR:
            first(), second()
            set_arithmetic("cpu")
            assert float32_state() == IEEE
            first(), second()
            with training_arithmetic("tf32", "cpu"):
                assert float32_state() == TF32
            assert float32_state() == IEEE
            with B.cudnn.flags(enabled=True, allow_tf32=None, fp32_precision=None):
                pass  # raises where switches disagree


def test_every_prior_state_ends_in_the_arithmetic_of_the_spec():
    check_every_prior_state()


def test_the_variable_of_containers_changes_nothing():
    environment = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    command = "from tests.test_arithmetic import check_every_prior_state as c; c()"
    subprocess.run([sys.executable, "-c", command], env=environment, check=True)


def test_a_gpu_gets_deterministic_algorithms(monkeypatch):
    called = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", called.append)
    monkeypatch.setattr(B.cudnn, "deterministic", False)
    set_arithmetic("cpu")
    set_arithmetic("cuda")
    assert B.cudnn.deterministic
    monkeypatch.setenv("GD_RAY_DETERMINISTIC", "0")
    set_arithmetic("cuda")
    assert called == [True, False]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_ids_of_three_precisions_differ():
    assert len({tiny_spec(precision=precision).trial_id for precision in ("float32", "tf32", "bfloat16")}) == 3


def test_tf32_is_refused_where_it_does_not_exist(monkeypatch):
    spec = tiny_spec(precision="tf32")
    with pytest.raises(UserError, match="tf32 needs a GPU from Ampere on, not a CPU"):
        check_device(spec, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75"])
    with pytest.raises(UserError, match="Tesla T4 does not support tf32: use precision=float32"):
        check_device(spec, "cuda")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(UserError, match="NVIDIA_TF32_OVERRIDE=1 overrides"):
        check_device(tiny_spec(), "cuda")


def test_processors_of_one_name_differ_by_their_family(tmp_path):
    two = "processor : 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n" * 2
    for text, expected in ((two, "AMD EPYC (family 26 model 2)"), ("model name : Cortex \n", "Cortex")):
        (tmp_path / "cpuinfo").write_text(text)
        assert cpu_model(str(tmp_path / "cpuinfo")) == expected
    assert cpu_model(str(tmp_path / "none"))


def test_a_cpu_is_described():
    found = describe("cpu", "bfloat16")
    assert found["cpu_model"]
    assert found["gpu"] is None
    assert found["arithmetic"] == "bfloat16 autocast"


@pytest.mark.parametrize(
    ("kind", "built", "runs"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"], False),  # a V100
        ((7, 5), ["sm_75", "sm_80"], True),
        ((8, 9), ["sm_75", "sm_80", "sm_86"], True),  # binaries run within their major version
        ((12, 1), ["sm_90", "sm_120"], True),
        ((11, 0), ["sm_90", "sm_100"], False),
        ((11, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
    ],
)
def test_a_gpu_without_kernels_is_refused(kind, built, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: kind)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    if runs:
        check_gpu("cuda")
        with pytest.raises(UserError, match="'cuda:1' does not exist: this machine has 1 GPUs"):
            check_gpu("cuda:1")
        return
    with pytest.raises(UserError, match=f"Tesla V100 of .* is an sm_{kind[0]}{kind[1]}, for which torch .* no kernels"):
        check_device(tiny_spec(), "cuda")


def test_tf32_is_recommended_once_where_it_exists(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    assert tf32_note("float32", "cpu") is None
    assert tf32_note("tf32", "cuda") is None
    assert tf32_note("float32", "cuda").startswith("NVIDIA A100 computes precision=float32 in IEEE arithmetic")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert tf32_note("float32", "cuda") is None
