"""No output shows a secret, whatever its form; what explains a failure stays."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from raydiag.cli import main
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
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_masked_and_the_sentence_stays(secret: str) -> None:
    masked = masked_text(f"RuntimeError: refused for {secret} by host node004")
    assert _BODY not in masked and _BODY[:16].upper() not in masked
    assert masked.startswith("RuntimeError: refused for ") and masked.endswith("by host node004")


@pytest.mark.parametrize(
    "text",
    [
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
