"""The messages of all errors of Satchel's tree, read from its source. Knows nothing of what they mean.

What a message takes from the moment, such as a name or a size, is written `…`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import satchel

ROOT = "SatchelError"
ANY = "…"
PACKAGE = Path(satchel.__file__).parent


@dataclass(frozen=True, slots=True)
class Message:
    text: str
    where: str  # file and line, of the first place that has it


@functools.cache
def error_messages(package: Path = PACKAGE) -> dict[str, Message]:
    """What errors of the tree say, by their texts; not what they only take over from another error."""
    modules = _modules(package)
    classes = _tree(modules.values())
    direct = classes - _with_words_of_their_own(modules.values())
    found: dict[str, Message] = {}
    for path, module in modules.items():
        for node, scope in _calls(module):
            if (said := _said(node, classes, direct)) is None:
                continue
            for text in _texts(said, scope):
                text = _collapsed(text)
                if text.strip(f"{ANY}: ();,.'"):
                    found.setdefault(text, Message(text, f"{path.relative_to(package)}:{node.lineno}"))
    return found


@functools.cache
def all_texts(package: Path = PACKAGE) -> set[str]:
    """Every text in the source, whatever it is for."""
    return {
        _collapsed(text)
        for module in _modules(package).values()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for text in _texts(node, None)
    }


@functools.cache
def _modules(package: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}


def _tree(modules: Iterable[ast.Module]) -> set[str]:
    """The names of the classes below `ROOT`."""
    bases = {
        node.name: {_name(base) for base in node.bases}
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    tree = {ROOT}
    while more := {name for name, of in bases.items() if of & tree} - tree:
        tree |= more
    return tree


def _with_words_of_their_own(modules: Iterable[ast.Module]) -> set[str]:
    """The names of the classes that take something else than a message, and make one of it."""
    return {
        node.name
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        if [argument.arg for argument in each.args.args[1:2]] != ["message"]
    }


def _calls(module: ast.Module) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Calls, with the function or class each stands in; those that are raised are marked."""

    def walk(node: ast.AST, scope: ast.AST, owner: str) -> Iterator[tuple[ast.Call, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope = node
        elif isinstance(node, ast.ClassDef):
            owner = node.name
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.raised = True  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            node.owner = owner  # type: ignore[attr-defined]
            yield node, scope
        for child in ast.iter_child_nodes(node):
            yield from walk(child, scope, owner)

    return walk(module, module, "")


def _said(call: ast.Call, classes: set[str], direct: set[str]) -> ast.expr | None:
    """The argument that says what is wrong, if the call makes an error of the tree."""
    name = _name(call.func)
    if name == "__init__" and isinstance(call.func, ast.Attribute):
        of_tree = call.owner in classes and ast.unparse(call.func.value) == "super()"  # type: ignore[attr-defined]
    elif name in classes:
        of_tree = name in direct
    else:  # a function that makes the error, or a class that is chosen there
        of_tree = getattr(call, "raised", False) and not name.endswith(("Error", "Exception", "Failed"))
        of_tree = of_tree and not ast.unparse(call.func).startswith("typer.")
    return call.args[0] if of_tree and call.args else None


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(node: ast.expr, scope: ast.AST | None) -> list[str]:
    """What a text can be; of a name, what it is set to in `scope`."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(part.value if isinstance(part, ast.Constant) else ANY for part in parts)]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return [a + b for a in _texts(left, scope) for b in _texts(right, scope)]
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body, scope) + _texts(orelse, scope)
        case ast.Name(id=name) if scope is not None:
            values = [
                found.value
                for found in ast.walk(scope)
                if isinstance(found, ast.Assign) and [_name(target) for target in found.targets] == [name]
            ]
            return [text for value in values for text in _texts(value, None)] or [ANY]
    return [ANY]


def _collapsed(text: str) -> str:
    text = " ".join(text.split())
    while ANY + ANY in text:
        text = text.replace(ANY + ANY, ANY)
    return text
