"""Where each learner trains: every library is asked for itself, since one may have a GPU build beside one without."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import cache

from models.base import Learner
from models.registry import learner_class
from models.spec import LearnerSpec
from showers.schema import InputError


def device_for(learner: type[Learner], asked: str, name: str = "") -> str:
    """Return ``"cpu"`` or ``"cuda"`` for one learner.

    Parameters
    ----------
    learner
        Its class.
    asked
        ``"auto"``: the GPU where one answers and the learner's library can use it. ``"cuda"``: the same, but a learner
        with :attr:`~models.base.Learner.gpu_expected` is refused where it cannot. ``"cpu"``.
    name
        What it is called in the error.

    Raises
    ------
    InputError
        If ``"cuda"`` was asked for and is not to be had; says why and what else can be done.
    """
    if asked == "cpu" or (asked == "auto" and not gpu_answers()):
        return "cpu"
    if not gpu_answers():
        raise InputError("device 'cuda' was asked for, but no NVIDIA driver and GPU answer; or use --device cpu")
    obstacle = learner.gpu_obstacle()
    if obstacle is None:
        return "cuda"
    if asked == "cuda" and learner.gpu_expected:
        raise InputError(
            f"device 'cuda' was asked for, but {name or learner.__name__}: {obstacle}; or use --device auto"
        )
    return "cpu"


def devices_for(specs: Iterable[LearnerSpec], asked: str) -> dict[str, str]:
    """Return the device of each learner by name; see :func:`device_for`."""
    return {spec.name: device_for(learner_class(spec.learner), asked, spec.name) for spec in specs}


def device_remarks(devices: Mapping[str, str]) -> tuple[str, ...]:
    """Return which learners stay on the CPU where others train on the GPU, in a line."""
    names = [name for name, device in devices.items() if device == "cpu"]
    return (f"train on the CPU, not on the GPU: {', '.join(names)}",) if names and "cuda" in devices.values() else ()


@cache
def gpu_answers() -> bool:
    """Return whether NVIDIA's driver is here and knows a device; no library is imported for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)) and count.value > 0
