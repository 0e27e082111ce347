"""Every public call and every group of options refuses what is not as it declares: bad values made from its types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest

import showerstack
from showerstack import api
from showerstack.analysis.blinding import Blinding
from showerstack.analysis.datacheck.check import check_data
from showerstack.analysis.options import SearchOptions, SkyOptions, SpectraOptions, Widths
from showerstack.commands.simulation import SimulateOptions
from showerstack.runtime.errors import InputError
from showerstack.runtime.options import (
    REQUIRED,
    Limits,
    OptionGroup,
    as_arguments,
    checked,
    groups_in,
    made_of,
    options_of,
    refuse_wrong,
)
from showerstack.showers.archives.corsika import convert_corsika
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import COMPOSITION, Task
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.measured import simulate_measured
from showerstack.showers.simulation.raw import simulate_raw

CALLS = [getattr(api, name) for name in showerstack._API if inspect.isfunction(getattr(api, name))]
CALLS += [api.Fitted.explain, api.Fitted.draw]
CALLS += [simulate, simulate_raw, simulate_measured, check_data, convert_corsika]
GROUPS = [Blinding, Widths, SpectraOptions, SearchOptions, SkyOptions, ConvertOptions, SimulateOptions]


def kinds_of(kind: Any) -> list[Any]:
    """Return the types that a declared one is a choice of."""
    return [each for part in get_args(kind) for each in kinds_of(part)] if _is_choice(kind) else [kind]


def _is_choice(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def limits_of(kind: Any, metadata: Sequence[Any] = ()) -> list[Limits]:
    return [one for one in (*metadata, *getattr(kind, "__metadata__", ())) if isinstance(one, Limits)]


def bad_values(kind: Any, metadata: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield values that are not as declared: of no type of it, or just outside of its limits."""
    plain = [get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds_of(kind)]
    tops = [get_origin(one) or one for one in plain]
    if Any in tops:
        return
    yield object()
    if str not in tops and Literal not in tops:
        yield "surely nothing"
    if Literal in tops:
        yield "surely nothing"
    if int not in tops and float not in tops:
        yield 3
    if float in tops:
        yield from (math.nan, True)
    if int in tops and float not in tops:
        yield from (1.5, True)
    if NoneType not in tops:
        yield None
    if list in tops or tuple in tops:
        yield [object()]
    for limits in [each for one in kinds_of(kind) for each in limits_of(one)] + limits_of(None, metadata):
        for name, step in (("ge", -1), ("le", 1), ("gt", 0), ("lt", 0)):
            if (edge := getattr(limits, name)) is not None:
                yield edge + step


def good_value(kind: Any) -> Any:
    """Return a value that is as declared."""
    one = str if str in kinds_of(kind) else kinds_of(kind)[0]
    plain = get_args(one)[0] if get_origin(one) is Annotated else one
    top = get_origin(plain) or plain
    if top is Literal:
        return get_args(plain)[0]
    plain_values = {bool: False, int: 1, float: 1.0, str: "nowhere", Path: Path("nowhere"), Task: COMPOSITION}
    return (plain_values | {DetectorArray: KASCADE}).get(top, [Path("nowhere")])


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_a_call_refuses_what_its_arguments_are_not(call: Callable[..., Any]) -> None:
    names, tried = inspect.unwrap(call).__globals__, 0
    declared = {
        name: eval(one.annotation, names)
        for name, one in inspect.signature(call).parameters.items()
        if one.kind is not inspect.Parameter.VAR_KEYWORD and name != "self"
    }
    needed = {
        name: good_value(declared[name]) for name, one in inspect.signature(call).parameters.items()
        if one.default is inspect.Parameter.empty and name in declared
    }  # fmt: skip
    run = () if "self" not in inspect.signature(call).parameters else (None,)
    for name, kind in declared.items():
        for value in bad_values(kind):
            with pytest.raises(InputError, match=f"^{name} "):
                call(*run, **{**needed, name: value})
            tried += 1
    assert tried > 0


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_refuses_what_its_options_are_not(group: type[OptionGroup]) -> None:
    options = options_of(group)
    needed = {name: good_value(one.type) for name, one in options.items() if one.default is REQUIRED}
    made_of(group, needed)
    for name, one in options.items():
        for value in bad_values(one.type, one.metadata):
            with pytest.raises(InputError, match=rf"^{one.flag(name)} "):
                made_of(group, needed | {name: value})
            with pytest.raises(InputError, match=f"^{name} "), as_arguments(group):
                made_of(group, needed | {name: value})


def test_options_within_a_group_are_given_by_name_or_as_a_group() -> None:
    needed = {"run": Path("r"), "data": [Path("d")]}
    by_name = made_of(SpectraOptions, needed | {"lg_muon": 0.1, "open_share": np.float32(0.5)})
    assert (by_name.widths.lg_muon, by_name.blinding.open_share, by_name.seed) == (0.1, 0.5, 1)
    assert made_of(SpectraOptions, needed | {"widths": Widths(lg_muon=0.1)}).widths == by_name.widths
    with pytest.raises(InputError, match="there is no option zenith_max, did you mean zenith_max_deg"):
        made_of(SpectraOptions, needed | {"zenith_max": 3})
    assert groups_in(SpectraOptions).keys() == {"widths", "blinding"}


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, np.int32(3), None),
        (float, np.float32(0.5), None),
        (float, 2, None),
        (bool, np.True_, None),
        (list[float], np.array([0.5, 1.0]), None),
        (tuple[str, ...], ["a"], None),
        (Path | None, None, None),
        (Annotated[int, Limits(1)] | None, None, None),
        (list[Path], [Path("a"), 3], "x [PosixPath('a'), 3]: expected a list of paths"),
        (dict[str, int] | None, 3, "x 3: expected a dict or None"),
        (Callable[[int], int], 3, "x 3: expected a function"),
        (Annotated[int, Limits(1)] | None, 0, "x 0: give a number of at least 1"),
        (Annotated[int, Limits(1)] | str, "0", None),
        (Literal["a", "b"], np.str_("a"), None),
        (Literal["a", "b"], np.array(["a", "b"]), "x array(['a', 'b'], dtype='<U1'): expected 'a' or 'b'"),
    ],
)
def test_values_of_a_type(kind: Any, value: Any, words: str | None) -> None:
    if words is None:
        refuse_wrong("x", value, kind)
    else:
        with pytest.raises(InputError) as refused:
            refuse_wrong("x", value, kind)
        assert str(refused.value) == words


def test_a_checked_function_is_called_as_it_was() -> None:
    @checked
    def add(a: int, b: Annotated[float, Limits(0)] = 2.0, *, c: str | None = None, **more: Any) -> float:
        """Add."""
        return a + b + len(more)

    assert (add(1), add(1, b=3), add(a=1, c="x", d=object())) == (3.0, 4, 4.0)
    assert add.__doc__ == "Add."
    with pytest.raises(InputError, match=r"^b -1: give a number of at least 0"):
        add(1, -1)
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required"):
        add()
