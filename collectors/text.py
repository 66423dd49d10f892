"""Sanitizes text from elsewhere before it is stored and printed: masks secrets, and escapes characters that act on a
terminal. Standard library only."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable

MASK = "<masked>"

# Words of a name that mark its value as secret; words that do so before "key", or at the end of the name.
_SECRET_WORDS = frozenset(
    ("password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey")
)
_SECRET_KEYS = frozenset(("access", "account", "api", "auth", "encryption", "license", "private", "signing"))
_LAST_WORDS = frozenset(("token", "authtoken", "accesstoken", "pwd"))
# As the last word: the value is a place, a kind or a measure of the secret.
_ABOUT = frozenset(
    ("count", "dim", "dir", "file", "folder", "format", "id", "len", "length", "limit", "name", "path", "prefix",
     "size", "type")
)  # fmt: skip
# Words that mark tokens of a text that a model reads.
_OF_TEXT = frozenset(
    ("audio", "bos", "cls", "end", "eos", "image", "mask", "max", "min", "new", "next", "num", "pad", "per", "sep",
     "special", "start", "stop", "text", "unk", "video", "word")
)  # fmt: skip
_NO_SECRETS = frozenset(("", "true", "false", "yes", "no", "on", "off", "none", "null", MASK))

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Bounded, and anchored at the begin of a name: each character is matched a bounded number of times.
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,100})(?P<between>["']?\s{0,4}=\s{0,4}|["']\s{0,4}:\s{0,4}|\s{1,4})"""
    r"""(?P<value>"[^"\n]{0,4096}"|'[^'\n]{0,4096}'|[^\s,;&"'\[\](){}]{1,4096})"""
)
_BEARER = re.compile(r"(?i)\b(bearer|authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?basic)\s{1,4}[\w.~+/=-]{8,4096}")
_LOGIN = re.compile(r"(?<=://)([^\s/:@]{0,200}):[^\s/]{1,1000}@")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_-])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-(?=[\w-]{0,200}\d)[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|nvapi-[\w-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
# In the signed URL of a file in an object store.
_SIGNED = re.compile(r"(?i)(?<=[?&])(sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=[^\s&\"']+")
_MAY_HOLD = re.compile(
    r"(?i)pass|token|secret|key|credential|pwd|bearer|authorization|://|sig|hf_|gh[pousr]_|github_pat|glpat|sk-|a[ks]ia|xox|aiza"
    r"|nvapi|npm_|pypi-|eyj"
)


def is_secret(name: str, value: str = "") -> bool:
    """Whether an option, a variable or a field of this name holds a secret, and this value can be one.

    Names with one of the words password, passwd, passphrase, secret, credentials and apikey; a key of an API, of
    access, of an account, private and the like (``--api-key``, ``AWS_SECRET_ACCESS_KEY``); and those that end with
    token or pwd (``HF_TOKEN``). Not the tokens of a text (``--pad-token``, ``--max-tokens``, ``--tokenizer``), and no
    place, kind or length of a secret (``--token-type``, ``--private-key-path``). A number is a secret only as a
    password; a boolean or an empty value is not a secret.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    value = value.strip("\"'")
    if not words or words[-1] in _ABOUT or value.lower() in _NO_SECRETS:
        return False
    if _SECRET_WORDS.intersection(words):
        return "secret" not in words[-1] or not _is_number(value)
    pairs = itertools.pairwise(words)
    keys = any(first in _SECRET_KEYS and second in ("key", "keys") for first, second in pairs)
    last = words[-1] in _LAST_WORDS and not _OF_TEXT.intersection(words) and (words[-1] != "pwd" or len(words) > 1)
    return (keys or last) and not _is_number(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def masked(text: str) -> str:
    """The text without the secrets in it: values of names that ``is_secret`` knows (``--name value``, ``name=value``,
    ``"name": "value"``), passwords and signatures in URLs, authorization headers, and text in the format of a token of
    Hugging Face, GitHub, GitLab, OpenAI, AWS, Slack, Google, NVIDIA, npm or PyPI, or of a JSON web token."""
    if not _MAY_HOLD.search(text):
        return text
    text = _LOGIN.sub(rf"\1:{MASK}@", text)
    text = _SIGNED.sub(rf"\1={MASK}", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _SHAPES.sub(MASK, text)
    position, parts = 0, []
    while match := _ASSIGNED.search(text, position):
        name, between, value = match["name"], match["between"], match["value"]
        # A value after a space counts only behind an option, and not if it is another option.
        if (between.strip() or (name[0] == "-" and value[0] != "-")) and is_secret(name, value):
            quote = value[0] if value[0] in "\"'" else ""
            parts += [text[position : match.start("value")], quote, MASK, quote]
            position = match.end()
        else:  # the value may be a name itself
            parts.append(text[position : match.start("value")])
            position = match.start("value")
    return "".join(parts) + text[position:]


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with the secret values of options and variables masked; the names stay. See ``masked``."""
    masked_words: list[str] = []
    option = ""  # the option whose value this argument may be
    for argument in arguments:
        name, assigned, value = argument.partition("=")
        if option and not argument.startswith("--") and is_secret(option, argument):
            masked_words.append(MASK)
        elif assigned and is_secret(name, value):
            masked_words.append(f"{name}={MASK}")
        else:
            masked_words.append(masked(argument))
        option = argument if argument.startswith("-") and not assigned else ""
    return masked_words


def option_of_mask(arguments: Iterable[str]) -> str:
    """The option or variable whose value is masked in this command line, so that it cannot be run; "" for none."""
    before = ""
    for argument in arguments:
        if MASK in argument:
            return before if argument == MASK and before else argument.partition("=")[0]
        before = argument
    return ""


def visible(text: str) -> str:
    """The text on one line, with every character that a terminal would act on escaped."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def visible_lines(text: str) -> str:
    """The same line by line: its newlines stay."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    # Controls, formats (such as bidirectional overrides), surrogates, line separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return character
