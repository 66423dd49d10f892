"""Secrets in command lines and in text are masked, and what only sounds like one is not."""

from __future__ import annotations

import re
import time

import pytest

from diag.collectors.text import MASK, is_secret, masked, masked_arguments, option_of_mask

SECRET = "S3cr3t"


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokenizer", "gpt2"], ["--max-tokens", "512"], ["--token-type", "bearer"], ["--tokens-per-batch", "4096"],
        ["--pad-token", "<pad>"], ["--eos_token=</s>"], ["--use-auth-token", "true"], ["--token", "0.5"],
        ["--private-key-path", "/home/me/key"], ["--secret-size=32"], ["--num-key-value-heads", "8"], ["PWD=/home/me"],
        ["--key", "value"], ["--keys", "a,b"], ["--passes", "3"], ["--use-token", "--steps", "3"], ["https://host:80/x@y"],
        ["git@github.com:me/x.git"], ["ssh://git@host/x"], ["sk-learn"], ["task-1234567890abcdefghij"], ["--token="],
        ["--monkey", "x"], ["a description of the token that ends a text"],
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


@pytest.mark.parametrize("piece", ["a", "--token ", "x=", "key ", "://a:", '"', "token='", "a.b-", "bearer ", "sk-a1"])
def test_the_time_grows_with_the_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text = "token" + piece * (size // len(piece))
        begin = time.process_time()
        masked(text)
        return time.process_time() - begin

    assert seconds(160_000) < 12 * max(seconds(40_000), 0.01)
