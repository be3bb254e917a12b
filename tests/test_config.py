"""`--config FILE`: defaults from a file, the command line before it, every mistake on one line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import kmsg, main, probe

Seen = Callable[..., argparse.Namespace]


@pytest.fixture(autouse=True)
def no_file_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDIAG_CONFIG", raising=False)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """`seen("probe", ...)`: what the command is run with."""
    caught: list[argparse.Namespace] = []

    def run(arguments: argparse.Namespace) -> int:
        caught.append(arguments)
        return 0

    for command in (probe, kmsg):
        monkeypatch.setattr(command, "run", run)

    def call(*arguments: str) -> argparse.Namespace:
        assert main(arguments) == 0
        return caught[-1]

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused("probe", ...)`: the one line with which it ends."""

    def call(*arguments: str) -> str:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("raydiag")
        assert err.index("\n") == len(err) - 1
        return err

    return call


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "site.yaml").write_text(text)
        return str(tmp_path / "site.yaml")

    return write


FULL = """\
# what is true here
format: markdown
verbose: true
address: http://head:8265
ssh: me@head
jump: login
ssh-config: ./ssh
probe:
  deadline: 60
  skip: [storage, ras]
  only: versions
  interval: 1.5
  node: ['a[1-2]', b]
  redact: true
  stacks: true
kmsg:
  format: json
"""


def test_every_kind_of_option(seen: Seen, file: Any) -> None:
    arguments = seen("--config", file(FULL), "probe")
    assert (
        vars(arguments).items()
        >= {
            "format": "markdown",
            "verbose": True,
            "quiet": False,
            "address": "http://head:8265",
            "ssh": "me@head",
            "jump": "login",
            "ssh_config": "./ssh",
            "deadline": 60.0,
            "skip": "storage,ras",
            "only": "versions",
            "interval": 1.5,
            "all_nodes": False,
            "redact": True,
            "stacks": True,
            "force_ras": False,
            "output": None,
        }.items()
    )
    assert arguments.node == ["a[1-2]", "b"]


def test_a_commands_own_section_is_before_the_common_one(seen: Seen, file: Any) -> None:
    """What has no meaning for the command, as an address here, is no mistake."""
    arguments = seen("kmsg", "--config", file(FULL), "dmesg.txt")
    assert (arguments.format, arguments.verbose) == ("json", True)
    assert (arguments.files, arguments.address) == (["dmesg.txt"], None)


@pytest.mark.parametrize("before", [True, False])
def test_command_line_wins(before: bool, seen: Seen, file: Any) -> None:
    path = file(FULL)
    own = ["--ssh", "you@other", "-J", "gate"]
    there, here = (own, []) if before else ([], own)
    shorter = ["--deadline", "7", "--skip", "memory", "--format=text"]
    arguments = seen(*there, "probe", *here, "--config", path, *shorter)
    assert (arguments.ssh, arguments.jump, arguments.address) == (
        *("you@other", "gate"),
        "http://head:8265",
    )
    assert (arguments.deadline, arguments.skip, arguments.format) == (7.0, "memory", "text")


def test_command_line_wins_over_what_excludes_it(seen: Seen, file: Any) -> None:
    path = file("probe: {node: [a]}")
    arguments = seen("probe", "--all-nodes", "--config", path)
    assert (arguments.all_nodes, arguments.node) == (True, None)
    arguments = seen("probe", "--node", "b", "--config", path)
    assert (arguments.all_nodes, arguments.node) == (False, ["b"])
    arguments = seen("probe", "--node", "b", "--config", file("probe: {all-nodes: true}"))
    assert (arguments.all_nodes, arguments.node) == (False, ["b"])
    assert seen("probe", "--config", file("probe: {all-nodes: true}")).all_nodes


def test_what_is_needed_is_needed_still(refused: Any, file: Any) -> None:
    for text in ("verbose: true", "# nothing"):
        assert "required: ACTION" in refused("--config", file(text), "exporter")


def test_variable_names_a_file_too(
    seen: Seen, refused: Any, file: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYDIAG_CONFIG", file("quiet: true"))
    assert seen("kmsg").quiet
    other = tmp_path / "other.yaml"
    other.write_text("verbose: true")
    arguments = seen("kmsg", "--config", str(other))
    assert (arguments.quiet, arguments.verbose) == (False, True)
    monkeypatch.setenv("RAYDIAG_CONFIG", "/no/such.yaml")
    assert "/no/such.yaml: No such file" in refused("kmsg")
    monkeypatch.setenv("RAYDIAG_CONFIG", "")
    assert not seen("kmsg").quiet


def test_help_does_not_need_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIAG_CONFIG", "/no/such.yaml")
    with pytest.raises(SystemExit) as ended:
        main(["probe", "--help"])
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "[--config FILE] [--all-nodes | --node N [N ...]]" in out
    assert "(default 30)" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour: true", "no command or common option 'colour'; there are: probe, kmsg, triage"),
        ("deadline: 60", "no command or common option 'deadline'"),
        ("1: true", "no command or common option 1"),
        ("config: other.yaml", "no command or common option 'config'"),
        ("probe: {dead-line: 60}", "probe: no option 'dead-line'; there are: address, all-nodes"),
        ("probe: {config: x}", "probe: no option 'config'"),
        ("kmsg: {files: [x]}", "kmsg: no option 'files'"),
        ("kmsg: {deadline: 60}", "kmsg: no option 'deadline'"),
        ("probe: {deadline: 700}", "probe: deadline: '700' is not a number of seconds from 1"),
        ("probe: {deadline: true}", "probe: deadline: must be a number, not True"),
        ("probe: {deadline: [60]}", "probe: deadline: must be a number, not [60]"),
        ("probe: {deadline: }", "probe: deadline: must be a number, not None"),
        ("probe: {all-nodes: 1}", "probe: all-nodes: must be true or false, not 1"),
        ("probe: {skip: {a: b}}", "probe: skip: must be a list of strings, not {'a': 'b'}"),
        ("probe: {node: [1, 2]}", "probe: node: must be a list of strings, not [1, 2]"),
        ("probe: {node: [a], all-nodes: true}", "probe: all-nodes and node exclude each other"),
        ("probe: {output: /no/such/place/x}", "probe: output: '/no/such/place/x': there is no"),
        (
            "kmsg: {format: pdf}",
            "kmsg: format: 'pdf' is none of: text, json, jsonl, markdown, html",
        ),
        ("format: pdf", "format: 'pdf' is none of: text, json, jsonl, markdown, html"),
        ("address: 8265", "address: must be a string, not 8265"),
        ("probe: [deadline]", "probe: not options with their values"),
        ("[probe]", "not options with their values"),
        ("probe", "not options with their values"),
        ("quiet: true\nquiet: false", "not YAML: key 'quiet' is there twice"),
        ("probe: {deadline: 60", "not YAML: "),
        ("a: \x01", "not YAML: "),
        ("a: !!python/object/apply:os.getcwd []", "not YAML: "),
    ],
)
def test_mistakes_are_one_line(text: str, words: str, refused: Any, file: Any) -> None:
    path = file(text)
    err = refused("probe", "--config", path)
    assert f"raydiag: --config {path}: {words}" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00binary", "not a text file"),
        (b"#" * 65_537, "has more than 65536 bytes"),
        (b"[" * 60_000, "nested more than 8 deep"),
        (b"- " * 30_000, "nested more than 8 deep"),
        (None, "No such file or directory"),
    ],
)
def test_files_that_are_none(
    content: bytes | None, words: str, refused: Any, tmp_path: Path
) -> None:
    path = tmp_path / "site.yaml"
    if content is not None:
        path.write_bytes(content)
    assert f"--config {path}: {words}" in refused("--config", str(path), "kmsg")


def test_a_directory_is_no_file(refused: Any, tmp_path: Path) -> None:
    assert "is not a regular file" in refused("kmsg", "--config", str(tmp_path))
    assert "expected one argument" in refused("kmsg", "--config")


def test_mistakes_in_other_commands_sections_are_told(refused: Any, file: Any) -> None:
    path = file("probe: {dead-line: 60}")
    assert "no option 'dead-line'" in refused("kmsg", "--config", path, os.devnull)


def test_probes_of_a_file_are_checked_like_those_of_the_command_line(
    refused: Any, file: Any
) -> None:
    path = file("probe: {skip: [gpu], all-nodes: true, address: 'http://127.0.0.1:9'}")
    assert "--skip: no probe 'gpu'" in refused("--config", path, "probe")
