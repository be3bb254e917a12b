"""No output shows a secret, whatever its form; what explains a failure stays."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydiag.cli import main
from raydiag.render.report import (
    Bullet,
    Bullets,
    KeyValues,
    Quote,
    Report,
    Section,
    Steps,
    Toned,
    Words,
    table,
)
from raydiag.render.secrets import masked_text, masked_value

# Composed here; none of them opens anything. Put together, so that no scanner takes them for real.
_BODY = "Zq8Lw3Xv7Tn2Rb5Yk9Pd4Mc6"
SECRETS = [
    f"ghp{'_'}{_BODY}",
    f"github_pat{'_'}{_BODY}",
    f"glpat{'-'}{_BODY}",
    f"hf{'_'}{_BODY}",
    f"sk{'-'}proj-{_BODY}",
    f"xoxb{'-'}12-{_BODY}",
    f"AKIA{_BODY[:16].upper()}",
    f"eyJ{_BODY}.eyJ{_BODY}.{_BODY}",
    f"WANDB_API_KEY={_BODY}",
    f"aws_secret_access_key: {_BODY}",
    f"Authorization: Bearer {_BODY}",
    f"Authorization: Basic {_BODY}",
    f"https://trainer:{_BODY}@git.example.com/repo",
    f"?access_token={_BODY}&page=2",
    f'{{"password": "{_BODY}"}}',
    f"python train.py --api-key {_BODY}",
    f"pypi{'-'}{_BODY}",
    f"nvapi{'-'}{_BODY}",
    f"dckr_pat{'_'}{_BODY}",
    f"r8{'_'}{_BODY}",
    f"ya29{'.'}{_BODY}",
    f"AccountName=store;AccountKey={_BODY}==;Suffix=core",
    f"https://store.example.com/c?sv=2022&sig={_BODY}&se=1",
    f"https://store.example.com/c?X-Amz-Credential=a&X-Amz-Signature={_BODY}",
    f"MYSQL_PWD={_BODY}",
    f"SLURM_JWT={_BODY}",
    f"curl -u trainer:{_BODY} https://registry.example.com",
    f"trainer:{_BODY}@registry.example.com:5000/image",
    f"machine api.example.com login me password {_BODY}",
    f"wandb login {'0123456789' * 4}",
    f'"{{\\"password\\": \\"{_BODY}\\"}}"',
    f"https://example.com/?next=https%3A%2F%2Fb%3Ftoken%3D{_BODY}",
    f"hf{'_'}\x1b[1;36m{_BODY[:6]}\x1b[0m{_BODY[6:]}",
    f"hf{'_'}{_BODY[:6]}\u200b{_BODY[6:]}",
    (_BODY * 3)[:64],
]
# Everything up to the end of the line may belong to it.
TO_THE_END = [f"Set-Cookie: session={_BODY}; Path=/", f"-----BEGIN RSA PRIVATE KEY----- {_BODY}"]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_masked_and_the_sentence_stays(secret: str) -> None:
    masked = masked_text(f"RuntimeError: refused for {secret} by host node004")
    assert "***" in masked and "0123456789" not in masked
    assert _BODY[6:16] not in masked and _BODY[:16].upper() not in masked
    assert masked.startswith("RuntimeError: refused for ") and masked.endswith("by host node004")


@pytest.mark.parametrize("secret", TO_THE_END)
def test_a_secret_without_an_end_is_masked_to_the_end_of_the_line(secret: str) -> None:
    assert _BODY not in masked_text(f"refused for {secret} by host")


@pytest.mark.parametrize(
    "text",
    [
        "hf_hub_download() failed: hf_access_token is not set, npm_config_registry neither",
        "git clone git@github.com:org/repo and srun -u python3 train.py",
        f"sha256 {'0123456789abcdef' * 4} of outputs/7-job/checkpoints/items/0/d/process_0/array",
        "LustreError: 11-0: ost0: 10.0.0.4:988@tcp was lost; login node is login1",
        "commit 0123456789012345678901234567890123456789 (HEAD -> main)",
        "KeyError: 'layers.0.attention'",
        "completed step: 12, seconds: 1.250, Tokens/s/device: 2210.500, loss: 3.125",
        "num_tokens: 65536, pad_token=<pad>, eos_token: </s>",
        "Missing key(s) in state_dict: weight; see https://example.com/issues/1",
        "hf_hub download failed for disk-usage-check and task-runner-of-something-long",
    ],
)
def test_what_explains_a_failure_stays(text: str) -> None:
    assert masked_text(text) == text


def test_values_under_such_a_name_are_masked_in_a_document() -> None:
    document = {"env": {"HF_TOKEN": "hunter2", "NCCL_DEBUG": "INFO"}, "rows": [("x", 1, None)]}
    assert masked_value(document) == {
        "env": {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"},
        "rows": [["x", 1, None]],
    }
    assert masked_value({"argv": ["serve", "--api-key", "hunter2", "--port", "1"]}) == {
        "argv": ["serve", "--api-key", "***", "--port", "1"]
    }
    row = {"parameter": "hf_access_token", "a": "hunter2", "b": "hunter3", "explains": 1}
    assert masked_value([row]) == [{**row, "a": "***", "b": "***"}]
    assert masked_value({SECRETS[3]: 1}) == {"***": 1}


def test_a_report_holds_no_secret_whatever_writes_it() -> None:
    rows: list[Sequence[Words]] = [
        ("hf_access_token", "hunter2", Toned("hunter2")),
        ("steps", "5", "6"),
    ]
    made = Report(
        [
            Section(SECRETS[0], [table(("setting", "a", "b"), rows)], facts=[SECRETS[1]]),
            Section("", [KeyValues([("password", "hunter2")]), Bullets([Bullet(SECRETS[4])])]),
            Section("", [Quote(SECRETS), Steps([f"export {SECRETS[8]}"])]),
        ],
        footer=SECRETS[12],
    )
    assert "hunter2" not in repr(made) and _BODY not in repr(made)
    assert "steps" in repr(made) and made.sections[0].blocks[0].rows[1].cells[1] == "5"  # type: ignore[attr-defined]


@pytest.mark.parametrize("output_format", ["text", "json", "markdown", "html"])
def test_no_command_prints_a_secret_of_a_log(
    output_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "4711-job.log"
    lines = [f"0: RuntimeError: refused for {secret}" for secret in SECRETS]
    log.write_text("\n".join(["0: Traceback (most recent call last):", *lines, ""]))
    words = ["triage", str(log), "--job-state", "ended", "-v", "--format", output_format]
    assert main(words) == 1
    assert main(["triage", f"https://me:{_BODY}@host/{SECRETS[0]}"]) != 0
    printed = capsys.readouterr()
    assert "RuntimeError" in printed.out and "***" in printed.out
    assert _BODY not in printed.out + printed.err
    if output_format == "json":
        json.loads(printed.out)


@pytest.mark.parametrize("unit", ["a", "token", "-", "://", "eyJ", "password=", "key ", "Bearer "])
def test_long_lines_take_no_long_time(unit: str) -> None:
    def _seconds(characters: int) -> float:
        start = time.process_time()
        masked_text(unit * (characters // len(unit)))
        return time.process_time() - start

    # Four times the text takes about four times as long; where it is quadratic, 16 times.
    assert (
        min(_seconds(64_000) for _ in range(3))
        < 10 * min(_seconds(16_000) for _ in range(3)) + 0.01
    )
