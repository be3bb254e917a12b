"""Which GPUs of its node a process may use, by the variables that it was started with.

ROCR_VISIBLE_DEVICES chooses among the node's GPUs; HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES
count among those that are left, so that ordinal 0 of a process may be any GPU of the node. All of
them count in PCI order, as GPU indices do, and take the beginnings of UUIDs as well.

Source: ROCm documentation, GPU isolation techniques; CUDA documentation, environment variables
"""

from collections.abc import Mapping, Sequence

_HIP_OR_CUDA = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # with both, HIP takes its own


def visible_gpus(place: Mapping[str, str], uuids: Sequence[str]) -> list[int] | None:
    """GPU indices in the order of the process's ordinals; None where no variable tells.

    `uuids`: of the node's GPUs by index, "" where one is not known. `place`: variables by name.
    """
    told = list(filter(place.__contains__, ("ROCR_VISIBLE_DEVICES", *_HIP_OR_CUDA)))
    if "HIP_VISIBLE_DEVICES" in told and "CUDA_VISIBLE_DEVICES" in told:
        told.remove("CUDA_VISIBLE_DEVICES")
    gpus: list[int] | None = None
    for name in told:
        gpus = _chosen(place[name], list(range(len(uuids))) if gpus is None else gpus, uuids)
        if gpus is None:
            return None
    return gpus


def _chosen(value: str, among: Sequence[int], uuids: Sequence[str]) -> list[int] | None:
    """Those that a list of ordinals and UUIDs names; what comes after a wrong one is not visible.

    None for what is neither, such as an instance of a GPU that is partitioned.
    """
    gpus: list[int] = []
    for token in filter(None, map(str.strip, value.split(","))):
        if token.startswith("GPU-"):
            named = [gpu for gpu in among if uuids[gpu].lower().startswith(token.lower())]
            if len(named) != 1:
                return None
            gpus += named
        elif not token.lstrip("-").isdecimal():
            return None
        elif not 0 <= int(token) < len(among):
            break
        else:
            gpus.append(among[int(token)])
    return gpus
