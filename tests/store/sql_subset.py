"""Finds the SQL in a module of the store, and constructs in it that are not in the common subset of the databases.

Statements are read from the source: string literals, f-strings, and the constants, local names and functions of the
module that they consist of. Parts that come from `dialect` or are only known at run time become a hole, which fits
anywhere.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

HOLE = "\N{WHITE SQUARE}"
EXECUTING = {"execute", "insert_unique", "executemany"}
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE|FROM|ORDER BY|ON CONFLICT|CASE WHEN|IS NULL|AND|PRAGMA)\b")
TOKEN = re.compile(
    r"'(?:[^']|'')*'|\?\d*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?|\d+(?:e\d+)?|<>|<=|>=|!=|==|\|\||" + HOLE + r"|\S"
)
VARIANTS = 64
"""The most ways in which one statement may be composed."""

FUNCTIONS = {
    "iif", "ifnull", "instr", "strftime", "datetime", "julianday", "unixepoch", "json_each", "json_extract", "total",
    "group_concat", "printf", "glob", "likely", "unlikely", "randomblob", "zeroblob", "hex", "typeof", "char",
    "unicode", "last_insert_rowid", "changes",
}  # fmt: skip
WORDS = {"MATCH", "GLOB", "PRAGMA", "ROWID", "OID", "CROSS", "INDEXED", "ATTACH", "VACUUM", "REPLACE", "ISNULL"}
AFTER_CONDITION = {"AND", "OR", ")", "THEN", "ORDER", "GROUP", "LIMIT", "RETURNING", "END", ""}
BEFORE_CONDITION = {"WHERE", "AND", "OR", "NOT", "WHEN", "HAVING"}

Schema = dict[str, frozenset[str]]
"""The columns of each table that may be NULL."""


class Finding(NamedTuple):
    rule: str
    place: str
    sql: str


class Statement(NamedTuple):
    place: str
    sql: str


class Module:
    """The SQL of one module. `unread` are the places of statements that could not be read."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = ast.parse(source)
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        self.constants = _assigned(self.tree.body)
        self.from_dialect = {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module == "tidegate.store.dialect"
            for alias in node.names
        } | {"dialect"}
        self.unread: list[str] = []
        self.statements = list(self._statements())

    def _statements(self) -> Iterator[Statement]:
        read: set[int] = set()
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            local = _assigned(list(ast.walk(function)))
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if not isinstance(call.func, ast.Attribute) or call.func.attr not in EXECUTING:
                    continue
                place = f"{self.name}:{call.lineno}"
                texts = self._texts(call.args[0], local, 0)
                if not all(re.search(r"[A-Z]{6}", text) or text == HOLE for text in texts):
                    self.unread.append(place)
                read.update(id(node) for node in ast.walk(call.args[0]))
                yield from (Statement(place, text) for text in texts)
        for node in _strings(self.tree):
            texts = self._texts(node, {}, 0)
            if id(node) not in read and any(SQL.search(text) for text in texts):
                yield from (Statement(f"{self.name}:{node.lineno}", text) for text in texts)

    def _texts(self, node: ast.expr, local: dict[str, list[ast.expr]], depth: int) -> list[str]:
        """The texts that this expression may be."""
        parts: list[list[str]] = []
        if depth > 12:
            return [HOLE]
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        if isinstance(node, ast.JoinedStr):
            for value in node.values:
                inner = value.value if isinstance(value, ast.FormattedValue) else value
                parts.append(self._texts(inner, local, depth + 1))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self._texts(node.left, local, depth + 1), self._texts(node.right, local, depth + 1)]
        elif isinstance(node, ast.IfExp):
            return self._texts(node.body, local, depth + 1) + self._texts(node.orelse, local, depth + 1)
        elif isinstance(node, ast.Name) and node.id not in self.from_dialect:
            values = local.get(node.id) or self.constants.get(node.id, [])
            return [text for value in values for text in self._texts(value, local, depth + 1)] or [HOLE]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions:
            function = self.functions[node.func.id]
            inside = _assigned(list(ast.walk(function)))
            returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
            values = [value.elts[0] if isinstance(value, ast.Tuple) else value for value in returned]
            return [text for value in values for text in self._texts(value, inside, depth + 1)] or [HOLE]
        if not parts:
            return [HOLE]
        return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), VARIANTS)]

    def unbounded_loops(self) -> Iterator[str]:
        """Loops over rows that can stop early, although their statement has no LIMIT."""
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            local = _assigned(list(ast.walk(function)))
            for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):
                values = local.get(loop.iter.id, []) if isinstance(loop.iter, ast.Name) else [loop.iter]
                for value in values:
                    executed = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                    if not executed or value.func.attr != "execute":
                        continue
                    stops = any(isinstance(each, ast.Break | ast.Return) for each in ast.walk(loop))
                    texts = self._texts(value.args[0], local, 0)
                    if stops and not all("LIMIT" in text or text == HOLE for text in texts):
                        yield f"{self.name}:{loop.lineno}"


def _strings(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """String literals and f-strings, except docstrings and the parts of f-strings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            yield node
        else:
            yield from _strings(node)


def _assigned(nodes: list[ast.AST] | list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """The values that each name is assigned, also in pairs: `a, b = x if c else y`."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        else:
            continue
        assert node.value is not None
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
            elif isinstance(target, ast.Tuple):
                options = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
                for place, name in enumerate(target.elts):
                    for option in options:
                        value: ast.expr = option
                        if isinstance(option, ast.Tuple) and place < len(option.elts):
                            value = option.elts[place]
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(value)
    return found


# -- rules -------------------------------------------------------------------------------------------------------------


def check(statement: Statement, schema: Schema) -> list[Finding]:
    tokens = TOKEN.findall(statement.sql)
    return [Finding(rule, statement.place, statement.sql) for rule in sorted(set(_broken(tokens, schema)))]


def _broken(tokens: list[str], schema: Schema) -> Iterator[str]:
    upper = [token if token[0] == "'" else token.upper() for token in tokens] + [""] * 3
    if len({len(token) > 1 for token in tokens if token[0] == "?"}) > 1:
        yield "mixed-parameters"
    for at, token in enumerate(tokens):
        word, after, then = upper[at], upper[at + 1], upper[at + 2]
        before = upper[at - 1] if at else ""
        if word in {"MAX", "MIN"} and after == "(" and "," in _inside(upper, at + 1, shallow=True):
            yield "scalar-max"
        if token.lower() in FUNCTIONS and after == "(":
            yield "function"
        if word in {"INSERT", "UPDATE"} and after == "OR":
            yield "insert-or"
        if word == "CONFLICT" and after != "(":
            yield "conflict-columns"
        if word == "IS" and (then if after == "NOT" else after) not in {"NULL", "DISTINCT", "TRUE", "FALSE"}:
            yield "is-value"
        if word == "IS" and before[:1] == "?" and "NULL" in (after, then):
            yield "optional-filter"
        if word in {"FROM", "JOIN"} and after == "(" and upper[at + 2 + len(_inside(upper, at + 1)) + 1] != "AS":
            yield "subquery-alias"
        if word == "CAST" and after == "(" and {"INTEGER", "INT", "BLOB", "REAL"} & set(_inside(upper, at + 1)):
            yield "cast"
        if (word in WORDS and after != "(") or word.startswith("SQLITE_") or token in {"==", '"', "`", "["}:
            yield "own-syntax"
        if word == "X" and after[:1] == "'":
            yield "own-syntax"
        if re.fullmatch(r"\d+e\d+", token):
            yield "infinity"
        if word in {"+", "-", "*", "/"} and (after == "EXISTS" or (after == "(" and then in {"NOT", "EXISTS"})):
            yield "condition-as-number"
        if word in BEFORE_CONDITION and not (word == "NOT" and before == "IS"):
            first = at + 1
            while upper[first] == "(":
                first += 1
            operand = upper[first]
            plain = operand[:1] == "?" or re.fullmatch(r"[A-Z_]\w*(\.\w+)?", operand)
            known = operand in {"TRUE", "FALSE", "NOT", "EXISTS", "SELECT", "CASE"}
            if plain and not known and upper[first + 1] in AFTER_CONDITION:
                yield "bare-condition"
        if word == "UPDATE" and before == "DO":
            yield from _unqualified(upper[at + 2 :])
        if word == "ORDER" and after == "BY":
            yield from _null_order(tokens, at + 2, schema)


def _inside(tokens: list[str], opening: int, *, shallow: bool = False) -> list[str]:
    """The tokens between a parenthesis and its counterpart; `shallow` leaves out those in further parentheses."""
    depth, found = 0, []
    for token in tokens[opening:]:
        depth += (token == "(") - (token == ")")
        if depth == 0:
            break
        found.append(token if not shallow or depth == 1 else "")
    return found[1:]


def _unqualified(tokens: list[str]) -> Iterator[str]:
    """After `DO UPDATE SET`, a column is that of the row or of the excluded one."""
    for at, token in enumerate(tokens):
        if token == "RETURNING":
            return
        assigned = tokens[at + 1] == "=" and (at == 0 or tokens[at - 1] == ",") if at + 1 < len(tokens) else False
        keyword = token in {
            "WHERE",
            "AND",
            "OR",
            "NULL",
            "IS",
            "NOT",
            "CASE",
            "WHEN",
            "THEN",
            "ELSE",
            "END",
            "COALESCE",
        }
        if re.fullmatch(r"[A-Z_]\w*", token) and not assigned and not keyword:
            yield "unqualified-update"


def _null_order(tokens: list[str], start: int, schema: Schema) -> Iterator[str]:
    tables = {token for token in tokens if token in schema}
    depth, term = 0, []
    for token in [*tokens[start:], ";"]:
        depth += (token == "(") - (token == ")")
        ends = token in {";", "LIMIT", "UNION", "RETURNING"} or depth < 0
        if not ends and (token != "," or depth):
            term.append(token)
            continue
        table, _, column = term[0].rpartition(".") if term else ("", "", "")
        simple = all(word in {"ASC", "DESC", "NULLS", "FIRST", "LAST"} for word in term[1:])
        among = {table} & tables if table else tables
        if simple and "NULLS" not in term and any(column in schema[each] for each in among):
            yield "null-order"
        term = []
        if ends:
            return
