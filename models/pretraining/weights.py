"""Pretrained weights as a file: safetensors with a JSON card beside it, and the checks made before they are used.

Sizes of the network and scales of its inputs are in the weights' file, under its SHA-256. The card says what the
network reads and answers (features and their units, targets, priors of the worlds) and what it was made from (showers
seen, CPU hours, settings, losses).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from showerstack.features.catalogue import CATALOGUE
from showerstack.models.base.inputs import TARGETS, InputTransform
from showerstack.models.base.saving import plain
from showerstack.models.networks.modes import OwnDraws
from showerstack.models.pretraining.arrays import N_ARRAY, SEEN
from showerstack.models.pretraining.network import Architecture, ShowerNetwork
from showerstack.models.pretraining.stream import COLUMNS, HADRONIC_MODELS, N_WORLD, PRIORS
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, hash_file, read_json, write_json
from showerstack.showers.array import KASCADE, DetectorArray, array_entry, array_of

CARD_FORMAT = 1
"""Raised when the meaning of a card changes."""
SHIPPED = "shipped"
"""Name of the weights that come with the package."""
WEIGHTS_FILE = "showers.safetensors"
"""Name of the weights in the folder of a pretraining."""
ANY = "any-array"
"""Name of those that know no single array; they come with the package too."""
SHIPPED_FILE = Path(__file__).parent / "weights" / WEIGHTS_FILE
SHIPPED_SHA256 = "e450a63fc7a3a9a0eab9666bceab47aefc5b3d44204a8b179843466979fdc378"
ANY_FILE = SHIPPED_FILE.with_name("any.safetensors")
ANY_SHA256 = "9031e1271e597c379f762e59beba069f6b8e98aa706734ec4852e7f8d9361d74"
"""In the code, so that it belongs to the identity of whatever is trained from these weights."""
RELEASED = {SHIPPED: (SHIPPED_FILE, SHIPPED_SHA256), ANY: (ANY_FILE, ANY_SHA256)}
"""Files and SHA-256 of the released weights."""
LIMITS = (
    "detectors and standard reconstruction are KASCADE's, the depth is 1023 g/cm2",
    "lg(E/eV) = 14 to 18; showers that fail the test's cuts were a sixth of what it saw",
    "worlds of this project's simulation only: KASCADE's lateral forms, fluctuations of a closed form of Sibyll-2.3d",
    "photons are the least certain part of that simulation",
    "without training in the world where it is used, its posteriors are off by what it was not told about that world",
)
"""What a card says of the limits of the weights."""
LIMITS_OF_MANY = (
    "arrays were drawn in the ranges above; lateral forms, reconstruction and offsets of sizes are KASCADE's",
    "lg(E/eV) = 14.2 to 18, from where a tenth of the showers trigger four stations or so",
    *LIMITS[2:],
)
"""The same of weights for any array."""


@dataclass(frozen=True)
class Pretrained:
    """Weights that were read and checked."""

    network: ShowerNetwork
    inputs: InputTransform
    card: dict[str, Any]
    array: DetectorArray | None
    """The only one whose showers they know; None: any within the ranges of :attr:`seen`."""
    seen: dict[str, Any] | None = None
    """Ranges of the arrays in pretraining, as :data:`showerstack.models.pretraining.arrays.SEEN`; None: the network is
    not told the array."""


def card_path(file: Path) -> Path:
    """Return where the card of a weights' file is."""
    return file.with_suffix(".json")


def feature_declaration() -> str:
    """Return a hash of the names and units of the columns that the network reads, in order.

    That their values are still those of pretraining, a test looks at.
    """
    rows = [(name, CATALOGUE[name].unit) for name in COLUMNS]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def weights_file(path: Path) -> Path:
    """Return the weights' file that a path means: the file itself, or the folder of a pretraining."""
    file = path / WEIGHTS_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file} does not exist: expected pretrained weights, what pretrain --out wrote")
    return file


def write_pretrained(
    file: Path,
    network: ShowerNetwork,
    inputs: InputTransform,
    making: dict[str, Any],
    array: DetectorArray | None = KASCADE,
) -> None:
    """Write the weights, ``.safetensors``, and beside them the card, ``.json``, which says what is in ``making``.

    The weights' file holds the array whose stations saw the showers, or the ranges of many arrays, under its hash.
    """
    if file.suffix != ".safetensors":
        raise InputError(f"{file}: the name of a weights' file ends in .safetensors")
    with atomic_path(file) as temporary:
        described = {"sizes": asdict(network.sizes), "inputs": plain(inputs.state()), **arrays_entry(array)}
        metadata = {"network": json.dumps(described)}
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, temporary, metadata)
    card = {
        "format": CARD_FORMAT,
        "sha256": hash_file(file),
        "features": feature_declaration(),
        "targets": [asdict(target) for target in TARGETS],
        "worlds": _worlds(),
        **_of_arrays(described, array),
        **making,
    }
    write_json(card_path(file), card)


def arrays_entry(array: DetectorArray | None) -> dict[str, Any]:
    """Return what a file says of its arrays: nothing for KASCADE, the ranges of what is drawn for many."""
    return {"arrays": {name: list(limits) for name, limits in SEEN.items()}} if array is None else array_entry(array)


def hash_of(name: str) -> str:
    """Return the SHA-256 of released weights, or of a file; of no weights an empty text."""
    return RELEASED[name][1] if name in RELEASED else hash_file(Path(name)) if name else ""


def next_seed(start: str) -> int:
    """Return the least seed whose showers the weights that a pretraining starts from do not know; 1 for no weights."""
    return 1 + max(seeds_of(read_pretrained(start, hash_of(start)).card), default=0) if start else 1


def seeds_of(card: dict[str, Any]) -> list[int]:
    """Return the seeds of all showers that weights know; cards without a list are of a single pretraining."""
    settings = card.get("settings", {})
    return list(card.get("seeds", [settings["seed"]] if "seed" in settings else []))


def _of_arrays(described: dict[str, Any], array: DetectorArray | None) -> dict[str, Any]:
    """Return what a card says of the arrays that saw the showers, and of limits."""
    if array is None:
        return {"arrays": described["arrays"], "limits": list(LIMITS_OF_MANY)}
    known = {
        "name": array.name,
        "stations": array.n_stations,
        "muon_detectors": array.n_muon_detectors,
        "sha256": array.digest,
    }
    return {"array": known, "limits": [f"the array {array.title}; no other", *LIMITS]}


def read_pretrained(name: str = SHIPPED, sha256: str = "") -> Pretrained:
    """Read weights.

    Parameters
    ----------
    name
        A name in :data:`RELEASED`, or the path of a ``.safetensors`` file with its card beside it.
    sha256
        What the file must be; needed for a path, so that it belongs to the identity of what is trained from it.
    """
    file, wanted = RELEASED.get(name, (Path(name), sha256))
    if not wanted:
        its_hash = f", which is {hash_file(file)}" if file.is_file() else ""
        raise InputError(f"{file}: weights from a file need weights_sha256, the SHA-256 of that file{its_hash}")
    for part in (file, card_path(file)):
        if not part.is_file():
            raise InputError(f"{part} does not exist: expected pretrained weights and their card beside them")
    if hash_file(file) != wanted:
        raise InputError(f"{file} has SHA-256 {hash_file(file)}, expected {wanted}: damaged, or other weights")
    card = _checked_card(card_path(file), wanted)
    try:
        with safe_open(file, framework="pt") as content:
            described = json.loads((content.metadata() or {})["network"])
        inputs, seen = InputTransform.from_state(described["inputs"]), described.get("arrays")
        array = array_of(described) if seen is None else None
        sizes = Architecture(**described["sizes"] | {"n_world": N_WORLD + (0 if seen is None else N_ARRAY)})
        if inputs.n_inputs != sizes.n_inputs or inputs.columns != COLUMNS:
            raise ValueError("other inputs")
        with OwnDraws(0):
            network = ShowerNetwork(sizes)
        network.load_state_dict(_with_models(load_file(file)))
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{file} is of another architecture than this version's ({reason}): pretrain again") from None
    return Pretrained(network.eval(), inputs, card, array, seen)


def _with_models(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights with columns for :data:`HADRONIC_MODELS`: zeros where they have none."""
    world = state["body.world.weight"]
    if world.shape[1] == len(PRIORS) + 1:
        priors, known = world.split([len(PRIORS), 1], dim=1)
        world = torch.cat([priors, world.new_zeros(len(world), len(HADRONIC_MODELS)), known], dim=1)
    return {**state, "body.world.weight": world}


def _checked_card(file: Path, sha256: str) -> dict[str, Any]:
    card = read_json(file)
    if not isinstance(card, dict) or card.get("format") != CARD_FORMAT:
        raise InputError(f"{file} is no card of pretrained weights of format {CARD_FORMAT}")
    expected = {
        "sha256": sha256,
        "features": feature_declaration(),
        "targets": [asdict(target) for target in TARGETS],
        "worlds": _worlds(),
    }
    for key, value in expected.items():
        if card.get(key) != value and not (key == "worlds" and card.get(key) == value[: len(PRIORS)]):
            raise InputError(f"{file}: {key} are not those of this version: pretrain again, or use its own weights")
    return card


def _worlds() -> list[list[Any]]:
    priors = [[prior.name, prior.centre, prior.width, prior.factor] for prior in PRIORS]
    return [*priors, *(["model", name] for name in HADRONIC_MODELS)]
