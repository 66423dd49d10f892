"""Masks secrets in command lines, in fields and in text, before they are stored and before they are shown.

SECURITY.md lists what is recognised and what is not, and a test reads that list. A secret is recognised by the name in
front of it (an option, a variable, a field, a header), by its place (in a URL, behind a program that logs in), or by
its own format. Standard library only: training processes load nothing else.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote

from .policy import RECORDED_FILES

MASK = "<masked>"


class _Holds(Enum):
    """What stands behind a name, and so which values are masked."""

    PASSWORD = "any value but a switch"
    SECRET = "no number, path, kind of login or special token of a text"
    KEY = "as SECRET, and no identifier: the key may be a field of the data"
    LOGIN = "a user with a password: name:password"
    ANYTHING = "what looks random"
    NOTHING = "nothing"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PASSWORDS = _set("password passwords passwd passw passphrase passcode passwort webhook webhooks")
_SECRETS = _set("secret secrets credential credentials creds cred apikey mnemonic")
_SHORT_PASSWORDS = _set("pass pw pwd pswd psw passin passout")
_LAST_SECRETS = _set("token tok auth authorization bearer jwt cookie cookies")
_LAST_ANYTHING = _set("pat sas otp totp sid sig signature session sessionid hmac salt sk ak dsn")
_LOGINS = _set("login user username userpass userpwd u")
# Services and accounts whose key or token is a secret, whatever it looks like.
_SERVICES = _set(
    "anthropic aws azure bitbucket clearml cohere comet dagshub databricks datadog deepseek discord docker"
    " dockerhub fireworks gcp gemini gh github gitlab google grafana groq hf huggingface kaggle labelbox langchain"
    " langfuse langsmith litellm minio mistral mlflow modal mongo mysql neptune newrelic ngc notion nvidia openai"
    " openrouter pagerduty perplexity pinecone postgres qdrant redis replicate roboflow runpod sendgrid sentry"
    " slack stripe swanlab telegram together twilio wandb weaviate xai"
)
_OWNERS = _SERVICES | _set(
    "access account admin api auth bearer client cipher crypto db database deploy encryption ftp git http key"
    " license login mail master me my oauth pg private proxy refresh root service session shared signing smtp ssh"
    " storage store subscription sudo user vault"
)
_KEYS = _set(
    "access account api auth cipher crypto decryption deploy encryption hmac jwt license master private secret"
    " service shared signing ssh storage subscription"
)
# As the last word: a place, a kind, a measure of the secret, or an error about it.
_ABOUT = _set(
    "algorithm backend check column count denied dim dir enabled endpoint env error exception expired expiry"
    " failed failure field file files folder format helper host id ids invalid kind len length limit manager"
    " method missing mode name names parallel path paths policy prefix provider rate required scope size source"
    " stdin store ttl type uri url variable version warning"
)
# Tokens of a text that a model reads.
_OF_TEXT = _set(
    "added assistant audio begin blank bod boi bos byte class cls code completion control draft end eod eoi eom"
    " eos eot extra fim first frame generated header ignore image img initializer input instance label lang"
    " language last latent mask max mem message middle min modifier new next null num output pad patch per"
    " placeholder prefix prompt repeat reserved response role sep separator sink soi sot space speaker special"
    " start state stop suffix system target task text think time tool trigger unk unknown video vision word"
)
# Keys of data, of models and of shortcuts.
_OF_DATA = _OF_TEXT | _set(
    "answer attention attn batch bias cache caption checkpoint chosen column config content cross data dataset"
    " depth dict dim embed embedding eval feature foreign group hash head heads id index json kv lang layer log"
    " loss lookup map messages metric metrics model module monitor name norm num object optimizer order param"
    " partition primary proj public query question rejected reward rope routing sample score shard sort split step"
    " table tensor train value values weight weights yaml"
)
_PASSES = _set(
    "all backward band by data each eval first forward full high last low max min multi num one optimizer per"
    " second single third train two validation warmup"
)
# In front of a name: the option switches something, and is followed by no value.
_SWITCHES = _set(
    "allow ask check disable enable generate has hide is need no print prompt require reset rotate save show skip"
    " test use validate verify with without"
)

_PIECES = re.compile(r"[./:\[\]{}\s]+|__")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_GLUED = re.compile(
    r"(.+?)(passwords?|passwd|passphrase|secrets?|credentials?|token|(?:apikey|accesskey|secretkey|privatekey)s?)$"
)
_GLUED_TO_OWNER = re.compile(r"(.+?)(keys?|pass|pwd|pw)$")


def _words(piece: str) -> list[str]:
    """The words of a name, in lower case: "wandbApiKey", "WANDB_APIKEY" and "wandb-api-key" are three."""
    words: list[str] = []
    for word in map(str.lower, _WORDS.findall(piece)):
        glued = _GLUED.fullmatch(word)
        if glued is None:
            glued = _GLUED_TO_OWNER.fullmatch(word)
            glued = glued if glued is not None and glued[1] in _OWNERS else None
        for part in glued.groups() if glued is not None else (word,):
            key = _GLUED_TO_OWNER.fullmatch(part)
            words += key.groups() if key is not None and key[1] in _OWNERS else (part,)
    return words


@functools.lru_cache(4096)
def _holds(name: str) -> _Holds:
    pieces = [words for piece in _PIECES.split(name[:200]) if (words := _words(piece))]
    if not pieces:
        return _Holds.NOTHING
    words = [word for piece in pieces for word in piece]
    holds = _of_words(words, pieces[-1], pieces[-2] if len(pieces) > 1 else [])
    return _Holds.ANYTHING if holds != _Holds.NOTHING and words[0] in _SWITCHES else holds


def _of_words(words: list[str], own: list[str], before: list[str]) -> _Holds:
    """``own``: the words of the last piece of a dotted name; ``before``: of the piece in front of it."""
    last, of_text = own[-1], not _OF_TEXT.isdisjoint(own)
    if "webhook" in words:
        return _Holds.PASSWORD
    if last in _ABOUT:
        return _Holds.NOTHING
    if not _PASSWORDS.isdisjoint(words):
        return _Holds.PASSWORD
    if not _SECRETS.isdisjoint(words):
        return _Holds.SECRET
    if last in _SHORT_PASSWORDS:
        return _Holds.NOTHING if not _PASSES.isdisjoint(own) else _Holds.PASSWORD
    if any(first in _KEYS and second in ("key", "keys") for first, second in itertools.pairwise(words)):
        return _Holds.SECRET
    if last in ("key", "keys"):
        if not _OF_DATA.isdisjoint(own if len(own) > 1 else (*before, *own)):
            return _Holds.NOTHING
        if not _SERVICES.isdisjoint(words):
            return _Holds.SECRET
        return _Holds.KEY if last == "key" else _Holds.ANYTHING
    if last in _LAST_SECRETS or (last == "tokens" and not _OWNERS.isdisjoint(own)):
        return _Holds.NOTHING if of_text else _Holds.SECRET
    if last in _LOGINS:
        return _Holds.LOGIN
    named = last in _LAST_ANYTHING or (len(words) == 1 and last in _SERVICES)
    return _Holds.ANYTHING if named or ("token" in words and not of_text) else _Holds.NOTHING


_NO_SECRETS = _set("true false yes no on off none null auto default required optional") | {"", MASK}
_WAYS_TO_LOG_IN = _set(
    "anonymous aws azure basic bearer digest disabled enabled gcp google iam kerberos key ldap mtls negotiate"
    " ntlm oauth oauth2 password plain ssh ssl sso tls token"
)
_SPECIAL_TOKEN = re.compile(r"<[^\s>]{0,40}>|\[[^\s\]]{0,40}\]|</s>")
_PLACE = re.compile(r"(?:~|\.{0,2}/|[A-Za-z]:\\|[A-Za-z][\w+.-]*://)")
_FILE = re.compile(
    r"[^\s:;=]*[\w-]\.(?:json|ya?ml|toml|pem|key|crt|cer|txt|env|cfg|ini|conf|p12|pfx|pub|py|gpg|sqlite)"
)
_FOLDERS = re.compile(r"[a-z_.-]+(?:/[a-z_.-]+)+")
# A field of the data, a column, a place in a configuration, a name in a program.
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_.,/-]*|[A-Z]?[a-z]+|[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_CODE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_RUNS = re.compile(r"[A-Z][a-z]+|[A-Z]+|[a-z]+|\d+")
_PARTS = re.compile(r"[^A-Za-z0-9]+")
_SYMBOLS = re.compile(r"[!@#$%^&*?~|\\]")
_LOGIN = re.compile(r"(?!\d+:\d+$)[^\s:/@]{1,200}:(?!//)\S.*", re.DOTALL)


def _looks_random(value: str) -> bool:
    """Whether letters and digits alternate, or a symbol of passwords is among them, in at least eight characters."""
    if len(value) < 8 or _is_place(value):
        return False
    if _SYMBOLS.search(value) and re.search(r"\d", value) and re.search("[A-Za-z]", value) and " " not in value:
        return True
    return any(_alternates(part) for part in _PARTS.split(value[:4096]) if len(part) >= 8)


def _alternates(part: str) -> bool:
    runs = len(_RUNS.findall(part))
    has_digits = any(character.isdigit() for character in part)
    has_letters = any(character.isalpha() for character in part)
    return has_letters and (runs >= 3 if has_digits else runs >= 6 and len(part) >= 16)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_place(value: str) -> bool:
    """Whether the value is a path or an address, which names where the secret is. A secret may begin with a slash."""
    if _FILE.fullmatch(value) or _FOLDERS.fullmatch(value):
        return True
    parts = value.split("/")
    return _PLACE.match(value) is not None and not any(len(part) >= 20 and _alternates(part) for part in parts)


def _is_secret_value(holds: _Holds, value: str) -> bool:
    value = value.strip().strip("\"'")
    if holds == _Holds.NOTHING or value.lower() in _NO_SECRETS:
        return False
    if holds == _Holds.PASSWORD:
        return True
    if holds == _Holds.LOGIN:
        return _LOGIN.fullmatch(value) is not None
    if holds == _Holds.ANYTHING:
        return _looks_random(value)
    if _is_number(value) and not (value.isdigit() and len(value) >= 8):
        return False
    if _is_place(value) or _SPECIAL_TOKEN.fullmatch(value) or value.lower() in _WAYS_TO_LOG_IN:
        return False
    return holds == _Holds.SECRET or (
        any(character.isalpha() for character in value) and (not _IDENTIFIER.fullmatch(value) or _looks_random(value))
    )


def is_secret(name: str, value: str) -> bool:
    """Whether an option, a variable or a field of this name holds a secret, and this value can be one."""
    holds = _holds(name)
    if holds == _Holds.PASSWORD and _words(name)[-1:] and _words(name)[-1] in _SHORT_PASSWORDS:
        bare = value.strip().strip("\"'")
        if (_is_number(bare) and len(bare) < 4) or _PLACE.match(bare):  # --pass 2, PWD=/home/me
            return False
    return _is_secret_value(holds, value)


# -- formats -----------------------------------------------------------------------------------------------------------

# What services put in front of their keys, as their documentation and the rules of gitleaks have them, and how many
# characters follow at least.
_PREFIXES = (
    # Models, trackers, clouds for training
    r"(?:nvapi|xai|pplx)[_-](?=[\w-]{0,200}[\dA-Z])[\w-]{16,}",
    # A hyphen and more hyphens are the name of a pod: hf-model-predictor-00001-deployment.
    r"(?:hf|api_org|r8|gsk|fw|rpa|tgp_v1|wandb_v1|pcsk|lsv2_(?:pt|sk))"
    r"(?:_(?=[\w-]{0,200}[\dA-Z])[\w-]{16,}|-(?=\w{0,200}[\dA-Z])\w{16,})",
    r"sk-(?=[\w-]{0,200}\d)[\w-]{16,}",
    r"dapi[a-f0-9]{32}",
    # Code and packages
    r"(?:gh[pousr]|github_pat|npm|dckr_pat|dckr_oat|rubygems|pnu|glc|glsa|sntry[su]|ntn|lin_api|pscale_(?:tkn|oauth|pw))_\w{16,}",
    r"gl(?:pat|dt|ft|rt|oas|ptt|soat|agent|cbt|imt|ffct)-[\w.-]{16,}",
    r"(?:pypi|pul|ico|xkeysib|ATATT3x?|PMAK|NRAK|HRKU|shippo_live|shippo_test)-?[\w-]{30,}",
    r"ATCTT3[\w-]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    r"(?:sk|rk|pk)_(?:test|live|prod)_\w{10,}",
    # Clouds
    r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}",
    r"ABSK[A-Za-z0-9+/]{40,}=*|LTAI[A-Za-z0-9]{12,}",
    r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{16,}|1//0[\w-]{20,}|AQVN[\w-]{35,}",
    r"do[opr]_v1_[a-f0-9]{32,}|dp\.(?:pt|st|ct|sa)\.[\w.-]{20,}|dt0c01\.\w{16,}\.\w{16,}",
    r"hv[sbr]\.[\w-]{20,}|ops_eyJ[\w+/=-]{20,}|AGE-SECRET-KEY-1\w{20,}",
    r"[\w~.]{3}\dQ~[\w~.-]{31,34}",
    # Messages
    r"xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}",
    r"\d{8,10}:AA[\w-]{30,}",
    # JSON web tokens, also cut short
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
)
_FORMATS = re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_PREFIXES)})")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,100}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,100}-----|\Z)", re.DOTALL
)
# The path behind these hosts is the secret.
_HOOKS = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/"
    r"|webhook\.office\.com/webhookb2/|api\.telegram\.org/bot)[^\s\"'<>]{1,4096}"
)

# -- places ------------------------------------------------------------------------------------------------------------

# https://user:password@host and https://token@host, also with one slash, as in a path. Behind host:port/ an @ is of
# the path.
_PASSWORD_IN_URL = re.compile(
    r"(:/{1,3})([^\s/:@?#\"'\[\]<>]{0,200}):(?!\d{1,5}[/\s,]|//)[^\s\"'<>]{1,1000}@(?=[\w.\[-])"
)
_TOKEN_IN_URL = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]{0,30}):(/{1,3})([^\s/:@?#\"'\[\]<>]{1,1000})@(?=[\w.\[-])")
# Where the name in front of @ is a user or a container, unless it looks random.
_NAMES_IN_URL = _set("abfs abfss wasb wasbs ssh git sftp scp rsync hdfs git+ssh svn+ssh tcp rdzv")
_LOGIN_AT_HOST = re.compile(
    r"(?<![\w./:@+-])([A-Za-z_][\w.+-]{0,63}):(?!//|\d+@)([^\s:/@\"'<>,;()]{1,200})@(?!sha\d)"
    r"(?=[A-Za-z\d][\w.-]*(?:[/:\s]|\Z))"
)
# Only in a query: elsewhere these names mean something else.
_QUERY = re.compile(
    r"(?i)(?<=[?&;])(sig|signature|hmac|key|code|auth|sid|session|pw"
    r"|x-(?:amz|goog|oss|cos)-(?:signature|credential|security-token)|q-(?:signature|ak)|hdnts|jwt|policy)=[^\s&\"'#]{1,4096}"
)
_SIGNATURE = re.compile(r"(?i)(?<![\w-])(sig|signature)=[\w%+/=-]{16,4096}")
_HEADER = re.compile(
    r"(?i)(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie2?)"
    r"(\\?[\"']?\s{0,4}:\s{0,4}\\?[\"']?)(?!\s|<masked>)[^\"'\\\n]{1,8192}"
)
_BEARER = re.compile(r"(?i)\b(bearer|authorization[\"']?\s{0,4}=\s{0,4}[\"']?(?:basic|token))\s{1,4}[\w.~+/=-]{8,4096}")
_NETRC = re.compile(r"(?<![\w-])(login\s{1,4}[^\s\"']{1,200}\s{1,4}password\s{1,4})[^\s\"']{1,4096}")
_LOGIN_COMMANDS = _SERVICES | _set("huggingface-cli dvc")
# Options of programs that take a password.
_OPTIONS_OF = {
    "sshpass": "-p", "mysql": "-p", "mysqldump": "-p", "mysqladmin": "-p", "mariadb": "-p", "redis-cli": "-a",
    "ldapsearch": "-w", "zip": "-P", "unzip": "-P", "7z": "-p", "mongo": "-p", "mongosh": "-p",
}  # fmt: skip
_WITH_LOGIN = _set("docker podman nerdctl buildah skopeo az oc argocd helm")  # -p is a password behind ``login``

# -- text --------------------------------------------------------------------------------------------------------------

# Behind a loop: it gives nothing back. Python 3.10 does not know that. As what follows such a loop begins with none of
# what it takes, it finds the same there, and only keeps more on its stack.
_TAKES_ALL = "+" if sys.version_info >= (3, 11) else ""

# Bounded, and anchored at the start of a name: each character is matched a bounded number of times.
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,100})"
    r"(?P<between>\\{0,7}[\"']?\s{0,4}(?::=|=>|=(?!=))\s{0,4}|\\{0,7}[\"']?\s{0,4}:\s{0,4}|\s{1,4})"
)
_VALUE = re.compile(
    r"(?:\\{1,7}\"(?:[^\"\\\n]|\\(?![\\\"])){0,4096}\\{1,7}\"|\"(?:[^\"\\]|\\.){0,4096}\"|'[^']{0,4096}'"
    r"|[^\s,;&\"'\[\](){}\\]{1,4096}|\\[^\"'\s]|,(?![\s\"']|$|[\w.+-]{1,60}\s?[=:])){1,4096}"
    + _TAKES_ALL
    + r"|[\"'][^\s\"']{1,4096}",
    re.DOTALL,
)
# Behind an option or a name in a sentence.
_PROSE = _set(
    "and are as but by can cannot for from has have if in is must needs not of on or requires to was were with"
)
_MOST_WITHIN_A_VALUE = 128
_REST = re.compile(r"[^\s\"']*")
_QUOTE = re.compile(r"\\{0,7}[\"']")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
# What is an option behind an option, and no value that begins with dashes.
_PLAIN_OPTION = re.compile(r"-[A-Za-z]\d?|--?[a-z]+\d{0,2}(?:[-_.][a-z]*\d{0,2})*(?:=.*)?|--", re.DOTALL)
_SHELL_WORD = re.compile(
    r"(?:\\.|\"(?:[^\"\\]|\\.){0,4096}" + _TAKES_ALL + r"\"|'[^']{0,4096}'|<masked>|[^\s\"';&|()<>`\\]){1,4096}",
    re.DOTALL,
)
_NAME_OF_ARGUMENT = re.compile(r"([-+~]*[\w.\[\]/:@-]{1,200})=(.*)", re.DOTALL)
_HEADER_ARGUMENT = re.compile(r"([A-Za-z][\w-]{0,60}:\s?)(?!//)(.*)", re.DOTALL)
_PERCENT = re.compile(r"[^\s\"'<>%]{0,4096}(?:%[0-9A-Fa-f]{2}[^\s\"'<>%]{0,4096}){1,4096}" + _TAKES_ALL)
_ENCODED = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{16,65536}={0,2}(?![\w+/=-])")


def masked(text: str) -> str:
    """The text without the secrets in it."""
    text = _PEM.sub(MASK, text)
    if ":/" in text:
        text = _PASSWORD_IN_URL.sub(rf"\1\2:{MASK}@", text)
        text = _TOKEN_IN_URL.sub(_without_token, text)
    if "@" in text:
        text = _LOGIN_AT_HOST.sub(rf"\1:{MASK}@", text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    if "=" in text:
        text = _QUERY.sub(rf"\1={MASK}", text)
        text = _SIGNATURE.sub(rf"\1={MASK}", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _FORMATS.sub(MASK, text)
    text = _HOOKS.sub(rf"\1{MASK}", text)
    text = _NETRC.sub(rf"\1{MASK}", text)
    text = _without_assigned(text)
    text = _without_arguments(text)
    if "%" in text:
        text = _PERCENT.sub(_without_percent, text)
    return _ENCODED.sub(_without_encoded, text)


# Characters of each end. A traceback of a hundred frames has about 15,000, and its exception stands last.
_MOST_OF_AN_END = 32_768
_MOST_OF_A_HEADER = 8192
_SPACE = re.compile(r"\s")


def masked_ends(text: str) -> str:
    """``masked``, without the middle of a long text: a short time, whatever its length."""
    if len(text) <= 2 * _MOST_OF_AN_END:
        return masked(text)
    text = _PEM.sub(MASK, text)  # the only secret of any length
    begin, end = masked(text[:_MOST_OF_AN_END]), masked(text[-_MOST_OF_AN_END:])
    # What a cut has divided may not be recognised.
    begin = begin[: max((space.start() for space in _SPACE.finditer(begin[:-_MOST_OF_A_HEADER])), default=0)]
    space = _SPACE.search(end, _MOST_OF_A_HEADER)
    end = end[space.end() :] if space is not None else ""
    return f"{begin}\n[{len(text) - len(begin) - len(end)} characters are left out]\n{end}"


def _without_token(match: re.Match[str]) -> str:
    scheme, slashes, name = match.groups()
    names = scheme.lower() in _NAMES_IN_URL and not _looks_random(name)
    return match[0] if names or name == MASK else f"{scheme}:{slashes}{MASK}@"


def _without_assigned(text: str) -> str:
    position, judged, parts = 0, 0, []
    while match := _ASSIGNED.search(text, position):
        name, between, end = match["name"], match["between"], match.end()
        parts.append(text[position:end])
        position = end  # the value may be a name itself
        # A value after a space counts only behind an option.
        takes_value = between.strip() and (name[0] != "-" or not between[-1].isspace())
        if (takes_value or (name[0] == "-" and not between.strip())) and _holds(name) != _Holds.NOTHING:
            # Inside of a value that stays, each name would judge the rest of it again.
            value = _VALUE.match(
                text, end, end + (RECORDED_FILES.most_value_chars if end >= judged else _MOST_WITHIN_A_VALUE)
            )
            judged = max(judged, value.end() if value is not None else 0)
            if value is not None and _is_assigned(name, between, value[0], text[value.end() : value.end() + 1]):
                value = _VALUE.match(text, end, end + RECORDED_FILES.most_value_chars) or value
                opened = _QUOTE.match(value[0])
                quote = opened[0] if opened is not None else ""
                closed = quote if len(value[0]) > len(quote) and value[0].endswith(quote) else ""
                parts.append(quote + MASK + closed)
                # What is decided by its begin is masked as a whole.
                whole = value.end() < end + RECORDED_FILES.most_value_chars
                position = value.end() if whole else _REST.match(text, value.end()).end()  # type: ignore[union-attr]
    return "".join(parts) + text[position:]


def _is_assigned(name: str, between: str, value: str, following: str) -> bool:
    if value in _PROSE:
        return False
    if not between.strip():
        return _may_be_value(name, value) and is_secret(name, value)
    if following and following in "([" and value[0] not in "\"'\\":  # a program: token = next(tokens)
        return False
    if ":" in between and "=" not in between and not _QUOTE.match(between):
        return _is_secret_of_prose(name, value)
    if _CODE.fullmatch(value) and _holds(name) != _Holds.PASSWORD:
        return False
    # "key" alone is a parameter of many functions.
    alone = name.lower() == "key" and "=" in between[:2]
    return is_secret(name, value) and (not alone or _is_secret_value(_Holds.ANYTHING, value))


def _may_be_value(option: str, word: str) -> bool:
    """Whether the word behind an option may be its value, and is no option itself: a password may begin with dashes."""
    with_digits = _holds(option) == _Holds.PASSWORD and re.search(r"\d", word)
    return not _PLAIN_OPTION.fullmatch(word) or bool(with_digits)


def _is_secret_of_prose(name: str, value: str) -> bool:
    """``Name: value``, which is a header, a line of YAML, or a sentence about a name."""
    holds, words = _holds(name), _words(name)
    lone = len(words) == 1 and _SECRETS.isdisjoint(words) and _PASSWORDS.isdisjoint(words)  # pass: kernels
    if holds in (_Holds.PASSWORD, _Holds.SECRET) and not lone:
        return is_secret(name, value) and not value.startswith("//")
    random = holds in (_Holds.PASSWORD, _Holds.SECRET, _Holds.ANYTHING) and len(value) >= 6
    return random and _is_secret_value(_Holds.ANYTHING, value)


def _without_arguments(text: str, depth: int = 2) -> str:
    """The text as words of a shell: what only the place of an argument shows."""
    words = list(_SHELL_WORD.finditer(text))
    plain = [word[0].strip("\"'") for word in words]
    position, parts = 0, []
    for word, kept, hidden in zip(words, plain, _by_place(plain), strict=True):
        if hidden is None and depth and " " in kept:  # bash -c "..."
            hidden = word[0].replace(kept, _without_arguments(kept, depth - 1))
        if hidden is not None and kept not in _PROSE and hidden not in (kept, word[0]):
            parts += [text[position : word.start()], hidden]
            position = word.end()
    return "".join(parts) + text[position:]


def _without_encoded(match: re.Match[str]) -> str:
    """Base64 of a text with a secret is masked."""
    return MASK if len(decoded := _decoded(match[0])) >= 8 and _without_format(decoded) != decoded else match[0]


def _without_percent(match: re.Match[str]) -> str:
    """What is written as %41 and holds a secret is shown decoded."""
    plain = unquote(match[0])
    hidden = _without_format(plain)
    return hidden if hidden != plain else match[0]


def _decoded(text: str) -> str:
    """What base64 of a text says; "" if it is none."""
    text = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return decoded if all(character.isprintable() or character in "\t\r\n" for character in decoded) else ""


def _without_format(text: str) -> str:
    """``masked`` but for what is encoded once more."""
    if _LOGIN.fullmatch(text) and " " not in text:  # what follows "Basic"
        return MASK
    return _without_assigned(_FORMATS.sub(MASK, _PEM.sub(MASK, text)))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with its secrets masked; the names stay."""
    words = list(arguments)
    return [
        _masked_argument(word) if hidden is None else hidden
        for word, hidden in zip(words, _by_place(words), strict=True)
    ]


def _by_place(words: Sequence[str]) -> Iterator[str | None]:
    """For each argument what takes its place because of the arguments in front of it; None where they do not matter."""
    option, several = "", False  # whose values these arguments may be
    program, logs_in = "", False
    setenv = False  # the next argument is a name
    for word in words:
        name = word.rpartition("/")[2].lower()
        if word.startswith("-") and program and word.startswith(password := _OPTIONS_OF.get(program, "\0")):
            option, several = ("--password", False) if word == password else ("", False)
            yield None if word == password else f"{password}{MASK}"
            continue
        if option and word == MASK:
            yield None
            option = option if several else ""
            continue
        if option and _may_be_value(option, word) and is_secret(option, word):
            yield MASK
            option = option if several else ""
            continue
        if logs_in and program in _WITH_LOGIN and word == "-p":
            option, several = "--password", False
        elif _OPTION.fullmatch(word):
            option, several = word, _words(word)[-1:] != [] and _words(word)[-1].endswith("s")
        else:
            option = ""
            if logs_in and program in _LOGIN_COMMANDS and _looks_random(word):
                yield MASK
                continue
            if setenv:
                option = word
            if name in _OPTIONS_OF or name in _WITH_LOGIN or name in _LOGIN_COMMANDS:
                program, logs_in = name, False
            elif word == "login":
                logs_in = True
        setenv = word == "setenv"
        yield None


def _masked_argument(argument: str) -> str:
    if (assigned := _NAME_OF_ARGUMENT.fullmatch(argument)) is not None:
        if is_secret(assigned[1], assigned[2]):
            return f"{assigned[1]}={MASK}"
        if assigned[2][:1] in "{[" and (fields_ := _masked_json(assigned[2])) is not None:
            return f"{assigned[1]}={fields_}"
    elif (header := _HEADER_ARGUMENT.fullmatch(argument)) is not None:
        if _holds(header[1]) in (_Holds.PASSWORD, _Holds.SECRET, _Holds.ANYTHING) and is_secret(header[1], header[2]):
            return f"{header[1]}{MASK}"
    elif argument[:1] in ("{", "[") and (fields_ := _masked_json(argument)) is not None:
        return fields_
    return masked(argument)


def _masked_json(text: str) -> str | None:
    """The JSON text with its secrets masked; None if it is no JSON, or holds none. What is nested too deeply
    is masked."""
    try:
        value = json.loads(text)
        hidden = without_secrets(value)
        return json.dumps(hidden, ensure_ascii=False) if hidden != value else None
    except ValueError:
        return None
    except RecursionError:  # deeper than Python reads
        return MASK


def option_of_mask(arguments: Iterable[str]) -> str:
    """The option or variable whose value is masked in this command line, so that it cannot be run; "" for none."""
    before = ""
    for argument in arguments:
        if MASK in argument:
            return before if argument == MASK and before else argument.partition(MASK)[0].rstrip("=: \"'") or argument
        before = argument
    return ""


def without_secrets(value: Any, name: str = "", kept: frozenset[str] = frozenset(), _depth: int = 0) -> Any:
    """The value of a field with this name, secrets masked: texts by themselves and by the name, lists of texts as
    command lines, dictionaries and data classes field by field. What is nested too deeply to be searched is masked.
    ``kept``: names of fields that stay as they are."""
    if name in kept:
        return value
    if isinstance(value, str):
        return MASK if name and is_secret(name, value) else masked(value)
    if _depth > RECORDED_FILES.most_redacted_depth and (isinstance(value, (dict, list, tuple)) or is_dataclass(value)):
        return MASK
    inner = _depth + 1
    if isinstance(value, dict):
        return {key: without_secrets(item, _inner(name, key), kept, inner) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value) and _holds(name) == _Holds.NOTHING:
            hidden: Sequence[Any] = masked_arguments(value)
        else:
            hidden = [without_secrets(item, name, kept, inner) for item in value]
        return tuple(hidden) if isinstance(value, tuple) else hidden
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{key: without_secrets(item, key, kept, inner) for key, item in own.items()})
    number = isinstance(value, int) and not isinstance(value, bool)
    return MASK if number and name and _holds(name) == _Holds.PASSWORD and is_secret(name, str(value)) else value


def _inner(name: str, key: Any) -> str:
    """The name of a field inside of one: all fields of ``credentials`` are secret."""
    return name if name and _holds(name) in (_Holds.PASSWORD, _Holds.SECRET) else str(key)
