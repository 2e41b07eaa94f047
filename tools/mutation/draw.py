"""Draws mutants. A mutant is the source tree with one small change in one line of code.

The rules work on text, not on a syntax tree. They rely on clang-format: a binary operator has a space on both sides, and an
angle bracket of a template has none. A rule may therefore produce code that does not compile; such a mutant is drawn again."""
import collections
import hashlib
import random
import re

# One change: `line` counts from 1; `before` and `after` are the whole line.
Mutant = collections.namedtuple("Mutant", "file line operator before after")

# Comments, string and character literals, preprocessor directives. An apostrophe behind a digit separates thousands.
NOT_CODE = re.compile(r"""^[ \t]*\#(?:\\\n|[^\n])*|//[^\n]*|/\*.*?\*/|R"([^()\s\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|"""
                      r"""(?<!\w)'(?:\\.|[^'\\\n])+'""", re.DOTALL | re.MULTILINE | re.VERBOSE)
MESSAGE = "\x01"  # marks a string literal that contains a space
# A message ends with its statement, because the values that it shows follow the literal.
MESSAGE_TO_END = re.compile(MESSAGE + r"[^;{}]*")


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_lines(text):
    """Returns the lines of a file with blanks in place of comments, directives and messages. Columns stay the same. The
    contents of other literals become underscores."""
    def hide(match):
        token = match.group()
        if token[0] == "'" or (token[0] == '"' and " " not in token):
            return token[0] + "_" * (len(token) - 2) + token[-1]
        if token[0] in '"R':
            return MESSAGE + blank(token)[1:]
        return blank(token)

    return MESSAGE_TO_END.sub(lambda match: blank(match.group()), NOT_CODE.sub(hide, text)).split("\n")


# ---- operators: each yields pairs (start, end, replacement) of a line of code ----

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"}
ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}
LOGIC = {"&&": "||", "||": "&&", "&": "|", "|": "&"}
SIMPLE_ARGUMENT = r"[\w.:*\[\]]+(?:->[\w.:*\[\]]+)*"


def replaced(pattern, table):
    pattern = re.compile(pattern)
    return lambda code: [(m.start(1), m.end(1), table[m.group(1)]) for m in pattern.finditer(code)]


def closing(code, opening):
    """Returns the position of the bracket that closes the one at `opening`, or -1 if it is on another line."""
    depth = 0
    for i in range(opening, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    return -1


def negated_condition(code):
    for match in re.finditer(r"\b(?:if|while)(?: constexpr)? \(", code):
        end = closing(code, match.end() - 1)
        condition = code[match.end():end]
        if end > 0 and condition.strip() and ";" not in condition and " = " not in condition:
            yield match.end(), match.end(), "!("
            # The second edit of the pair: see `edited`.
            yield end, end, ")"


def removed_check(code):
    """`check(condition, "message")` accepts every value."""
    match = re.match(r"\s*(?:\w+::)*check\(", code)
    if not match:
        return
    depth = 0
    for i in range(match.end(), len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0 and code[i] == ",":
            yield match.end(), match.end(), "true || ("
            yield i, i, ")"
            return


def constants(code):
    for match in re.finditer(r"(?<![\w.'])(?<![eE][-+])(\d+)(?![\w.'])", code):
        value = int(match.group())
        yield match.start(), match.end(), str(value + 1)
        if value > 0:
            yield match.start(), match.end(), str(value - 1)
    for match in re.finditer(r"(?<![\w.'])(\d+\.\d*)(?=f?\b|\W)(?![eE'])", code):
        value = float(match.group(1))
        yield match.start(1), match.end(1), repr(2 * value if value else 1.0)
    for match in re.finditer(r"\b(true|false)\b", code):
        yield match.start(), match.end(), "false" if match.group() == "true" else "true"


def off_by_one(code):
    for match in re.finditer(r"(?:\.|->)(?:size|dim|numel)\(\)", code):
        yield match.end(), match.end(), " + 1"
        yield match.end(), match.end(), " - 1"
    for match in re.finditer(r"(?<=[\w)\]])\[(\w+)\](?!\s*[({])", code):
        yield match.end(1), match.end(1), " + 1"


def removed_not(code):
    return [(m.start(), m.end(), "") for m in re.finditer(r"(?<![\w)\]])!(?=[\w(:])", code)]


def removed_move(code):
    return [(m.start(), m.end(), m.group(1)) for m in re.finditer(rf"std::move\(({SIMPLE_ARGUMENT})\)", code)]


def swapped_arguments(code):
    for match in re.finditer(rf"(?<=\w)\(({SIMPLE_ARGUMENT}), ({SIMPLE_ARGUMENT})(?=[,)])", code):
        if match.group(1) != match.group(2):
            yield match.start(1), match.end(2), (match.start(2), match.end(2), match.start(1), match.end(1))


STATEMENT = re.compile(
    r"(?:[A-Za-z_][\w:]*(?:(?:\.|->)\w+|\[[^\]]*\]|\([^()]*\))*\(.*\)"  # a call
    r"|[\w.:*()\[\]]+(?:->[\w.:*()\[\]]+)* [-+*/|&]?= .*"  # an assignment; a declaration has a space before the name
    r"|(?:\+\+|--)[\w.>\[\]-]+|break|continue|return"
    r"|if \(.*\) .+);$")
LOCK = re.compile(r"(?:const )?std::(?:lock_guard|scoped_lock|unique_lock)\b[^;]*;$")


def dropped_statement(code):
    statement = code.strip()
    start = len(code) - len(code.lstrip())
    if statement.count("(") == statement.count(")") and statement.count("{") == statement.count("}"):
        if STATEMENT.match(statement) and not re.match(r"(?:return|throw|delete|explicit|operator)\b.", statement):
            yield start, len(code.rstrip()), ";"


def removed_lock(code):
    statement = code.strip()
    if LOCK.match(statement):
        start = len(code) - len(code.lstrip())
        yield start, len(code.rstrip()), ";"


PAIRS = {negated_condition, removed_check}  # operators whose change consists of two edits
OPERATORS = {
    "relation": replaced(r"(?<=\s)(<=|>=|==|!=|<|>)(?=\s|$)", RELATIONS),
    "arithmetic": replaced(r"(?<=[\w)\]'] )([-+*/%])(?=\s|$)", ARITHMETIC),
    "assignment": replaced(r"(?<=\s)([-+*/|&]=)(?=\s|$)", ASSIGNMENTS),
    "logic": replaced(r"(?<=[\w)\]'] )(&&|\|\||&|\|)(?=\s|$)", LOGIC),
    "negated condition": negated_condition,
    "removed check": removed_check,
    "constant": constants,
    "off by one": off_by_one,
    "removed not": removed_not,
    "removed move": removed_move,
    "swapped arguments": swapped_arguments,
    "min and max": replaced(r"\bstd::(min|max)\b", {"min": "max", "max": "min"}),
    "dropped statement": dropped_statement,
    "removed lock": removed_lock,
}
# Lines of these kinds are not mutated: a change would not compile, or it would only rename something.
SKIPPED = re.compile(r"\s*(?:template\b|using\b|namespace\b|static_assert\b|friend\b|class\b|enum\b|$)")


def edited(line, edits):
    """Applies the edits, which do not overlap and come in ascending order."""
    for start, end, new in reversed(edits):
        if isinstance(new, tuple):  # two exchanged parts; the text between them stays
            first, first_end, second, second_end = new
            new = line[first:first_end] + line[second_end:first] + line[second:second_end]
        line = line[:start] + new + line[end:]
    return line


def changes(line, code):
    """Returns {operator: [changed line, ...]} for a line of source. `code` is the same line without comments and messages."""
    found = {}
    if SKIPPED.match(code):
        return found
    for name, operator in OPERATORS.items():
        edits = list(operator(code))
        groups = list(zip(edits[::2], edits[1::2])) if operator in PAIRS else [(edit,) for edit in edits]
        lines = [edited(line, group) for group in groups]
        if lines:
            found[name] = lines
    return found


def identity(mutant):
    """Returns a name for the mutant that other changes of the file leave as it is."""
    text = "\0".join((mutant.file, mutant.operator, mutant.before.strip(), mutant.after.strip()))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class Drawer:
    """Draws mutants from `sources`, a dictionary from file names to texts. Each line that at least one operator can change is
    equally probable; then each applicable operator; then each of its changes of the line."""

    def __init__(self, sources, seed):
        self.seed, self.lines = seed, []
        for file in sorted(sources):
            lines = sources[file].split("\n")
            for number, (line, code) in enumerate(zip(lines, code_lines(sources[file])), 1):
                if changes(line, code):
                    self.lines.append((file, number, line, code))

    def draw(self, index):
        """Returns mutant number `index` of this seed. It does not depend on the other draws."""
        random_numbers = random.Random(f"{self.seed}:{index}")
        file, number, line, code = random_numbers.choice(self.lines)
        found = changes(line, code)
        operator = random_numbers.choice(sorted(found))
        return Mutant(file, number, operator, line, random_numbers.choice(found[operator]))


def apply(text, mutant):
    """Returns the text with the change, or None if the line is not there. If other changes have moved the line, the nearest
    equal one is taken."""
    lines = text.split("\n")
    places = [i for i, line in enumerate(lines) if line == mutant.before]
    if not places:
        return None
    lines[min(places, key=lambda i: abs(i - (mutant.line - 1)))] = mutant.after
    return "\n".join(lines)
