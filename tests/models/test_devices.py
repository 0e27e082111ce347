"""Which device each learner gets: every library is asked for itself."""

from __future__ import annotations

import pytest
import torch

from models import registry
from models.base.learner import Learner
from models.registry import LEARNERS, device_for, device_remarks, devices_for, learner_class, spec
from models.tables import lightgbm
from runtime.errors import InputError


class OnGpu(Learner):
    """A learner whose library has a GPU."""

    gpu_expected = True

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return None


class CpuBuild(OnGpu):
    """The same with a library built without CUDA."""

    @classmethod
    def gpu_obstacle(cls) -> str | None:
        return "this library is a CPU build"


class NeverOnGpu(CpuBuild):
    """A learner that nobody expects on a GPU."""

    gpu_expected = False


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "gpu_answers", lambda: True)


@pytest.mark.usefixtures("with_driver")
def test_a_library_without_a_gpu_leaves_the_gpu_to_the_others() -> None:
    assert [device_for(each, "auto") for each in (OnGpu, CpuBuild, NeverOnGpu)] == ["cuda", "cpu", "cpu"]
    assert [device_for(each, "cuda") for each in (OnGpu, NeverOnGpu)] == ["cuda", "cpu"]
    assert device_for(OnGpu, "cpu") == "cpu"
    with pytest.raises(InputError, match="'cuda' was asked for, but mine: this library is a CPU build"):
        device_for(CpuBuild, "cuda", "mine")


def test_without_a_driver_no_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "gpu_answers", lambda: False)
    monkeypatch.setattr(OnGpu, "gpu_obstacle", lambda: pytest.fail("asked"))
    assert device_for(OnGpu, "auto") == "cpu"
    with pytest.raises(InputError, match="no NVIDIA driver"):
        device_for(OnGpu, "cuda")


@pytest.mark.usefixtures("with_driver")
def test_every_registered_learner_says_whether_it_has_a_gpu() -> None:
    found = devices_for(LEARNERS.values(), "auto")
    assert list(found) == list(LEARNERS)
    for name, device in found.items():
        obstacle = learner_class(spec(name).learner).gpu_obstacle()
        assert (device == "cuda") == (obstacle is None), name
    if torch.version.cuda is None:
        assert found["mlp"] == "cpu"
        assert "CPU build" in str(learner_class(spec("mlp").learner).gpu_obstacle())


def test_who_stays_on_the_cpu_is_said() -> None:
    assert device_remarks({"a": "cuda", "b": "cpu"}) == ("train on the CPU, not on the GPU: b",)
    assert device_remarks({"a": "cpu", "b": "cpu"}) == device_remarks({"a": "cuda"}) == ()


def test_opencl_on_a_cpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(lightgbm, "OPENCL_VENDORS", tmp_path)
    assert not lightgbm.has_opencl_gpu()
    (tmp_path / "pocl.icd").write_text("/usr/lib/libpocl.so.2\n")
    assert not lightgbm.has_opencl_gpu()
    (tmp_path / "vendor.icd").write_text("libnvidia-opencl.so.1\n")
    assert lightgbm.has_opencl_gpu()
