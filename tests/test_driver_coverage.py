"""The tool that measures how much of what drivers can print the kernel table knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import driver_coverage

SOURCE = r"""
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#define TAG "tag: "

static int first_step(struct thing *it)
{
    /* pr_err("only said"); */
    mlx5_core_err(it->dev, "queue %d did not "
        "stop (%d)\n", it->queue, err);
    pr_warn(TAG "state %s of %pI4, 100%%\n", it->name, &it->address);
    netdev_info(it->netdev, "ready at 0x%08x\n", it->base);
    dev_dbg(it->dev, "a detail\n");
    return check_error(it, "no statement");
}

int second_step(void)
{
    printk(KERN_ERR "%s: odd\n", __func__);
}
"""
PRINTED = [
    (8, "error", "mlx5_core 0000:4f:00.0: first_step:123:(pid 4242): queue 3 did not stop (-5)"),
    (10, "warning", "mlx5_core: tag: state abc of 10.1.2.3, 100%"),
    (11, "info", "mlx5_core 0000:4f:00.0 ens1f0np0: ready at 0x1f"),
    (18, "error", "second_step: odd"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources with one file of a driver, and one of no driver."""
    source = tmp_path / "mellanox" / "mlx5" / "core" / "thing.c"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    (tmp_path / "other.c").write_text(SOURCE)
    return tmp_path


def test_statements_are_filled_in_as_the_driver_prints_them() -> None:
    driver = next(entry for entry in driver_coverage.DRIVERS if entry.name == "mlx5")
    printed = driver_coverage.statements(SOURCE, driver, "thing.c")
    assert [(entry.line, entry.level, entry.text) for entry in printed] == PRINTED


def test_what_the_table_knows_is_counted(tree: Path) -> None:
    (coverage,) = driver_coverage.measured([tree])
    counts = ["mlx5", "1", "1", "100.0%", "100.0%", "100.0%", "1", "0.0%", "1", "0.0%"]
    assert coverage.row().split() == counts
    assert [entry.line for entry in coverage.missed] == [10]
    assert [entry.line for entry in coverage.idle] == [18]


@pytest.mark.parametrize(
    ("text", "acts"),
    [
        ("QP 3 went to error state", True),
        ("invalid argument 3", False),
        ("register 3 = 0x1f", False),
        ("self-test failed", False),
        ("VF 3 did not answer", False),
        ("kzalloc failed", False),
        ("this mode is not supported", False),
        ("ctx is NULL", False),
        ("the hdmi encoder failed", False),
    ],
)
def test_errors_that_nobody_acts_on_go_by_rule(text: str, acts: bool) -> None:
    driver = next(entry for entry in driver_coverage.DRIVERS if entry.name == "mlx5")
    printed = driver_coverage.Printed("a.c", 1, "error", driver.device + text, driver.device)
    assert bool(driver_coverage.nobody_acts(printed, driver)) is not acts


def test_what_is_odd_in_a_file_system_is_damage() -> None:
    driver = next(entry for entry in driver_coverage.DRIVERS if entry.name == "xfs")
    printed = driver_coverage.Printed(
        "a.c", 1, "error", "XFS (dm-5): bad inode size", "XFS (dm-5): "
    )
    assert driver_coverage.nobody_acts(printed, driver) == ""


def test_misses_are_listed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["driver_coverage", str(tree), "--misses", "mlx5"])
    driver_coverage.main()
    assert capsys.readouterr().out.startswith("warning thing.c:10: mlx5_core: tag: state")
