"""``diag help``: the guides and concepts of the documentation in the terminal, and each command's own help.

diag/guides, diag/concepts and the pages next to them are links to docs/, so a wheel contains the pages and nothing is
written twice.
"""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

import typer

from diag.cli.help_search import Passage, passages_about, words_of
from diag.errors import DiagError, ExitCode
from diag.words.terminal import console, say

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from importlib.resources.abc import Traversable

_FOLDERS = ("guides", "concepts")
_EXIT_CODES = "exit-codes"
_POLICY = "policy"
_JSON = "json"
_GLOSSARY = "glossary"
_SINGLE = ("getting-started", "launchers", "python-api")  # pages of docs/ itself


def pages(folder: str) -> Mapping[str, Traversable]:
    """The pages of one folder by topic."""
    by_name = {page.name.removesuffix(".md"): page for page in files("diag").joinpath(folder).iterdir()}
    return {name: page for name, page in sorted(by_name.items()) if name != "index"}


def _pages() -> Mapping[str, Traversable]:
    found = {name: page for folder in _FOLDERS for name, page in pages(folder).items()}
    return {**found, **{name: files("diag").joinpath(f"{name}.md") for name in (*_SINGLE, _GLOSSARY)}}


def terms() -> Mapping[str, str]:
    """The meaning of each term of the glossary, in lower case."""
    rows = re.findall(r"^\| (?!-)(.+?) \| (.+) \|$", _pages()[_GLOSSARY].read_text("utf-8"), re.M)
    return {
        term.strip(): for_terminal(meaning) for names, meaning in rows for term in names.lower().split(", ") if meaning
    }


def _term(asked: str) -> str:
    """The term of the glossary that has these words, in any order and with any numbers, or that is what they count
    ("13 not looked for"); "" if there is none."""
    words = _any_numbers(asked)
    by_words = {tuple(sorted(_any_numbers(term))): term for term in reversed([*terms()])}
    counted = words[1:] if words[:1] == ["0"] else words
    return by_words.get(tuple(sorted(words)), "") or by_words.get(tuple(sorted(counted)), "")


def _any_numbers(text: str) -> list[str]:
    return ["0" if word[0].isdigit() else word for word in words_of(text)]


def _about(asked: str) -> list[Passage]:
    return passages_about(asked, {name: page.read_text("utf-8") for name, page in _pages().items()})


def topics(begun: str = "") -> list[str]:
    """Every topic that begins with ``begun``; also used for shell completion."""
    from diag.cli.main import COMMANDS

    return [
        name for name in dict.fromkeys((*COMMANDS, *_pages(), _EXIT_CODES, _JSON, _POLICY)) if name.startswith(begun)
    ]


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="A command, a guide, a concept, glossary, json, exit-codes, policy, the id of a finding or a hang "
            "class, a key of --json, an option, or words of an answer. After policy: only the thresholds of this "
            "topic; after json: only this command.",
            autocompletion=topics,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain a command, a guide (such as traces) or a concept (such as verdict). Without a topic, list them."""
    from diag.cli.main import COMMANDS

    if not words:
        _list_topics()
        return
    narrowed = len(words) == 2 and words[0] in (_POLICY, _JSON)
    topic, of = (words[0], words[1]) if narrowed else (" ".join(words), None)
    begun = topics(topic)
    topic = begun[0] if len(begun) == 1 else topic
    term = "" if begun else _term(topic)
    known = f"{topic if _any_numbers(term) == _any_numbers(topic) else term}: {terms()[term]}" if term else ""
    if not begun and (meanings := [meaning for meaning in (known, _meaning(topic)) if meaning]):
        say("\n".join(meanings))
        return
    if not begun and (found := _key_meanings(topic) or _column_meanings(topic) or _option_meanings(context, topic)):
        say(found)
        return
    if topic not in begun and (places := _pages_about(topic)):
        say(f"{topic}: read {places}")
        return
    if topic not in begun:
        raise _no_topic(topic, [*topics(), *terms()], "diag help", _about(topic))
    if topic == _EXIT_CODES:
        for code in ExitCode:
            say(f"{int(code)}  {code.name:16}{code.meaning}")
    if topic == _POLICY:
        _show_policy(of)
    if topic == _JSON:
        _show_json(of)
    if topic in COMMANDS:
        _show_command(context, topic)
    if topic in _pages():
        _show_page(_pages()[topic].read_text("utf-8"))


def _list_topics() -> None:
    from diag.cli.main import COMMANDS

    say("diag help TOPIC explains a command, a guide or a concept.")
    say(f"\nCommands: {', '.join(COMMANDS)}")
    for folder in _FOLDERS:
        say(f"\n{folder.capitalize()}:")
        for name, page in pages(folder).items():
            say(f"  {name:18}{_title(page)}")
    say("\nMore:")
    for name in _SINGLE:
        say(f"  {name:18}{_title(_pages()[name])}")
    say(
        f"\nAlso: {_GLOSSARY}, {_JSON} (keys of --json), {_EXIT_CODES}, {_POLICY} (thresholds), the id of any finding "
        "or hang class (such as slow-link), any key of --json, any option, and any word of an "
        'answer (such as "others wait")'
    )


def _title(page: Traversable) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def _meaning(id: str) -> str:
    """What the id of a finding or of a hang class means, or what lowers a confidence; "" for any other word."""
    from diag.diagnoses.registry import DIAGNOSES
    from diag.hang.classes import CLASSES
    from diag.words.wording import DOUBTS, sentence

    for listed in DIAGNOSES:
        if id in (diagnosis := listed.diagnosis).means:
            return f"{id}: {diagnosis.means[id]}\nLooked for as: {listed.question}. Needs {diagnosis.needs}"
    if feature := next((feature for feature, words in DOUBTS.items() if words == id.lower()), ""):
        row = re.search(rf"^\| `{feature}` \| (?:1: )?(.+?) \|", _pages()["confidence"].read_text("utf-8"), re.M)
        meaning = f" {sentence(row[1])}." if row else ""
        return f"{id}: lowers the confidence.{meaning} See diag help confidence."
    return f"{id}: {CLASSES[id].title}. `diag triage` says what to do about it." if id in CLASSES else ""


def _key_meanings(name: str) -> str:
    """What a key of ``--json`` means, a line for each meaning; "" if there is none of this name."""
    from diag.show.json_keys import meanings

    found = meanings(name).items()
    return "\n".join(f"{name} (diag {', '.join(commands)} --json): {meaning}" for meaning, commands in found)


def _column_meanings(heading: str) -> str:
    """What a column of ``diag analyze --tables`` means, a line for each meaning; "" if there is none of this name."""
    from diag.show.breakdowns import meanings

    found = [meaning for heads, meaning in meanings() if heading.lower() in map(str.lower, heads)]
    return "\n".join(f"{heading} (diag analyze --tables): {meaning}" for meaning in found)


def _option_meanings(context: typer.Context, name: str) -> str:
    """What an option does, a line for each meaning; "" if no command has it."""
    from diag.cli.main import COMMANDS

    option = f"--{name.removeprefix('--')}"
    found: dict[str, list[str]] = {}
    for command in COMMANDS:
        made = context.find_root().command.get_command(context, command)  # type: ignore[attr-defined]
        for parameter in made.params:
            if option in (*parameter.opts, *parameter.secondary_opts) and getattr(parameter, "help", None):
                found.setdefault(" ".join(parameter.help.split()), []).append(command)
    return "\n".join(f"{option} (diag {', '.join(commands)}): {meaning}" for meaning, commands in found.items())


def _show_policy(name: str | None) -> None:
    """Prints the thresholds of a topic, or of every topic: value, unit, meaning and origin of each."""
    from diag.policy import rows, topics

    every = topics()
    if name is not None and name not in every:
        raise _no_topic(name, every, f"diag help {_POLICY}")
    for topic in [every[name]] if name is not None else every.values():
        fixed = " (fixed)" if topic.fixed else ""
        say(f"[{topic.name}]{fixed}  {topic.meaning}")
        for row in rows(topic):
            say(f"  {row.name} = {row.value}  ({row.unit}) {'; '.join(filter(None, (row.meaning, row.origin)))}")
        say("")
    if name is None:
        say("A file for --policy has a table for each topic. The values of topics that are fixed cannot be overridden.")


def _show_json(name: str | None) -> None:
    """Prints what the keys of one command's ``--json`` mean, or of every command's."""
    from diag.show.json_keys import documents, lines

    if name is not None and name not in documents():
        raise _no_topic(name, documents(), f"diag help {_JSON}")
    for command in [name] if name is not None else documents():
        say(f"diag {command} --json")
        for line in lines(command):
            say(f"  {line}")
        say("")
    say("Times are in nanoseconds, sizes in bytes, shares and confidences from 0 to 1.")


def _no_topic(name: str, every: Collection[str], listed_by: str, written_in: Collection[Passage] = ()) -> DiagError:
    """``written_in``: passages that are about it."""
    names = dict.fromkeys(every)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    if written_in and not _is_slip(name, names):
        hint = f"read about it: {_listed(written_in)}. "
    return DiagError(f"there is no topic {name}", hint=f"{hint}`{listed_by}` lists them", exit_code=ExitCode.USAGE)


def _pages_about(asked: str) -> str:
    """Where to read about the words; "" where one of them is on no page, or they are a slip of the keyboard or look
    like a name: an option, an id, a key."""
    if re.fullmatch(r"\S*[-_]\S*", asked) or _is_slip(asked, [*topics(), *terms()]):
        return ""
    written = {word for page in _pages().values() for word in words_of(page.read_text("utf-8"))}
    return _listed(_about(asked)) if written.issuperset(words_of(asked)) else ""


def _is_slip(name: str, names: Collection[str]) -> bool:
    return bool(get_close_matches(name, names, n=1, cutoff=0.85))


def _listed(places: Collection[Passage]) -> str:
    return " or ".join(f"`diag help {place.page}` ({place.heading})" for place in places)


def _show_command(context: typer.Context, name: str) -> None:
    command = context.find_root().command.get_command(context, name)  # type: ignore[attr-defined]
    say(command.get_help(command.make_context(f"diag {name}", [], resilient_parsing=True)))
    shown = [topic for topic, page in _pages().items() if f"\ndiag {name}" in page.read_text("utf-8")]
    if shown:
        say(f"\nGuides that use it: {', '.join(f'diag help {topic}' for topic in shown)}\n")


def _show_page(text: str) -> None:
    """Prints a page: rendered on a terminal, as Markdown to a file or a pipe."""
    if not sys.stdout.isatty():
        say(for_terminal(text))
        return
    from rich.markdown import Markdown

    console().print(Markdown(for_terminal(text), code_theme="ansi_light", hyperlinks=False))


def for_terminal(text: str) -> str:
    """The page without images, comments and Sphinx's directives. A link to another topic becomes its command."""
    text = re.sub(r"^```\{.*?^```\n|^ *<!--.*?-->\n|^!\[.*\]\(.*\)\n", "", text, flags=re.S | re.M)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", _link, text)


def _link(match: re.Match[str]) -> str:
    words, target = match.groups()
    if target.startswith("http"):
        return f"{words} ({target})"
    topic = re.sub(r"^.*/|\.md.*$", "", target)
    return f"{words} (`diag help {topic}`)" if topic in _pages() else words
