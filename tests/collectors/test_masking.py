"""Secrets in command lines and in text are masked, and what only sounds like one is not: SECURITY.md lists both."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest

from diag.collectors import masking
from diag.collectors.masking import (
    MASK,
    is_secret,
    masked,
    masked_arguments,
    masked_ends,
    option_of_mask,
    without_secrets,
)
from diag.collectors.policy import RECORDED_FILES

SECRET = "S3cr3t"
PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text().partition("\n### Secrets\n")[2].partition("\n### ")[0]
FORMS, _, OTHERS = PAGE.partition("\nSo is text that begins")
BEGINNINGS, _, OTHERS = OTHERS.partition("\nNot masked")
HARMLESS, _, UNKNOWN = OTHERS.partition("\nNot recognised")
ENCODED = ("cGFzc3dvcmQ9U0VDUkVU", "password%3DSECRET")


def examples(text: str) -> list[str]:
    return [code for code in re.findall(r"`([^`]+)`", text) if code not in ("SECRET", MASK, "manifest.json", "ps")]


@pytest.mark.parametrize("example", examples(FORMS))
def test_forms_on_the_page_are_masked(example: str) -> None:
    for secret in ("SECRET",) if example in ENCODED else ("SECRET", "Hunter2", "Xy+7w=="):
        text = re.sub(r"\bSECRET\b", secret, example)
        arguments = ["train.py", *shlex.split(text), "--steps", "5"]
        shown = masked_arguments(arguments)
        assert (shown[0], shown[-2:], len(shown)) == ("train.py", ["--steps", "5"], len(arguments))
        for hidden in (" ".join(shown), masked(shlex.join(arguments)), masked(f"+ python train.py {text} --steps 5")):
            assert MASK in hidden
            assert not re.search(r"\bSECRET\b|Hunter2|Xy\+|cGFz", hidden)
        assert masked_arguments(shown) == shown


@pytest.mark.parametrize("example", examples(HARMLESS))
def test_what_the_page_calls_harmless_stays(example: str) -> None:
    arguments = ["train.py", *example.split(), "--steps", "5"]
    assert masked_arguments(arguments) == arguments
    assert masked(" ".join(arguments)) == " ".join(arguments)


@pytest.mark.parametrize("example", examples(UNKNOWN))
def test_what_the_page_calls_unknown_is_unknown(example: str) -> None:
    assert masked_arguments(example.split()) == example.split()


@pytest.mark.parametrize("beginning", examples(BEGINNINGS))
def test_beginnings_on_the_page(beginning: str) -> None:
    bodies = ("aB1cD2" * 7, "A1B2C3D4" * 3, "a1b2c3d4" * 8, "hbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.aB1cD2eF3g")
    assert MASK in [masked(beginning + body) for body in bodies]
    assert masked(beginning) == beginning


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", SECRET], [f"--api-key={SECRET}"], ["--password", SECRET], ["--password", "12345"],
        ["-e", f"WANDB_API_KEY={SECRET}"], [f"HF_TOKEN={SECRET}"], ["--hf_token", SECRET], ["--authToken", SECRET],
        [f"db.password={SECRET}"], [f"+logger.api_key={SECRET}"], ["--secret", f"a b {SECRET}"],
        ["--client-secret", f"-{SECRET}"], [f"AWS_SECRET_ACCESS_KEY={SECRET}"], [f"--export=ALL,HF_TOKEN={SECRET},X=1"],
        ["bash", "-c", f"cd x && HF_TOKEN={SECRET} python x.py"], ["sh", "-c", f"x.py --token {SECRET} --lr 1"],
        [f'{{"api_key": "{SECRET}", "lr": 1}}'], [f"https://user:{SECRET}@host/data"], [f"--data=s3://a:{SECRET}@b/c"],
        [f"https://host/data?sig={SECRET}&x=1"], ["--header", f"Authorization: Bearer {SECRET}abcdefgh"],
        [f"hf_{SECRET}abcdefghijklmnop"], [f"ghp_{SECRET}abcdefghijklmnop"], [f"sk-proj-{SECRET}abcdefghijklmnop"],
        ["x", "AKIAS3CR3TABCDEFGH"], [f"xoxb-{SECRET}-abcdefgh"], [f"eyJ{SECRET}abc.eyJ{SECRET}abc.{SECRET}abc"],
    ],
)  # fmt: skip
def test_secrets_are_masked(arguments: list[str]) -> None:
    shown = masked_arguments(["train.py", *arguments, "--steps", "5"])
    assert not re.search("12345|s3cr3t", " ".join(shown), re.IGNORECASE)
    assert MASK in " ".join(shown)
    assert (shown[0], shown[-2:]) == ("train.py", ["--steps", "5"])
    assert len(shown) == len(arguments) + 3
    name = arguments[0].partition("=")[0]
    if name.startswith("--"):
        assert shown[1].startswith(name)
    assert masked_arguments(shown) == shown
    assert option_of_mask(shown)


@pytest.mark.parametrize("levels", [RECORDED_FILES.most_redacted_depth + 2, 900, 200_000])
def test_what_is_nested_too_deeply_to_be_searched_is_masked(levels: int) -> None:
    deep = '{"a": ' * levels + '"SECRET"' + "}" * levels
    assert "SECRET" not in " ".join(masked_arguments(["python", "train.py", deep]))
    assert "SECRET" not in " ".join(masked_arguments(["python", "train.py", f"--config={deep}"]))


def test_what_is_nested_as_deeply_as_is_searched_stays() -> None:
    levels = RECORDED_FILES.most_redacted_depth
    value: object = {"width": 64}
    for _ in range(levels):
        value = [value]
    assert without_secrets(value) == value
    assert "64" not in str(without_secrets([value]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokenizer", "gpt2"], ["--max-tokens", "512"], ["--token-type", "bearer"], ["--tokens-per-batch", "4096"],
        ["--pad-token", "<pad>"], ["--eos_token=</s>"], ["--use-auth-token", "true"], ["--token", "0.5"],
        ["--private-key-path", "/home/me/key"], ["--secret-size=32"], ["--num-key-value-heads", "8"], ["PWD=/home/me"],
        ["--key", "value"], ["--keys", "a,b"], ["--passes", "3"], ["--use-token", "--steps", "3"], ["https://host:80/x@y"],
        ["git@github.com:me/x.git"], ["ssh://git@host/x"], ["sk-learn"], ["task-1234567890abcdefghij"], ["--token="],
        ["--monkey", "x"], ["a description of the token that ends a text"],
        ["hf-model-1-predictor-00001-deployment-6d77c45789-x7ghj:1:1"],
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(arguments: list[str]) -> None:
    assert masked_arguments(arguments) == arguments
    assert option_of_mask(arguments) == ""


def test_lines_of_logs() -> None:
    line = f"+ srun python train.py --api-key {SECRET} --lr 0.1 HF_TOKEN='{SECRET}' # api_key={SECRET}"
    assert masked(line) == (f"+ srun python train.py --api-key {MASK} --lr 0.1 HF_TOKEN='{MASK}' # api_key={MASK}")
    for harmless in ("Unexpected token: expected ')'", "KeyError: 'password'", "rank 3 passed step 5, key 7"):
        assert masked(harmless) == harmless


def test_which_option_is_masked() -> None:
    assert option_of_mask(["train.py", "--api-key", MASK]) == "--api-key"
    assert option_of_mask(["train.py", f"--token={MASK}"]) == "--token"


def test_a_name_of_no_letters_is_no_secret() -> None:
    assert not is_secret("--", "x")


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "--token ",
        "x=",
        "key ",
        "://a:",
        '"',
        "token='",
        "a.b-",
        "bearer ",
        "sk-a1",
        "token=/",
        '\\"',
        "a:b@",
        "-p ",
        "%41",
    ],
)
def test_the_time_grows_with_the_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text = "token" + piece * (size // len(piece))
        spent = []
        for _ in range(3):  # the least of them: other processes share the caches
            begin = time.process_time()
            masked(text)
            spent.append(time.process_time() - begin)
        return min(spent)

    assert seconds(80_000) < 12 * max(seconds(20_000), 0.01)


@pytest.mark.parametrize("piece", ["key=", "key='", "u:", "key=a.", "token=/a/", "passwd=", 'auth: "'])
def test_a_value_within_a_value_is_not_read_to_its_end(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def is_assigned(name: str, between: str, value: str, following: str) -> bool:
        nonlocal read
        read += len(value)
        return judge(name, between, value, following)

    judge = masking._is_assigned
    monkeypatch.setattr(masking, "_is_assigned", is_assigned)
    text = "token" + piece * (20_000 // len(piece))
    masked(text)
    assert read < 100 * len(text)


@pytest.mark.parametrize(
    "secret", [f'password="{SECRET} two words"', f"Authorization: Basic {SECRET}x9 y", "a of many\nb"]
)
@pytest.mark.parametrize("filler", ["a line of a text\n", "word ", "x=1 "])
def test_of_a_long_text_both_ends_are_kept_and_masked(secret: str, filler: str) -> None:
    for offset in (0, 13):  # of what is cut
        text = f"Traceback{'.' * offset}\n" + f"{filler}{secret}\n" * 5_000 + "ValueError: the last line"
        shown = masked_ends(text)
        assert shown.startswith("Traceback")
        assert shown.endswith("ValueError: the last line")
        assert SECRET not in shown
        assert "two words" not in shown
        left_out = int(re.findall(r"\[(\d+) characters are left out\]", shown)[0])
        assert len(shown) < 70_000
        assert left_out > 10_000
    assert masked_ends(filler * 20 + secret) == masked(filler * 20 + secret)


def test_a_long_key_is_masked_in_the_middle_of_a_long_text() -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 4_000
    key = f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n"
    assert "MIIE" not in masked_ends(f"{key}the end") + masked_ends(f"{'a word ' * 20_000}{key}")


def test_fields_are_masked_by_their_names() -> None:
    content = {
        "api_key": SECRET, "credentials": {"user": "me", "id": 7}, "argv": ["--token", SECRET], "tokenizer": "gpt2",
        "password": 12345, "max_tokens": 2048, "layers": [1, 2],
    }  # fmt: skip
    assert without_secrets(content) == {
        "api_key": MASK, "credentials": {"user": MASK, "id": 7}, "argv": ["--token", MASK], "tokenizer": "gpt2",
        "password": MASK, "max_tokens": 2048, "layers": [1, 2],
    }  # fmt: skip
