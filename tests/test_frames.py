"""Messages out of a noisy log: whole and right, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from raydiag.cluster import frames
from raydiag.cluster.frames import Decoder, encode

NONCE = "00ff00ff00ff00ff"
_SHORT_PARTS = 5  # bytes, so that small payloads have several parts

messages = st.dictionaries(st.integers(0, 1_100_000), st.binary(max_size=40), max_size=4)
# Anything may stand between two line feeds, other line ends and another run's frames included.
noise = st.one_of(
    st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=20),
    st.sampled_from(
        [
            "\x1b[36m(RaydiagNodeActor pid=7)\x1b[0m ",
            "\r",
            "@raydiag",
            f"@raydiag {NONCE} 1 1/",
            f"@raydiag {NONCE}",
            next(encode("ee11ee11ee11ee11", 1, b"another run")),
        ]
    ),
)


def lines_of(sent: Mapping[int, bytes]) -> list[str]:
    with mock.patch.object(frames, "_PART_BYTES", _SHORT_PARTS):
        return [line for number, data in sent.items() for line in encode(NONCE, number, data)]


def decoded(*logs: str) -> dict[int, bytes]:
    decoder = Decoder(NONCE)
    for log in logs:
        decoder.feed(log)
    return decoder.messages


def test_form_of_a_line() -> None:
    (line,) = encode(NONCE, 12, b"hello")
    mark, nonce, number, part, digest, data = line.split(" ")
    assert (mark, nonce, number, part, data) == ("@raydiag", NONCE, "12", "1/1", "aGVsbG8=")
    assert len(digest) == 16


def test_lines_stay_short() -> None:
    lines = list(encode(NONCE, 999_999, bytes(100_000)))
    assert len(lines) == 5
    assert max(map(len, lines)) < 33_000
    assert decoded("\n".join(lines) + "\n") == {999_999: bytes(100_000)}


@given(messages, st.data())
def test_any_noise_any_order_and_the_growing_log_fed_again(
    sent: dict[int, bytes], data: st.DataObject
) -> None:
    rows = data.draw(st.permutations(lines_of(sent)))
    rows = rows + data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else rows
    # Noise may also stand before a frame in its own line, and in lines between them.
    between = [data.draw(st.lists(noise, max_size=2)) for _ in rows]
    before = [data.draw(st.sampled_from(["", "\x1b[0m", "warning: "])) for _ in rows]
    log = "".join(
        "".join(f"{text}\n" for text in texts) + f"{front}{row}\n"
        for texts, front, row in zip(between, before, rows, strict=True)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=5)))
    assert decoded(*(log[:cut] for cut in cuts), log, log) == sent


@given(messages, st.data())
def test_damaged_log_never_gives_a_wrong_message(
    sent: dict[int, bytes], data: st.DataObject
) -> None:
    rows = lines_of(sent)
    for _ in range(data.draw(st.integers(1, 3)) if rows else 0):
        index = data.draw(st.integers(0, len(rows) - 1))
        row = rows[index]
        at = data.draw(st.integers(0, len(row)))
        kind = data.draw(st.sampled_from(["lost", "cut", "changed", "inserted", "data swapped"]))
        if kind == "lost":
            rows[index] = ""
        elif kind == "cut":
            rows[index] = row[:at]
        elif kind == "changed":
            rows[index] = row[:at] + data.draw(st.characters(codec="utf-8")) + row[at + 1 :]
        elif kind == "inserted":
            rows[index] = row[:at] + data.draw(noise) + row[at:]
        else:
            other = data.draw(st.integers(0, len(rows) - 1))
            left, right = (rows[i].rpartition(" ") for i in (index, other))
            rows[index], rows[other] = left[0] + " " + right[2], right[0] + " " + left[2]
    assert decoded("\n".join(rows) + "\n").items() <= sent.items()


def test_lost_line_is_a_lost_message() -> None:
    rows = lines_of({1: b"a first message", 2: b"a second message"})
    for index in range(len(rows)):
        log = "\n".join(rows[:index] + rows[index + 1 :]) + "\n"
        number = int(rows[index].split()[2])
        assert set(decoded(log)) == {1, 2} - {number}


def test_damaged_number_is_not_another_message() -> None:
    (line,) = encode(NONCE, 3, b"of node 3")
    assert decoded(line.replace(" 3 ", " 8 ") + "\n") == {}


def test_parts_swapped_between_messages() -> None:
    first, second = (list(encode(NONCE, 1, text * 30_000)) for text in (b"a", b"b"))
    swapped = [first[0], second[1].replace(f"{NONCE} 2 ", f"{NONCE} 1 ")]
    assert decoded("\n".join(swapped) + "\n") == {}


def test_incomplete_line_waits_for_its_end() -> None:
    (line,) = encode(NONCE, 1, b"payload")
    decoder = Decoder(NONCE)
    decoder.feed(line)
    assert decoder.messages == {}
    decoder.feed(line + "\n")
    assert decoder.messages == {1: b"payload"}


def test_log_that_could_not_be_read_for_a_moment() -> None:
    one, two = (next(encode(NONCE, number, b"x")) for number in (1, 2))
    assert set(decoded(f"{one}\n", "", f"{one}\n{two}\n")) == {1, 2}


def test_of_two_whole_messages_of_one_number_none_is_believed() -> None:
    decoder = Decoder("n")
    log = "".join(f"{line}\n" for line in encode("n", 3, b"true"))
    decoder.feed(log)
    log += "".join(f"{line}\n" for line in encode("n", 3, b"true"))
    decoder.feed(log)
    assert (decoder.messages, decoder.disputed) == ({3: b"true"}, set())
    log += "".join(f"{line}\n" for line in encode("n", 3, b"forged"))
    decoder.feed(log)
    assert decoder.disputed == {3}


def test_parts_of_another_message_damage_none() -> None:
    payload = bytes(range(256)) * 200
    first, *rest = encode("n", 3, payload)
    alien = next(encode("n", 3, b"x" * 30_000))
    decoder = Decoder("n")
    decoder.feed("".join(f"{line}\n" for line in (first, alien, *rest)))
    assert decoder.messages == {3: payload}
