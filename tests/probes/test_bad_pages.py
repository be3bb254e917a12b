from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import probes
from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.probes.bad_pages import BadPages, bad_page_files, bad_pages, count_flags
from tests.cluster import fake_node

# A real kernel file whose reading fails for everybody, root included: a write-only setting.
EACCES_FILE = "/proc/sys/vm/compact_memory"


def run(root: Path) -> list[BadPages]:
    host = Host(str(root))
    return [record for source in bad_page_files(host) for record in bad_pages(host, source)]


def test_ok_one_record_per_gpu(tmp_path: Path) -> None:
    gpus = fake_node.write_amdgpu(tmp_path / "sys", addresses=["0000:05:00.0", "0001:15:00.0"])
    fake_node.set_bad_pages(gpus[1], "RRPRF")
    well, sick = run(tmp_path)
    assert (well.gpu, well.retired, well.pending, well.failed) == (0, 0, 0, 0)
    assert sick == BadPages(
        gpu=1,
        address="0001:15:00.0",
        file="/sys/bus/pci/drivers/amdgpu/0001:15:00.0/ras/gpu_vram_bad_pages",
        retired=3,
        pending=1,
        failed=1,
    )


def test_it_runs_after_the_ras_counters() -> None:
    ours, ras = probes.load("bad_pages"), probes.load("ras")
    assert ours.stage > ras.stage >= probes.LAST
    assert ours.reader == ras.reader


def test_no_data_without_gpus_or_lists(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    with pytest.raises(NoData):
        bad_page_files(host)
    (gpu,) = fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    (source,) = bad_page_files(host)
    (gpu / "ras/gpu_vram_bad_pages").unlink()
    with pytest.raises(NoData):
        bad_page_files(host)
    with pytest.raises(NoData):
        list(bad_pages(host, source))
    with pytest.raises(NoData):
        list(bad_pages(host, source.replace("0000:05", "0000:99")))


def test_denied_list_is_not_an_empty_one(tmp_path: Path) -> None:
    (gpu,) = fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    (gpu / "ras/gpu_vram_bad_pages").unlink()
    (gpu / "ras/gpu_vram_bad_pages").symlink_to(EACCES_FILE)
    with pytest.raises(Denied):
        run(tmp_path)


@pytest.mark.parametrize(
    "line", ["0x1 : 0x1000", "0x1 : 0x1000 : X", "0x1 : 0x1000 : R : 2", "none : 0x1000 : R", "0"]
)
def test_malformed_list_is_an_error(tmp_path: Path, line: str) -> None:
    (gpu,) = fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    fake_node.set_bad_pages(gpu, "R")
    path = gpu / "ras/gpu_vram_bad_pages"
    text = path.read_text()
    path.chmod(0o644)
    path.write_text(f"{text}{line}\n")
    with pytest.raises(ParseError):
        run(tmp_path)


@given(st.lists(st.sampled_from("RPF")), st.integers(0, 2**40), st.integers(0, 3))
def test_every_page_counts_once(flags: list[str], first: int, blanks: int) -> None:
    lines = [f"0x{first + n:08x} : 0x00001000 : {flag}" for n, flag in enumerate(flags)]
    counts = count_flags("\n".join([*lines, *([""] * blanks)]))
    assert counts == {flag: flags.count(flag) for flag in "RPF"}


@given(st.text())
def test_any_text_gives_counts_or_a_parse_error(text: str) -> None:
    try:
        counts = count_flags(text)
    except ParseError:
        return
    assert sum(counts.values()) <= text.count("\n") + 1
