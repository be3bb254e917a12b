"""Dumps of PyTorch's flight recorder, made up in the form that its source documents."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AT = 1_700_000_000.0  # when the last complete collective was entered


def entry(number: int, state: str, what: str = "all_reduce", **values: Any) -> dict[str, Any]:
    known = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{what}",
        "time_created_ns": int((AT + number - 56) * 1e9),
        "input_sizes": [[1024, 16]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 16]],
        "state": state,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 12}],
    }
    return {**known, **values}


def document(entries: Sequence[dict[str, Any]], ranks: int = 4) -> dict[str, Any]:
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}


def entries(last: int, complete: int, what: str = "all_reduce") -> list[dict[str, Any]]:
    done = [entry(number, "completed") for number in range(complete - 3, complete + 1)]
    return [*done, *(entry(number, "started", what) for number in range(complete + 1, last + 1))]


def pickled(dump: Any) -> bytes:
    return pickle.dumps(dump, 2)


def as_json(dump: Any) -> bytes:
    return json.dumps(dump).encode()


def leave(directory: Path, rank: int, last: int, ranks: int = 4) -> Path:
    """The dump of a rank that entered `last`, where 56 is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickled(document(entries(last, 56), ranks)))
    return path
