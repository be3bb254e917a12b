from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.ras import RasCount, counter_files, parse_counts, ras, ras_directories

# Real kernel files whose reading fails for everybody, root included: a write-only setting (EACCES)
# and unmapped memory (EIO).
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"

DRIVER = "/sys/bus/pci/drivers/amdgpu"


def add_gpu(root: Path, address: str, files: dict[str, str]) -> str:
    """A GPU with these files in its `ras` directory; returns that directory on the node."""
    directory = root / f"sys/bus/pci/drivers/amdgpu/{address}/ras"
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return f"{DRIVER}/{address}/ras"


class CountingHost(Host):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def read_bytes(self, path: str, limit: int = 4096) -> bytes:
        self.opened.append(path)
        return super().read_bytes(path, limit)


def test_ok_one_record_per_block_in_order(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0000:05:00.0", {"aca_umc": "ue: 0\nce: 0\nde: 0\n"})
    source = add_gpu(
        tmp_path,
        "0001:05:00.0",
        {
            "aca_umc": "ue: 1\nce: 12\nde: 3\n",
            "umc_err_count": "ue: 77\nce: 77\n",
            "xgmi_wafl_err_count": "ue: 0\nce: 2\n",
            "aca_gfx": "ce: 4\nue: 5\n",
            "mmhub_err_count": "ue: 0\nce: 0\n",
            "aca_sdma": "ue: 0\nce: 0\n",
            "pcie_bif_err_count": "ue: 0\nce: 9\n",
            "aca_hdp": "ue: 0\nce: 0\n",
            "features": "feature mask: 0x3\n",
            "gpu_vram_bad_pages": "0x0000001a : 0x00001000 : R\n",
        },
    )
    host = CountingHost(str(tmp_path))
    records = [x for x in ras(host, source) if isinstance(x, RasCount)]
    assert [x.block for x in records] == ["umc", "xgmi", "gfx", "mmhub", "sdma", "hdp", "pcie_bif"]
    assert {(x.gpu, x.address) for x in records} == {(1, "0001:05:00.0")}
    assert records[0] == RasCount(
        gpu=1,
        address="0001:05:00.0",
        block="umc",
        file=f"{source}/aca_umc",
        ue=1,
        ce=12,
        deferred=3,
    )
    assert (records[1].file, records[1].ce) == (f"{source}/xgmi_wafl_err_count", 2)
    assert (records[2].ue, records[2].ce, records[2].deferred) == (5, 4, None)
    # Some drivers clear or log on every read: each counter once, nothing else at all.
    assert host.opened == [x.file for x in records]


def test_ok_one_source_per_gpu_that_has_counters(tmp_path: Path) -> None:
    second = add_gpu(tmp_path, "0000:15:00.0", {})
    first = add_gpu(tmp_path, "0000:05:00.0", {})
    (tmp_path / "sys/bus/pci/drivers/amdgpu/0000:00:01.0").mkdir()
    assert ras_directories(Host(str(tmp_path))) == [first, second]


def test_ok_file_with_one_of_the_two_counts(tmp_path: Path) -> None:
    source = add_gpu(tmp_path, "0000:05:00.0", {"aca_umc": "ue: 2\npoison: 5\n"})
    (record,) = ras(Host(str(tmp_path)), source)
    assert isinstance(record, RasCount)
    assert (record.ue, record.ce, record.deferred) == (2, None, None)


def test_no_data_without_gpus_or_counters(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    with pytest.raises(NoData):
        ras_directories(host)
    source = add_gpu(tmp_path, "0000:05:00.0", {"features": "feature mask: 0x0\n"})
    with pytest.raises(NoData):
        list(ras(host, source))
    with pytest.raises(NoData):
        list(ras(host, f"{DRIVER}/0000:99:00.0/ras"))


def test_denied_file_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    source = add_gpu(tmp_path, "0000:05:00.0", {"aca_gfx": "ue: 0\nce: 0\n"})
    (tmp_path / source[1:] / "aca_umc").symlink_to(EACCES_FILE)
    (tmp_path / source[1:] / "aca_sdma").symlink_to(EIO_FILE)
    umc, gfx, sdma = ras(Host(str(tmp_path)), source)
    assert isinstance(umc, Unread)
    assert (umc.source, umc.status) == (f"{source}/aca_umc", Status.DENIED)
    assert isinstance(gfx, RasCount)
    assert isinstance(sdma, Unread)
    assert (sdma.source, sdma.status) == (f"{source}/aca_sdma", Status.ERROR)


def test_gpu_in_reset_is_unread_and_not_zero(tmp_path: Path) -> None:
    source = add_gpu(tmp_path, "0000:05:00.0", {"aca_umc": "Query currently inaccessible\n"})
    (unread,) = ras(Host(str(tmp_path)), source)
    assert isinstance(unread, Unread)
    assert unread.status is Status.ERROR
    assert unread.reason.startswith("GPU in reset or not ready")


@pytest.mark.parametrize("text", ["", "0\n", "de: 3\n", "ue: x\nce: 0\n", "ue: -1\n", "ue:\n"])
def test_malformed_file_is_unread(tmp_path: Path, text: str) -> None:
    source = add_gpu(tmp_path, "0000:05:00.0", {"aca_umc": text, "aca_gfx": "ue: 0\nce: 1\n"})
    unread, gfx = ras(Host(str(tmp_path)), source)
    assert isinstance(unread, Unread)
    assert unread.status is Status.ERROR
    assert isinstance(gfx, RasCount)
    with pytest.raises(ParseError):
        parse_counts(text)


COUNTS = st.dictionaries(
    st.sampled_from(["ue", "ce", "de"]), st.integers(0, 2**64 - 1), min_size=1
).filter(lambda counts: counts.keys() != {"de"})


@given(COUNTS, st.dictionaries(st.sampled_from(["poison", "sub ue", "x"]), st.text()), st.randoms())
def test_counts_survive_any_order_and_unknown_keys(
    counts: dict[str, int], unknown: dict[str, str], random: Random
) -> None:
    lines = [f"{key}: {value}" for key, value in counts.items()]
    lines += [f"{key}: {value}".replace("\n", " ") for key, value in unknown.items()]
    random.shuffle(lines)
    assert parse_counts("\n".join(lines)) == counts


@given(st.text())
def test_arbitrary_text_gives_counts_or_a_read_error(text: str) -> None:
    try:
        counts = parse_counts(text)
    except ReadError:
        return
    assert counts.keys() & {"ue", "ce"}
    assert min(counts.values()) >= 0


@given(st.lists(st.sampled_from(["aca_umc", "umc_err_count", "aca_df", "df_err_count", "schema"])))
def test_one_file_per_block_and_the_newer_scheme_wins(names: list[str]) -> None:
    files = counter_files(names)
    assert len({block for block, _ in files}) == len(files)
    for block, name in files:
        assert name == (f"aca_{block}" if f"aca_{block}" in names else f"{block}_err_count")
