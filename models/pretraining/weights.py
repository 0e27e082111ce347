"""Pretrained weights as a file: safetensors with a JSON card beside it, and the checks made before they are used.

The card says what the network is and reads: sizes, inputs, features and their units, targets, priors of the worlds;
what it was made from: showers seen, CPU hours, settings, losses; and the SHA-256 of the weights.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from features.catalogue import CATALOGUE
from models.inputs import InputTransform
from models.pretraining.network import Architecture, ShowerNetwork
from models.pretraining.stream import COLUMNS
from models.pretraining.targets import TARGETS
from models.pretraining.worlds import PRIORS
from models.saving import plain
from showers.schema import InputError
from showers.storage.files import atomic_path, hash_file, read_json, write_json

FORMAT = 1
"""Raised when the meaning of a card changes."""
SHIPPED = "shipped"
"""Name of the weights that come with the package."""
SHIPPED_FILE = Path(__file__).parent / "weights" / "showers.safetensors"
SHIPPED_SHA256 = ""
"""In the code, so that it belongs to the identity of whatever is trained from these weights."""


@dataclass(frozen=True)
class Pretrained:
    """Weights that were read and checked."""

    network: ShowerNetwork
    inputs: InputTransform
    card: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Hash of the weights' file."""
        return str(self.card["sha256"])


def card_path(file: Path) -> Path:
    """Return where the card of a weights' file is."""
    return file.with_suffix(".json")


def feature_declaration() -> str:
    """Return a hash of the names and units of the columns that the network reads, in order.

    That their values are still those of pretraining, a test looks at.
    """
    rows = [(name, CATALOGUE[name].unit) for name in COLUMNS]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def write_pretrained(file: Path, network: ShowerNetwork, inputs: InputTransform, made: dict[str, Any]) -> None:
    """Write weights and card.

    Parameters
    ----------
    file
        Name ending in ``.safetensors``; the card gets ``.json``.
    network, inputs
        What was trained.
    made
        What the card says about its making.
    """
    if file.suffix != ".safetensors":
        raise InputError(f"{file}: the name of a weights' file ends in .safetensors")
    with atomic_path(file) as temporary:
        save_file({name: value.contiguous() for name, value in network.state_dict().items()}, temporary)
    card = {
        "format": FORMAT,
        "sha256": hash_file(file),
        "architecture": network.sizes.as_json(),
        "features": feature_declaration(),
        "targets": [asdict(target) for target in TARGETS],
        "worlds": _worlds(),
        "inputs": plain(inputs.state()),
        **made,
    }
    write_json(card_path(file), card)


def read_pretrained(name: str = SHIPPED, sha256: str = "") -> Pretrained:
    """Read weights.

    Parameters
    ----------
    name
        :data:`SHIPPED`, or the path of a ``.safetensors`` file with its card beside it.
    sha256
        What the file must be; needed for a path, so that it belongs to the identity of what is trained from it.

    Raises
    ------
    InputError
        If the file or its card is missing or damaged, has another hash, or is of another format, architecture, set of
        features, targets or worlds than this code.
    """
    file, wanted = (SHIPPED_FILE, SHIPPED_SHA256) if name == SHIPPED else (Path(name), sha256)
    if not wanted:
        found = f", which is {hash_file(file)}" if file.is_file() else ""
        raise InputError(f"{file}: weights from a file need weights_sha256, the SHA-256 of that file{found}")
    for part in (file, card_path(file)):
        if not part.is_file():
            raise InputError(f"{part} does not exist: expected pretrained weights and their card beside them")
    if hash_file(file) != wanted:
        raise InputError(f"{file} has SHA-256 {hash_file(file)}, expected {wanted}: damaged, or other weights")
    card = _checked_card(card_path(file), wanted)
    network = ShowerNetwork(Architecture(**card["architecture"]))
    try:
        network.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{file} does not fit the architecture in its card: {reason}") from None
    return Pretrained(network.eval(), InputTransform.from_state(card["inputs"]), card)


def _checked_card(file: Path, sha256: str) -> dict[str, Any]:
    card = read_json(file)
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise InputError(f"{file} is no card of pretrained weights of format {FORMAT}")
    expected = {
        "sha256": sha256,
        "features": feature_declaration(),
        "targets": [asdict(target) for target in TARGETS],
        "worlds": _worlds(),
    }
    for key, value in expected.items():
        if card.get(key) != value:
            raise InputError(f"{file}: {key} are not those of this version: pretrain again, or use its own weights")
    try:
        sizes = Architecture(**card["architecture"])
        fits = sizes.n_inputs == InputTransform.from_state(card["inputs"]).n_inputs
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(f"{file}: architecture is not one of this version: pretrain again, or use its own weights")
    return card


def _worlds() -> list[list[Any]]:
    return [[prior.name, prior.centre, prior.width, prior.factor] for prior in PRIORS]
