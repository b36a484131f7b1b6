"""The device that written files are run on: the host's default one, unless the user wants none."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

from amp_transpiler.child_process.child import default_place_name, hardware_name
from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.runtime.places import CPUPlace

__all__ = ["CheckedDevice", "DeviceCheck", "checked_wish", "device_to_check"]

DeviceCheck: TypeAlias = Literal["auto", "yes", "no"]
"""Whether the written file is run on a device: where one answers, always, or never."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedDevice:
    """A device: its place, such as `CUDA:0`, and its name."""

    place: str
    name: str


def device_to_check(wish: DeviceCheck) -> CheckedDevice | None:
    """Return the device to run a written file on; None for none.

    Raises:
        EnvironmentProblem: there has to be one, and none answers.
    """
    place = str(CPUPlace()) if wish == "no" else default_place_name()
    if place != str(CPUPlace()):
        return CheckedDevice(place, hardware_name(place))
    if wish == "yes":
        raise EnvironmentProblem(
            "device_check is 'yes', but the host's default place is the CPU: `amp-transpile doctor` says why no device "
            "is used; leave the option out to have the result emulated"
        )
    return None


def checked_wish(wish: str, *, verify: bool) -> DeviceCheck:
    """Return a wish that can be carried out.

    Raises:
        OptionError: there is no such value, or nothing is verified.
        EnvironmentProblem: see `device_to_check`.
    """
    if wish not in get_args(DeviceCheck):
        raise OptionError(f"device_check is {wish!r}: expected 'auto', 'yes' or 'no'")
    known: DeviceCheck = wish  # type: ignore[assignment]  # it is one of the three
    if known == "yes":
        if not verify:
            raise OptionError("device_check='yes' runs the result, which verify=False forbids: drop one of the two")
        device_to_check(known)
    return known
