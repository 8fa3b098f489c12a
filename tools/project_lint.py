"""Project rules that no general linter checks. `python tools/project_lint.py src` exits 1 if anything is found.

    second-map        a map or set keyed by session, by its name or by its use, beside the one of present sessions
    endless-growth    a dict, list or set on an object that is added to and never shortened, replaced or measured
    unbounded-cache   functools.cache, lru_cache without a bound, lru_cache on a method
    unbounded-queue   a queue or stream without a length, a deque kept on an object without one
    stray-task        a task that no scope owns
    swallowed-error   a broad except that neither raises, nor logs, nor does anything with what it caught
    module-state      a mutable value at module level, except a table of constants that nothing changes
    stray-print       print() outside the command line
    blocking-sleep    time.sleep in an async function
    ambient-settings  os.environ read outside configuration, command line and gateway
    duplicate-class   a public class that has the name of another one in the tree

And in tests, each with a number of known cases that must not grow:

    foreign-private   a test that uses a private attribute of an object that is not its own
    patched-constant  a test that replaces a constant of a module, where a constructor could take an argument

Where one of these is right after all, its line (or the line above it) says `# lint: allow <reason>`.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

ALLOW = re.compile(r"#\s*lint:\s*allow\s+\S")
SESSIONS = re.compile("session", re.IGNORECASE)
SESSION_NAME = re.compile(r"(^|\.)(session(_id|\.id)?|sid)$")
SESSION_KEY = re.compile(r"\b(SessionId|SessionKey)\b")

MAPS = {"dict", "defaultdict", "OrderedDict", "WeakValueDictionary", "Counter", "Dict", "DefaultDict"}
QUEUES = {"Queue", "LifoQueue", "PriorityQueue"}
TASK_MAKERS = {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"}
MUTABLE = {"dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter", "bytearray", "BoundedCache"}
PLAIN = {"dict", "list", "set", "defaultdict", "OrderedDict", "Counter"}
ADDING = {"append", "add", "extend", "insert", "setdefault", "update"}
SHORTENING = {"pop", "popitem", "remove", "discard", "clear"}
CHANGING = {"append", "add", "update", "pop", "setdefault", "clear", "extend", "insert", "remove", "discard", "popitem"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
BROAD = {"Exception", "BaseException"}

FOREIGN_PRIVATES = 2
PATCHED_CONSTANTS = 19
"""The numbers of known cases. Lower them with every case that is removed."""
OWN = {"self", "cls"}
LIBRARIES = {"sys", "os", "asyncio"}
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Public attributes of a named tuple, which begin with an underscore so that they cannot collide with its fields."""

MAP_OF_SESSIONS = "lifetimes/residency.py"
MAY_MAKE_TASKS = ("lifetimes/",)
MAY_PRINT = ("cli/", "__main__.py")
MAY_READ_ENVIRONMENT = ("config/", "config.py", "cli/", "gateway/", "__main__.py")


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def dotted(node: ast.AST | None) -> str:
    """`a.b.c` of a name or attribute, without subscripts; empty for anything else."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    return ""


def last(node: ast.AST | None) -> str:
    return dotted(node).rpartition(".")[2]


@dataclass
class ModuleChecker(ast.NodeVisitor):
    """Reads one module. `place` is its path inside the package, by which the exceptions of a rule are known."""

    path: str
    place: str
    lines: list[str]
    findings: list[Finding] = field(default_factory=list)
    _functions: list[ast.AST] = field(default_factory=list)
    _classes: int = 0
    _changed: frozenset[str] = frozenset()

    def found(self, node: ast.AST, rule: str, message: str) -> None:
        line = getattr(node, "lineno", 1)
        near = self.lines[max(line - 2, 0) : line]
        if not any(ALLOW.search(text) for text in near):
            self.findings.append(Finding(self.path, line, rule, message))

    def within(self, places: tuple[str, ...]) -> bool:
        return self.place.startswith(places)

    # -- where we are ------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._check_decorators(node)
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._functions.append(node)
        for child in node.body:
            self.visit(child)
        self._functions.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes += 1
        self.generic_visit(node)
        self._classes -= 1

    def visit_Module(self, node: ast.Module) -> None:
        self._changed = _changed_names(node)
        growth = Growth()
        growth.visit(node)
        for name in sorted(growth.made.keys() & growth.grown - growth.kept_short):
            message = f"{name!r} only grows; bound it, or say what it ends with"
            self.found(growth.made[name], "endless-growth", message)
        if self.place != MAP_OF_SESSIONS:
            for name, use in growth.by_session:
                message = f"{name!r} is keyed by session; hang it on the record of the present session"
                self.found(use, "second-map", message)
        for statement in node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                self._check_module_state(statement)
        self.generic_visit(node)

    # -- rules about assignments -------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._check_assigned(node, target, node.value, None)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._check_assigned(node, node.target, node.value, node.annotation)
        self.generic_visit(node)

    def _check_assigned(
        self, node: ast.AST, target: ast.expr, value: ast.expr | None, annotation: ast.expr | None
    ) -> None:
        kept = isinstance(target, ast.Attribute) or not self._functions
        if kept and self.place != MAP_OF_SESSIONS and _is_map(value, annotation):
            keyed = annotation is not None and SESSION_KEY.search(ast.unparse(annotation))
            if keyed or SESSIONS.search(last(target)):
                self.found(
                    node,
                    "second-map",
                    f"{last(target)!r} looks like a map keyed by session; hang it on the record of the present session",
                )
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and last(value.func) == "deque":
            bound = len(value.args) > 1 or any(keyword.arg == "maxlen" for keyword in value.keywords)
            if not bound:
                self.found(node, "unbounded-queue", f"the deque {last(target)!r} is kept and has no maxlen")

    def _check_module_state(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [last(target) for target in targets]
        if names == ["__all__"] or not _is_mutable(node.value):
            return
        # A table in capitals that is written down whole, and that nothing in its module changes, is a constant.
        if _is_written_down(node.value) and all(name.isupper() and name not in self._changed for name in names):
            return
        self.found(node, "module-state", f"{', '.join(names)!r} can be changed by anyone; give it an owner")

    # -- rules about calls -------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        for rule in _CALL_RULES:
            rule(self, node, dotted(node.func), last(node.func))
        self.generic_visit(node)

    def check_queue(self, node: ast.Call, name: str, short: str) -> None:
        if short in QUEUES and not _has_bound(node, "maxsize"):
            self.found(node, "unbounded-queue", f"{name}() has no length; say how long it may get")
        elif short == "SimpleQueue":
            self.found(node, "unbounded-queue", f"{name}() cannot be given a length")
        elif short.startswith("create_memory_object_stream"):
            sizes = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(last(size) == "inf" or ast.unparse(size) in ("float('inf')",) for size in sizes):
                self.found(node, "unbounded-queue", "a memory stream of infinite length is a queue without a bound")

    def check_task(self, node: ast.Call, name: str, short: str) -> None:
        if short in TASK_MAKERS and not self.within(MAY_MAKE_TASKS):
            self.found(node, "stray-task", f"{name}() makes a task that no scope owns; use Scope.start")

    def check_print(self, node: ast.Call, name: str, short: str) -> None:
        if name == "print" and not self.within(MAY_PRINT):
            self.found(node, "stray-print", "print() belongs to the command line; elsewhere there is the log")

    def check_sleep(self, node: ast.Call, name: str, short: str) -> None:
        if name == "time.sleep" and self._functions and isinstance(self._functions[-1], ast.AsyncFunctionDef):
            self.found(node, "blocking-sleep", "time.sleep in an async function stops every session")

    def check_suppress(self, node: ast.Call, name: str, short: str) -> None:
        if short == "suppress" and any(last(argument) in BROAD for argument in node.args):
            self.found(node, "swallowed-error", f"suppress({ast.unparse(node.args[0])}) hides every error")

    def check_environment_call(self, node: ast.Call, name: str, short: str) -> None:
        if name in ("os.getenv", "getenv") and not self.within(MAY_READ_ENVIRONMENT):
            self._ambient(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if dotted(node) in ("os.environ", "os.environb") and not self.within(MAY_READ_ENVIRONMENT):
            self._ambient(node)
        self.generic_visit(node)

    def _ambient(self, node: ast.AST) -> None:
        self.found(node, "ambient-settings", "the environment is read by configuration, command line and gateway only")

    # -- rules about definitions and handlers ------------------------------------------------------------------------

    def _check_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        method = self._classes > 0 and not self._functions
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = last(call.func if call else decorator)
            if dotted(call.func if call else decorator) in ("functools.cache", "cache"):
                self.found(decorator, "unbounded-cache", f"@cache keeps every answer of {node.name}() for ever")
            elif name == "lru_cache" and call is not None and _maxsize_is_none(call):
                self.found(decorator, "unbounded-cache", f"the lru_cache of {node.name}() has no bound")
            elif name == "lru_cache" and method:
                self.found(decorator, "unbounded-cache", f"the lru_cache of {node.name}() keeps its objects")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or last(kind) in BROAD for kind in caught)
        if broad and not _does_something(node):
            self.found(node, "swallowed-error", "a broad except that neither raises, logs nor uses the error loses it")
        self.generic_visit(node)


@dataclass
class Growth(ast.NodeVisitor):
    """What one module does to the containers that its objects keep, by the names of the attributes."""

    made: dict[str, ast.stmt] = field(default_factory=dict)
    """Made empty when an object is made."""
    grown: set[str] = field(default_factory=set)
    """Added to, later than that."""
    kept_short: set[str] = field(default_factory=set)
    """Shortened or replaced somewhere, or their length is compared with something."""
    by_session: list[tuple[str, ast.AST]] = field(default_factory=list)
    _aliases: dict[str, str] = field(default_factory=dict)
    _making: bool = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self._making, self._aliases
        self._making, self._aliases = node.name == "__init__", {}
        self.generic_visit(node)
        self._making, self._aliases = before

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(node, target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned(node, node.target, node.value)
        self.generic_visit(node)

    def _assigned(self, node: ast.stmt, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple):
            for place, one in enumerate(target.elts):
                paired = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
                self._assigned(node, one, value.elts[place] if paired else None)  # type: ignore[union-attr]
        elif isinstance(target, ast.Attribute) and self._making and _is_empty(value):
            self.made.setdefault(target.attr, node)
        elif isinstance(target, ast.Attribute) and not self._making:
            self.kept_short.add(target.attr)
        elif isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
            self._aliases[target.id] = value.attr

    def visit_Subscript(self, node: ast.Subscript) -> None:
        name = self._container(node.value)
        if name and isinstance(node.ctx, ast.Store):
            self._adds(name, node, node.slice)
        elif name and isinstance(node.ctx, ast.Del):
            self.kept_short.add(name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and (name := self._container(node.func.value)):
            if node.func.attr in ADDING:
                keyed = node.func.attr in ("add", "setdefault") and node.args
                self._adds(name, node, node.args[0] if keyed else None)
            elif node.func.attr in SHORTENING:
                self.kept_short.add(name)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute) and not self._making:
            self.grown.add(node.target.attr)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and last(inner.func) == "len" and inner.args:
                self.kept_short.add(self._container(inner.args[0]))
        self.generic_visit(node)

    def _container(self, node: ast.expr) -> str:
        """The attribute that an expression stands for, by its own name or by a local one."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return self._aliases.get(node.id, "") if isinstance(node, ast.Name) else ""

    def _adds(self, name: str, node: ast.AST, key: ast.expr | None) -> None:
        if not self._making:
            self.grown.add(name)
        if key is not None and _is_session(key):
            self.by_session.append((name, node))


_CALL_RULES: tuple[Callable[[ModuleChecker, ast.Call, str, str], None], ...] = (
    ModuleChecker.check_queue,
    ModuleChecker.check_task,
    ModuleChecker.check_print,
    ModuleChecker.check_sleep,
    ModuleChecker.check_suppress,
    ModuleChecker.check_environment_call,
)


def _is_empty(value: ast.expr | None) -> bool:
    """A dict, list or set with nothing in it; a deque has a rule of its own."""
    if isinstance(value, ast.Call):
        return last(value.func) in PLAIN and all(last(given) in PLAIN for given in value.args)
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.List) and not value.elts


def _is_session(key: ast.expr) -> bool:
    if isinstance(key, ast.Tuple):
        return any(map(_is_session, key.elts))
    return bool(SESSION_NAME.search(dotted(key)))


def _is_map(value: ast.expr | None, annotation: ast.expr | None) -> bool:
    if annotation is not None:
        return last(annotation) in MAPS
    return isinstance(value, ast.Dict | ast.DictComp) or (isinstance(value, ast.Call) and last(value.func) in MAPS)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return last(value.func) in MUTABLE
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def _is_written_down(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return bool(value.keys)
    if isinstance(value, ast.List | ast.Set):
        return bool(value.elts)
    return isinstance(value, ast.DictComp | ast.ListComp | ast.SetComp)


def _changed_names(module: ast.Module) -> frozenset[str]:
    """Names on which something in the module writes an item or calls a method that changes it."""
    changed: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed.add(dotted(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            changed.add(dotted(node.func.value))
        elif isinstance(node, ast.Global):
            changed.update(node.names)
    return frozenset(changed)


def _has_bound(node: ast.Call, name: str) -> bool:
    bounds = node.args[:1] + [keyword.value for keyword in node.keywords if keyword.arg == name]
    return any(not (isinstance(bound, ast.Constant) and bound.value in (0, None)) for bound in bounds)


def _maxsize_is_none(call: ast.Call) -> bool:
    sizes = call.args[:1] + [keyword.value for keyword in call.keywords if keyword.arg == "maxsize"]
    return any(isinstance(size, ast.Constant) and size.value is None for size in sizes)


def _does_something(handler: ast.ExceptHandler) -> bool:
    """Whether the error goes on in any way: raised, logged, or its name used."""
    for node in (inner for statement in handler.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING:
            return True
        if handler.name and isinstance(node, ast.Name) and node.id == handler.name:
            return True
    return False


def check_source(source: str, path: str, place: str) -> list[Finding]:
    """Findings in one module; `place` is its path below the package, e.g. `store/database.py`."""
    checker = ModuleChecker(path, place, source.splitlines())
    checker.visit(ast.parse(source, filename=path))
    return sorted(checker.findings)


def check_test(source: str, path: str) -> list[Finding]:
    """Findings in one test module."""
    checker = ModuleChecker(path, path, source.splitlines())
    for node in ast.walk(ast.parse(source, filename=path)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWN | LIBRARIES):
                checker.found(node, "foreign-private", f"{ast.unparse(node)} is private; use what its owner offers")
        elif isinstance(node, ast.Call) and last(node.func) == "setattr" and (name := _patched(node)):
            checker.found(node, "patched-constant", f"{name} is replaced in its module; let a constructor take it")
    return sorted(checker.findings)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def _patched(call: ast.Call) -> str:
    """The constant that `monkeypatch.setattr` replaces, by its name or by a dotted path."""
    names = [given.value for given in call.args[:2] if isinstance(given, ast.Constant) and isinstance(given.value, str)]
    name = names[0].rpartition(".")[2] if names else ""
    return name if name.strip("_").isupper() else ""


def check_tests(root: Path) -> list[Finding]:
    """The cases of each rule for tests, if they are not as many as are known."""
    found = [
        finding
        for path in sorted(root.rglob("*.py"))
        for finding in check_test(path.read_text(encoding="utf-8"), str(path))
    ]
    findings: list[Finding] = []
    for rule, known in (("foreign-private", FOREIGN_PRIVATES), ("patched-constant", PATCHED_CONSTANTS)):
        cases = [finding for finding in found if finding.rule == rule]
        if len(cases) > known:
            findings += [*cases, Finding(str(root), 1, rule, f"{len(cases)} cases, where {known} are known")]
        elif len(cases) < known:
            findings.append(
                Finding(str(root), 1, rule, f"only {len(cases)} cases are left of {known}: lower the number")
            )
    return findings


def check_tree(root: Path) -> Iterator[Finding]:
    classes: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        yield from check_source(source, str(path), _place(path.relative_to(root)))
        yield from _duplicate_classes(source, str(path), classes)


def _duplicate_classes(source: str, path: str, classes: dict[str, str]) -> Iterator[Finding]:
    """Public classes of this module whose name another module has taken; `classes` maps each name to its first place
    and is extended."""
    checker = ModuleChecker(path, path, source.splitlines())
    for node in ast.walk(ast.parse(source, filename=path)):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        first = classes.setdefault(node.name, f"{path}:{node.lineno}")
        if first != f"{path}:{node.lineno}":
            checker.found(node, "duplicate-class", f"{node.name!r} is also defined at {first}; rename one of them")
    yield from checker.findings


def _place(path: PurePath) -> str:
    """The path inside the package, whichever folder above it was given."""
    parts = path.parts
    return "/".join(parts[parts.index("tidegate") + 1 :] if "tidegate" in parts else parts)


def main(arguments: list[str]) -> int:
    findings = [finding for argument in arguments or ["src"] for finding in check_tree(Path(argument))]
    if not arguments:
        findings += check_tests(Path("tests"))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
