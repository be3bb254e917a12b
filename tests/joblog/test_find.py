"""From what the user names to the files of one job, and never a silent guess."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.joblog.find import jobs_below, resolve, resolve_all, several_in
from tests.joblog.joblogs import write


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """One ordinary job, 4711-llama, and a shared checkpoint directory."""
    write(tmp_path / "4711-llama.log", "x\n")
    (tmp_path / "4711-llama").mkdir()
    (tmp_path / "4711-llama" / "log").symlink_to("../4711-llama.log")
    write(tmp_path / "shared-ckpt" / "80" / "data", "x")
    return tmp_path


def test_directory_log_link_and_id_name_the_same_job(outputs: Path) -> None:
    log, folder = str(outputs / "4711-llama.log"), str(outputs / "4711-llama")
    for asked in (folder, log, f"{folder}/log", "4711", f"{folder}/"):
        found = resolve(asked, str(outputs))
        assert (found.logs, found.job_dir) == ((log,), folder), asked
        assert (found.job_id, found.name) == ("4711", "llama")
        assert found.notes == ()


@pytest.mark.parametrize(
    "name",
    ["k8s-20260310-080957-475e-llama", "local_20260310_080957-llama", "k8s_20260310_0809-llama"],
)
def test_ids_of_other_launchers(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.log", "x\n")
    write(tmp_path / name / "rank-0.log", "x\n")
    for rank in (10, 2, 1):
        write(tmp_path / name / f"rank-{rank}.log", "x\n")
    found = resolve(name.removesuffix("-llama"), str(tmp_path))
    assert found.logs == (str(tmp_path / f"{name}.log"),)
    assert [Path(p).name for p in found.rank_logs] == ["rank-1.log", "rank-2.log", "rank-10.log"]
    assert found.kubernetes


def test_an_old_log_ends_with_out(tmp_path: Path) -> None:
    write(tmp_path / "12-a.out", "x\n")
    assert resolve("12", str(tmp_path)).logs == (str(tmp_path / "12-a.out"),)


def test_two_jobs_of_one_id_are_not_chosen_from(outputs: Path) -> None:
    write(outputs / "4711-qwen.log", "x\n")
    with pytest.raises(CannotRun, match=r"several jobs: .*4711-llama.*4711-qwen\.log"):
        resolve("4711", str(outputs))


def test_a_broken_link_falls_back_to_the_log_named_alike_and_says_so(outputs: Path) -> None:
    link = outputs / "4711-llama" / "log"
    (outputs / "4711-llama.log").rename(outputs / "4711-llama-TGS_2310.log")
    found = resolve(str(link.parent))
    assert found.logs == (str(outputs / "4711-llama-TGS_2310.log"),)
    assert "is broken: it names ../4711-llama.log" in found.notes[0]
    (outputs / "4711-llama-TGS_2310.log").unlink()
    with pytest.raises(CannotRun, match="no job log"):
        resolve(str(link.parent))
    with pytest.raises(CannotRun, match="broken link"):
        resolve(str(link))


def test_an_absolute_link_is_read_and_told(outputs: Path) -> None:
    link = outputs / "4711-llama" / "log"
    link.unlink()
    link.symlink_to(write(outputs / "elsewhere.log", "y\n"))
    found = resolve(str(link.parent))
    assert found.logs == (str(outputs / "elsewhere.log"),)
    assert "absolute" in found.notes[0] and "another file than" in found.notes[1]


def test_a_link_that_a_checkout_made_a_file_is_followed(outputs: Path) -> None:
    link = outputs / "4711-llama" / "log"
    link.unlink()
    write(link, "../4711-llama.log")
    found = resolve(str(link.parent))
    assert found.logs == (str(outputs / "4711-llama.log"),)
    assert "holds a path" in found.notes[0]


def test_log_and_renamed_log_are_ambiguous_without_a_link(outputs: Path) -> None:
    (outputs / "4711-llama" / "log").unlink()
    write(outputs / "4711-llama-TGS_2310.log", "x\n")
    with pytest.raises(CannotRun, match="several logs could be meant"):
        resolve(str(outputs / "4711-llama"))


def test_an_empty_job_directory_is_a_job_that_wrote_nothing(tmp_path: Path) -> None:
    (tmp_path / "99-llama").mkdir()
    found = resolve("99", str(tmp_path))
    assert found.empty_dir and found.logs == () and found.job_id == "99"


def test_an_empty_directory_with_another_name_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    with pytest.raises(CannotRun, match="is empty, and not named like"):
        resolve(str(tmp_path / "scratch"))


def test_a_broken_link_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "99-llama").mkdir()
    (tmp_path / "99-llama" / "log").symlink_to("../99-llama.log")
    with pytest.raises(CannotRun, match="log is broken: it names"):
        resolve(str(tmp_path / "99-llama"))


def test_a_checkpoint_directory_is_no_job(outputs: Path) -> None:
    with pytest.raises(CannotRun, match="shared checkpoint directory"):
        resolve(str(outputs / "shared-ckpt"))
    (outputs / "98-gone").mkdir()
    write(outputs / "97-only.log", "x\n")
    write(outputs / "97-only.log.1", "x\n")
    write(outputs / "notes.log", "x\n")
    jobs, others = jobs_below(str(outputs))
    assert [Path(job).name for job in jobs] == ["97-only.log", "98-gone", "4711-llama"]
    assert [Path(other).name for other in others] == ["shared-ckpt"]


def test_rotated_pieces_come_oldest_first(tmp_path: Path) -> None:
    for name in ("5-a.log", "5-a.log.1", "5-a.log.2.gz", "5-a.log.10.zst", "5-ab.log.1"):
        write(tmp_path / name, "x\n")
    names = [Path(p).name for p in resolve("5", str(tmp_path)).logs]
    assert names == ["5-a.log.10.zst", "5-a.log.2.gz", "5-a.log.1", "5-a.log"]


def test_attempts_of_a_requeued_job_are_ordered_by_time(tmp_path: Path) -> None:
    first = write(tmp_path / "llama_1778_date_26-03-09_time_23-59-59.log", "x\n")
    second = write(tmp_path / "llama_1778_date_26-03-10_time_00-10-00.log", "x\n")
    found = resolve("1778", str(tmp_path))
    assert found.logs == (str(second),) and found.attempts == ((str(first),),)
    assert (found.job_id, found.name) == ("1778", "llama")
    for asked in ("1778(0)", "1778_0"):
        assert resolve(asked, str(tmp_path)).logs == (str(first),)
    with pytest.raises(CannotRun, match="only 2 attempts"):
        resolve("1778(2)", str(tmp_path))


def test_worker_logs_in_both_layouts(outputs: Path) -> None:
    ray = outputs / "4711-llama" / "ray_logs"
    write(ray / "mi10" / "worker-aa-01-7.out", "x\n")
    write(ray / "mi9" / "session_2026" / "logs" / "worker-bb-01-8.err", "x\n")
    write(ray / "mi9" / "raylet.out", "x\n")
    found = resolve("4711", str(outputs))
    assert found.ray_log_hosts == ("mi9", "mi10")
    assert [Path(p).name for p in found.worker_logs] == ["worker-bb-01-8.err", "worker-aa-01-7.out"]


def test_the_newest_of_several_stamped_logs_without_the_setup_logs(tmp_path: Path) -> None:
    for name in (
        "kimi_3node_train_20260219_020357",
        "kimi_3node_train_20260220_020357",
        "kimi_3node_ray_head_20260221_020357",
    ):
        write(tmp_path / "running_logs" / f"{name}.log", "x\n")
    found = resolve(str(tmp_path / "running_logs"))
    assert Path(found.logs[0]).name == "kimi_3node_train_20260220_020357.log"
    assert "newest of 2" in found.notes[0]


@pytest.mark.parametrize("asked", ["nothing", "12345", "a/b/c", "", "12\0", "x" * 5000])
def test_what_does_not_exist_is_one_clear_line(tmp_path: Path, asked: str) -> None:
    with pytest.raises(CannotRun) as error:
        resolve(asked, str(tmp_path))
    assert str(error.value) and "\n" not in str(error.value)


def test_links_that_go_round_are_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "7-a").mkdir()
    (tmp_path / "7-a" / "log").symlink_to("log")
    os.symlink("b.log", tmp_path / "a.log")
    os.symlink("a.log", tmp_path / "b.log")
    for asked in ("7", str(tmp_path / "a.log")):
        with pytest.raises(CannotRun):
            resolve(asked, str(tmp_path))


def test_the_directory_around_one_job_names_that_job(tmp_path: Path) -> None:
    log = str(write(tmp_path / "4711-llama.log", "x\n"))
    folder = tmp_path / "4711-llama"
    write(folder / "log", "../4711-llama.log")
    write(folder / "prometheus" / "wal" / "00000000", "x")
    for asked in (tmp_path, folder / "log", Path(log), folder):
        found = resolve(str(asked))
        assert (found.logs, found.job_dir, found.job_id) == ((log,), str(folder), "4711"), asked
        assert found.series_dir == str(folder / "prometheus")


def test_a_job_directory_that_holds_its_log_is_found_from_above_and_from_within(
    tmp_path: Path,
) -> None:
    log = write(tmp_path / "outputs" / "4711-llama" / "train.log", "x\n")
    found = [resolve(str(one)) for one in (log, log.parent)]
    assert found[0].job_dir == found[1].job_dir == str(log.parent)
    assert found[0].job_id == found[1].job_id == "4711"
    assert found[0].series_dir is None


def test_a_directory_of_several_jobs_is_not_chosen_from(tmp_path: Path) -> None:
    for name in ("1-a", "2-b"):
        write(tmp_path / name / "rank-0.log", "x\n")
    with pytest.raises(CannotRun, match=r"several jobs.*1-a.*2-b"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "job_id", "slurm_name"),
    [
        ("slurm-41.out", "41", None),
        ("slurm-4711_12.out", "4711_12", None),
        ("llama-70b-4711.err", "4711", "llama-70b"),
        ("4711.out", "4711", None),
        ("job-driver-raysubmit_Qx7.log", "raysubmit_Qx7", None),
        ("rank-3.out", None, None),
        ("train-20260310.log", None, None),
        ("003.log", None, None),
    ],
)
def test_names_that_schedulers_give(
    tmp_path: Path, name: str, job_id: str | None, slurm_name: str | None
) -> None:
    log = str(write(tmp_path / name, "x\n"))
    for asked in (log, str(tmp_path), *filter(None, [job_id])):
        found = resolve(asked, str(tmp_path))
        assert (found.logs, found.job_id, found.slurm_name) == ((log,), job_id, slurm_name)


def test_output_and_errors_of_one_job_are_not_chosen_from(tmp_path: Path) -> None:
    for name in ("slurm-4711.out", "slurm-4711.err"):
        write(tmp_path / name, "x\n")
    with pytest.raises(CannotRun, match=r"slurm-4711\.err, .*slurm-4711\.out"):
        resolve("4711", str(tmp_path))


def test_files_that_are_read_with_another_name_no_job_of_their_own(outputs: Path) -> None:
    write(outputs / "4711-llama.log.1", "x\n")
    names = ["4711-llama.log.1", "4711-llama", "4711-llama.log", "4711-llama/log"]
    jobs, problems = resolve_all([*(str(outputs / name) for name in names), "4711"], str(outputs))
    assert [job.asked for job in jobs] == [str(outputs / "4711-llama")] and not problems


def test_ranks_of_one_directory_are_one_job(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / "5-a" / f"rank-{rank}.log", "x\n")) for rank in range(3)]
    jobs, _ = resolve_all(paths)
    assert [job.asked for job in jobs] == paths[:1]


@pytest.mark.parametrize("names", [("slurm-4711.out", "slurm-4711.err"), ("a.log", "b.log")])
def test_different_logs_are_all_kept(tmp_path: Path, names: tuple[str, ...]) -> None:
    paths = [str(write(tmp_path / name, "x\n")) for name in names]
    jobs, problems = resolve_all([*paths, str(tmp_path / "nowhere")])
    assert [job.logs for job in jobs] == [(path,) for path in paths]
    assert len(problems) == 1


def test_jobs_of_directories_of_jobs(tmp_path: Path) -> None:
    """Those of several users; a shared checkpoint directory has none."""
    write(tmp_path / "alice" / "4711-llama.log", "x\n")
    write(tmp_path / "bob" / "4712-llama.log", "x\n")
    write(tmp_path / "ckpt" / "100" / "weights.bin", "x\n")
    expected = [
        str(tmp_path / "alice" / "4711-llama.log"),
        str(tmp_path / "bob" / "4712-llama.log"),
    ]
    assert several_in(str(tmp_path)) == expected
    assert several_in(str(tmp_path / "ckpt")) == []


def test_a_log_beside_one_job_is_another_job(tmp_path: Path) -> None:
    (tmp_path / "7877-llama").mkdir()
    for name in ("7877-llama.log", "preflight.log"):
        (tmp_path / name).write_text("completed step: 3, seconds: 1.0, loss: 2.5\n")
    names = [Path(job).name for job in several_in(str(tmp_path))]
    assert names == ["7877-llama", "preflight.log"]


# ---- what whoever writes to the job's directory may not have us read


@pytest.mark.parametrize("as_file", [False, True])
def test_a_link_out_of_the_jobs_directory_is_not_followed(
    tmp_path: Path, outputs: Path, as_file: bool
) -> None:
    secret = write(tmp_path / "other" / "secret.log", "key\n")
    link = outputs / "4711-llama" / "log"
    link.unlink()
    if as_file:
        write(link, str(secret))
    else:
        link.symlink_to(secret)
    if outputs == tmp_path:
        (outputs / "sub").mkdir()
        (outputs / "4711-llama").rename(outputs / "sub" / "4711-llama")
        link = outputs / "sub" / "4711-llama" / "log"
    with pytest.raises(CannotRun, match="leads out of the job's directory"):
        resolve(str(link.parent))
    assert resolve(str(secret)).logs == (str(secret),)


def test_a_workers_log_that_leads_elsewhere_is_not_read(tmp_path: Path, outputs: Path) -> None:
    host = outputs / "4711-llama" / "ray_logs" / "n1"
    host.mkdir(parents=True, exist_ok=True)
    write(host / "worker-1.out", "x\n")
    (host / "worker-2.out").symlink_to("/etc/passwd")
    found = resolve(str(outputs / "4711-llama"))
    assert str(host / "worker-1.out") in found.worker_logs
    assert str(host / "worker-2.out") not in found.worker_logs
    assert any("/etc/passwd" in note for note in found.notes)
