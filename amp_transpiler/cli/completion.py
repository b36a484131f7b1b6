"""`amp-transpile --completion SHELL`: a script with which a shell completes the command's options and values.

The scripts are made from the parsers, so they know every option and value that the command knows.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from amp_transpiler.cli import printing
from amp_transpiler.cli.check.options import CHECK, check_parser
from amp_transpiler.cli.debug_options import DEBUG, debug_parser
from amp_transpiler.cli.diff_options import DIFF, diff_parser
from amp_transpiler.cli.doctor import DOCTOR, doctor_parser
from amp_transpiler.cli.exit_status import OK
from amp_transpiler.cli.parser import build_parser
from amp_transpiler.errors import OptionError
from amp_transpiler.options.table import OPTIONS

__all__ = ["COMPLETION", "SHELLS", "completion", "completion_script"]

COMPLETION = "--completion"
_CHOICE = re.compile(r"[a-z\d]+(\|[a-z\d]+)+")  # a placeholder such as float16|bfloat16
_NAMED_VALUES = {option.name: tuple(option.values) for option in OPTIONS}


@dataclasses.dataclass(frozen=True, slots=True)
class _Flag:
    """An option as a shell sees it.

    Attributes:
        names: such as `-v` and `--verbose`.
        text: its help, one sentence.
        takes_value: whether a value follows.
        values: the values with a name.
        repeated: may be given several times.
    """

    names: tuple[str, ...]
    text: str
    takes_value: bool
    values: tuple[str, ...]
    repeated: bool


def completion(arguments: Sequence[str]) -> int:
    """Print the script for the shell that the arguments behind `--completion` name.

    Raises:
        OptionError: no shell, an unknown one or several.
    """
    printing.output(completion_script(" ".join(arguments)).rstrip())
    return OK


def completion_script(shell: str) -> str:
    """Return the script for a shell.

    Raises:
        OptionError: the shell is unknown.
    """
    if shell not in SHELLS:
        raise OptionError(f"{COMPLETION} {shell}: expected {', '.join(SHELLS)}; such as {COMPLETION} bash")
    return SHELLS[shell](_commands())


def _commands() -> dict[str, list[_Flag]]:
    """Return the flags of each command; the one without a word is the empty string."""
    convert = [
        *_flags(build_parser()),
        _Flag((CHECK,), "Check models instead of converting them.", False, (), False),
        _Flag((COMPLETION,), "Print a script for a shell's completion.", True, tuple(SHELLS), False),
    ]
    parsers = {DIFF: diff_parser(), DEBUG: debug_parser(), DOCTOR: doctor_parser(), CHECK: check_parser()}
    return {"": convert, **{word: list(_flags(parser)) for word, parser in parsers.items()}}


def _flags(parser: argparse.ArgumentParser) -> Iterator[_Flag]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.option_strings and action.help != argparse.SUPPRESS:
            values = tuple(map(str, action.choices or _NAMED_VALUES.get(action.dest, ())))
            if (
                not values
                and isinstance(action.metavar, str)
                and re.fullmatch(r"[a-z\d]+(\|[a-z\d]+)+", action.metavar)
            ):
                values = tuple(action.metavar.split("|"))
            takes_value = action.nargs != 0
            repeated = isinstance(action, (argparse._AppendAction, argparse._CountAction))  # noqa: SLF001 - as above
            text = (action.help or "").replace("%%", "%").split("\n")[0]
            sentence = re.split(r"(?<=[.:]) ", text)[0].rstrip(":")
            yield _Flag(tuple(action.option_strings), sentence, takes_value, values, repeated)


# ---- shells ----

_BASH = """\
# bash completion of amp-transpile: eval "$(amp-transpile --completion bash)"
_amp_transpile() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=convert
    case " ${COMP_WORDS[*]:0:COMP_CWORD} " in
        *" --check "*) command=--check ;;
        *) case ${COMP_WORDS[1]} in %(words)s) ((COMP_CWORD > 1)) && command=${COMP_WORDS[1]} ;; esac ;;
    esac
    local values= flags= words=
    case "$command $before" in
%(values)s
    esac
    if [[ -n $values ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        return
    fi
    case $command in
%(flags)s
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
        return
    fi
    ((COMP_CWORD == 1)) && words="%(words_spaced)s"
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word"; compgen -f -- "$word")
}
complete -F _amp_transpile amp-transpile
"""


def _bash(commands: dict[str, list[_Flag]]) -> str:
    values, flags = [], []
    for command, known in commands.items():
        name = command or "convert"
        for flag in known:
            if flag.values:
                places = "|".join(f'"{name} {each}"' for each in flag.names)
                values.append(f'        {places}) values="{" ".join(flag.values)}" ;;')
        every = " ".join(each for flag in known for each in flag.names)
        flags.append(f'        {name}) flags="{every}" ;;')
    words = [command for command in commands if command and not command.startswith("-")]
    return _BASH % {
        "words": "|".join(words),
        "words_spaced": " ".join(words),
        "values": "\n".join(values),
        "flags": "\n".join(flags),
    }


_ZSH = """\
#compdef amp-transpile
# zsh completion of amp-transpile: amp-transpile --completion zsh > "${fpath[1]}/_amp-transpile"
_amp-transpile() {
    local command=convert
    [[ ${words[(r)--check]} == --check ]] && command=--check
    case ${words[2]} in %(words)s) ((CURRENT > 2)) && command=${words[2]} ;; esac
    ((CURRENT == 2)) && compadd %(words_spaced)s
    case $command in
%(cases)s
    esac
}
if [[ ${funcstack[1]} == _amp-transpile ]]; then
    _amp-transpile "$@"
else
    compdef _amp-transpile amp-transpile
fi
"""


def _zsh(commands: dict[str, list[_Flag]]) -> str:
    cases = []
    for command, known in commands.items():
        lines = [_zsh_argument(flag, name) for flag in known for name in flag.names]
        cases.append(f"        {command or 'convert'}) _arguments \\\n")
        cases[-1] += " \\\n".join(f"            {line}" for line in [*lines, "'*:file:_files'"]) + " ;;"
    words = [command for command in commands if command and not command.startswith("-")]
    return _ZSH % {"words": "|".join(words), "words_spaced": " ".join(words), "cases": "\n".join(cases)}


def _zsh_argument(flag: _Flag, name: str) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", flag.text)
    value = ""
    if flag.takes_value:
        value = f":value:({' '.join(flag.values)})" if flag.values else ":value:_files"
    return shlex.quote(f"{'*' if flag.repeated else ''}{name}[{text}]{value}")


def _fish(commands: dict[str, list[_Flag]]) -> str:
    lines = ["# fish completion of amp-transpile: amp-transpile --completion fish | source"]
    words = [command for command in commands if command and not command.startswith("-")]
    lines += [f"complete -c amp-transpile -n __fish_use_subcommand -a {word}" for word in words]
    for command, known in commands.items():
        where = f"__fish_seen_subcommand_from {command}"
        if command.startswith("-"):
            where = f"contains -- {command} (commandline -opc)"
        elif not command:
            where = f"not __fish_seen_subcommand_from {' '.join(words)}"
        for flag in known:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
            value = " -r" if flag.takes_value else ""
            value += f" -f -a {_fish_quoted(' '.join(flag.values))}" if flag.values else ""
            lines.append(
                f"complete -c amp-transpile -n {_fish_quoted(where)} {names}{value} -d {_fish_quoted(flag.text)}"
            )
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[dict[str, list[_Flag]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
