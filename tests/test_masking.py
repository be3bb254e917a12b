"""What counts as a secret in a line of a log, and what does not."""

from __future__ import annotations

import pytest

from raydiag.masking import masked_line


@pytest.mark.parametrize(
    "line",
    [
        "AWS_SECRET_ACCESS_KEY=hunter2",
        '{"aws_secret_access_key": "hunter2"}',
        "access_key=hunter2",
        "private_key=hunter2",
        "AWS_ACCESS_KEY_ID=hunter2",
        "WANDB_API_KEY: hunter2",
        "SIGNING_KEY=hunter2",
        "HF_TOKEN=hunter2 was refused",
        "auth_token: hunter2",
        "Authorization: Bearer hunter2",
        "401 for Bearer hunter2",
        "cannot clone https://me:hunter2@git.example.com/repo",
        "postgres://trainer:hunter2@db/steps",
        "python train.py --api-key hunter2",
        "api-key: hunter2",
        "--token hunter2",
        "password = hunter2",
        "my_passwd='hunter2'",
    ],
)
def test_a_secret_is_hidden(line: str) -> None:
    assert "hunter2" not in masked_line(line)
    assert "***" in masked_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'layers.0.attention'",
        "completed step: 12, seconds: 1.250, Tokens/s/device: 2210.500, loss: 3.125",
        "num_tokens: 65536, tokens per second: 120",
        "Token indices sequence length is longer than 4096",
        "unexpected key: model.embed",
        "Missing key(s) in state_dict: weight",
        "RuntimeError: basically out of memory",
    ],
)
def test_what_explains_a_failure_stays(line: str) -> None:
    assert masked_line(line) == line
