"""Determine from a script how many ranks torchrun starts on each node.

torchrun reads the number from the option `--nproc-per-node`, in any of its spellings, or from
PET_NPROC_PER_NODE. Comments, `echo` and options of other commands are ignored. If the script computes the
number, it is unknown before the launch, and the world size recorded at run time is used instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harness.core.input_limits import bounded_int

_ANY_OPTION = re.compile(r"--nproc[_-]per[_-]node[= ](\d{1,9})\b", re.ASCII)
_SEPARATORS = ";&|()\n"
_SHELLS = {"sh", "bash", "dash", "zsh"}
_BEFORE = {"exec", "env", "nohup", "time", "command", "then", "do", "else", "if", "while", "until", "!", "{"}
"""Words that can precede a command's name in a script."""
_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}$]*))?\})")
OF_DEVICES = ("gpu", "auto")
COMPUTED = (*OF_DEVICES, "cpu", "xpu")
"""Words that torchrun accepts instead of a number of processes."""


@dataclass(frozen=True)
class Processes:
    """The number of ranks on each node, as determined from a script."""

    count: int | None
    """The number of ranks, or None if the script computes it or no torchrun command is recognized."""
    wrong: str = ""
    """The value given for the number of ranks if torchrun does not accept it, otherwise ""."""
    guess: int = 1
    """The number of ranks, or the best estimate if the number is unknown."""


def read(script: str, env: Mapping[str, str], gpus: int | None = None) -> Processes:
    """Return how many ranks the torchrun in a script starts. `gpus` is the number of GPUs per pod."""
    option = _ANY_OPTION.search(script)  # A wrapper script may pass its own option on to torchrun.
    processes = _read(script, env, gpus)
    return replace(processes, guess=processes.count or (int(option[1]) if option else 0) or 1)


def _read(script: str, env: Mapping[str, str], gpus: int | None) -> Processes:
    variables = dict(env)
    values: list[str | None] = []
    for words in _programs(script, variables):
        arguments = _arguments(words)
        if arguments is not None:
            values.append(
                _expanded(_option(arguments) or variables.get("PET_NPROC_PER_NODE", "1"), variables)
            )
    if not values:
        return Processes(None)
    if len(set(values)) > 1:
        return Processes(None)  # The command that runs the training is not known.
    text = values[0]
    if text is None or (text in COMPUTED and not (text in OF_DEVICES and gpus)):
        return Processes(None)
    if text in OF_DEVICES:
        return Processes(gpus)
    if re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        return Processes(bounded_int(text))
    return Processes(None, text)


def _programs(script: str, variables: dict[str, str]) -> Iterator[list[str]]:
    """Yield the words of each command that a script runs.

    Variables that the script sets are added to `variables`.
    """
    for words in commands(script):
        rest = list(words)
        while rest and (
            rest[0] in _BEFORE or rest[0] in {"export", "declare"} or _ASSIGNMENT.fullmatch(rest[0])
        ):
            if set_ := _ASSIGNMENT.fullmatch(rest[0]):
                value = _expanded(set_[2], variables)
                if value is None:
                    variables.pop(set_[1], None)
                else:
                    variables[set_[1]] = value
            rest = rest[1:]
        if (
            rest
            and rest[0].rpartition("/")[2] in _SHELLS
            and any(re.fullmatch(r"-\w*c", w) for w in rest[:-1])
        ):
            at = next(n for n, word in enumerate(rest) if re.fullmatch(r"-\w*c", word))
            yield from _programs(rest[at + 1], variables)
        elif rest:
            yield rest


def _arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of a torchrun command, or None for other commands."""
    name = words[0].rpartition("/")[2]
    if name == "torchrun":
        return words[1:]
    if name.startswith("python") and "-m" in words[:-1]:
        at = words.index("-m")
        if words[at + 1] in _MODULES:
            return words[at + 2 :]
    return None


def _option(arguments: list[str]) -> str | None:
    """Return the value of --nproc-per-node if it precedes the script's name, otherwise None."""
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            return None
        name, separator, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name.startswith("nproc"):
            return value if separator else next(rest, "")
        if not separator and name not in {
            "standalone",
            "no_python",
            "run_path",
            "m",
            "module",
            "virtual_local_rank",
        }:
            next(rest, "")
    return None


def _expanded(text: str, variables: Mapping[str, str]) -> str | None:
    """Return a word with its variables expanded, or None if a variable's value is known only at run time."""

    def value(match: re.Match[str]) -> str:
        name, otherwise = match[1] or match[2], match[3]
        return variables.get(name) or (otherwise if otherwise is not None else "$")

    text = _VARIABLE.sub(value, text)
    return None if "$" in text or "`" in text else text.strip()


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in a script. Quotes, comments and here-documents are removed."""
    text = re.sub(r"\\\n", " ", script)
    text = re.sub(r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*)\n.*?\n\s*\2(?=\n|$)", r"\1", text, flags=re.DOTALL)
    words, word, at = list[str](), "", 0
    in_word = False
    while at < len(text):
        char = text[at]
        if char.isspace() or char in _SEPARATORS or (char == "#" and not in_word):
            words += [word] * in_word
            word, in_word = "", False
            if char in _SEPARATORS and words:
                yield words
                words = []
            at = (text + "\n").find("\n", at) if char == "#" else at + 1
        else:
            piece, at = _piece(text, at)
            word, in_word = word + piece, True
    words += [word] * in_word
    if words:
        yield words


def _piece(text: str, at: int) -> tuple[str, int]:
    """Return the next part of a word, without its quotes, and the position after that part."""
    char = text[at]
    if char == "\\":
        return text[at + 1 : at + 2], at + 2
    if char == "'":
        end = (text + "'").find("'", at + 1)
        return text[at + 1 : end], end + 1
    if char == '"':
        match = re.compile(r'"((?:[^"\\]|\\.)*)("|$)', re.DOTALL).match(text, at)
        end = match.end() if match else len(text)
        return re.sub(r'\\(["\\$`])', r"\1", match[1] if match else text[at + 1 :]), end
    if text.startswith("$(", at):
        end = _closing(text, at + 1)
        return text[at:end], end
    return char, at + 1


def _closing(text: str, at: int) -> int:
    """Return the position after the parenthesis that closes the parenthesis at position `at`."""
    depth = 0
    for position in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)
