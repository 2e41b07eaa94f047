"""Writes a page of Markdown for each public header, from the XML of Doxygen."""
import collections
import glob
import os
import re
import subprocess
import xml.etree.ElementTree as ET

LIBRARY = ("core", "autograd", "nn", "data", "distributed")
DEVICE_HEADERS = ("kernels/cuda/launch.cuh", "kernels/cuda/portable.cuh")
WIDTH = 96  # characters of a line of code


def public_headers(root):
    """The headers that tests/structure/source_tree.cpp calls public, sorted."""
    found = [os.path.relpath(path, root) for folder in LIBRARY
             for path in glob.glob(os.path.join(root, folder, "**", "*.h"), recursive=True)]
    return sorted([path for path in found if "/internal/" not in path] + ["tapestry.h", *DEVICE_HEADERS])


def run_doxygen(root, headers, folder):
    """Writes the XML below `folder`. Returns the text of the warnings, or "" if there are none."""
    os.makedirs(folder, exist_ok=True)
    settings = {
        "INPUT": " ".join(headers), "OUTPUT_DIRECTORY": folder, "EXTENSION_MAPPING": "cuh=C++", "GENERATE_HTML": "NO",
        "GENERATE_LATEX": "NO", "GENERATE_XML": "YES", "XML_PROGRAMLISTING": "NO", "EXTRACT_ALL": "YES", "EXTRACT_PRIVATE": "NO",
        "HAVE_DOT": "NO", "INHERIT_DOCS": "NO", "QUIET": "YES", "AUTOLINK_SUPPORT": "NO", "SORT_MEMBER_DOCS": "NO", "MACRO_EXPANSION": "YES",
        "EXPAND_ONLY_PREDEF": "YES", "PREDEFINED": "TAPESTRY_HOST_DEVICE= TAPESTRY_HIDDEN= TAPESTRY_HOT_TLS= __device__= __global__=",
        # Parentheses around max keep a macro from expanding, and hide the function from Doxygen.
        "INPUT_FILTER": r'''"sed -E 's/\((max|min)\)\(/ \1(/'"''',
    }
    text = "".join("%s = %s\n" % item for item in settings.items())
    try:
        done = subprocess.run(["doxygen", "-"], input=text, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=300)
    except subprocess.TimeoutExpired as late:
        return "it did not end within %d seconds, and was stopped; try again when the machine has less to do" % late.timeout
    return done.stderr or ("it ended with status %d" % done.returncode if done.returncode else "")


def plain(element):
    """The text of an element without markup, with single spaces."""
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def escaped(text):
    return re.sub(r"([\\`*_<>\[\]|#~$])", r"\\\1", text)


def code_span(text):
    ticks = "``" if "`" in text else "`"
    return ticks + text + ticks


def inline(element):
    """The Markdown of an element's text and children."""
    text = escaped(element.text or "")
    for child in element:
        if child.tag == "computeroutput":
            text += code_span("".join(child.itertext()))
        elif child.tag in ("bold", "emphasis"):
            text += "*%s*" % inline(child)
        elif child.tag == "ulink":
            text += "[%s](%s)" % (inline(child), child.get("url"))
        elif child.tag in ("itemizedlist", "orderedlist"):
            marker = "-" if child.tag == "itemizedlist" else "1."
            text += "\n\n" + "\n".join("%s %s" % (marker, " ".join(described(item).split())) for item in child) + "\n\n"
        elif child.tag in ("programlisting", "verbatim"):
            text += "\n\n```cpp\n%s\n```\n\n" % "".join(child.itertext()).strip("\n")
        else:
            text += {"ndash": "–", "mdash": "—", "linebreak": " ", "sp": " "}.get(child.tag, "") + inline(child)
        text += escaped(child.tail or "")
    return text


def described(element):
    """The Markdown of a <detaileddescription> and of what else holds paragraphs."""
    return "\n\n".join(filter(None, (inline(part).strip() for part in element)))


def documentation(member):
    return "\n\n".join(filter(None, (described(member.find(tag)) for tag in ("briefdescription", "detaileddescription"))))


def wrapped(head, arguments, tail):
    """A declaration of a function, with one argument a line if it is long."""
    line = head + "(" + ", ".join(arguments) + ")" + tail
    if len(line) <= WIDTH or len(arguments) < 2:
        return line
    return head + "(\n    " + ",\n    ".join(arguments) + ")" + tail


def tidy(text):
    return re.sub(r"\s+([&*])", r"\1", re.sub(r"< (.*?) >(?=\W|$)", r"<\1>", text.replace("< ", "<").replace(" >", ">")))


def template_of(element):
    found = element.find("templateparamlist")
    if found is None:
        return ""
    parameters = []
    for p in found:
        text = tidy(plain(p.find("type"))) + (" " + plain(p.find("declname")) if p.find("declname") is not None else "")
        parameters.append(text + (" = " + plain(p.find("defval")) if p.find("defval") is not None else ""))
    text = "template <%s>\n" % ", ".join(parameters)
    if element.find("requiresclause") is not None:
        text += "  requires " + plain(element.find("requiresclause")) + "\n"
    return text


def declaration(member):
    """The code that declares a member of a namespace or of a class."""
    kind, name, of = member.get("kind"), plain(member.find("name")), tidy(plain(member.find("type")))
    if kind == "define":
        parameters = [plain(p) for p in member.findall("param")]
        return "#define " + name + ("(%s)" % ", ".join(parameters) if parameters else "")
    if kind == "enum":
        values = [plain(v.find("name")) + (" " + plain(v.find("initializer")) if v.find("initializer") is not None else "")
                  for v in member.findall("enumvalue")]
        head = "enum %s%s" % ("class " if member.get("strong") == "yes" else "", name)
        line = "%s { %s };" % (head, ", ".join(values))
        return line if len(line) <= WIDTH else "%s {\n  %s\n};" % (head, ",\n  ".join(values))
    if kind == "typedef":
        return template_of(member) + "using %s = %s;" % (name, of + plain(member.find("argsstring")))
    value = plain(member.find("initializer"))
    if kind == "variable":
        if len(value) > WIDTH:
            value = ""
        static = "static " if member.get("static") == "yes" and "static" not in of else ""
        return template_of(member) + static + of + " " + name + plain(member.find("argsstring")) + (" " + value if value else "") + ";"
    rest = plain(member.find("argsstring"))
    depth, end = 0, len(rest)
    for i, c in enumerate(rest):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            end = i + 1
            break
    tail = re.sub(r"\s*=\s*(default|delete|0)$", r" = \1", rest[end:])
    arguments = []
    for p in member.findall("param"):
        text = tidy(plain(p.find("type")))
        if p.find("declname") is not None:
            text += ("" if text.endswith(("(&", "(*")) else " ") + plain(p.find("declname"))
        text += plain(p.find("array"))
        arguments.append(text + (" = " + tidy(plain(p.find("defval"))) if p.find("defval") is not None else ""))
    before = "static " if member.get("static") == "yes" and "static" not in of else ""
    if member.get("explicit") == "yes" and "explicit" not in of:
        before += "explicit "
    if member.get("virt") in ("virtual", "pure-virtual") and not tail.strip().startswith("override") and "override" not in tail:
        before += "virtual "
    if kind == "friend" and of in ("class", "struct"):
        return ""
    return template_of(member) + before + wrapped((of + " " if of else "") + name, arguments, tail) + ";"


class Reader:
    """Collects what each header declares: by header, entries (line, name, element of the XML)."""

    def __init__(self, folder):
        self.of_header = collections.defaultdict(list)
        self.members = {}  # those of a class, by its full name
        for path in glob.glob(os.path.join(folder, "xml", "*.xml")):
            kind = re.match(r"(class|struct|union|concept|namespace|.*_8(?:h|cuh)\.xml)", os.path.basename(path))
            if not kind:
                continue
            compound = ET.parse(path).getroot().find("compounddef")
            name = plain(compound.find("compoundname"))
            if self.is_private(name) or compound.get("prot") == "private":
                continue
            sections = [m for s in compound.findall("sectiondef") for m in s.findall("memberdef")]
            if compound.get("kind") in ("namespace", "file"):
                for member in sections:
                    is_define = member.get("kind") == "define"
                    if is_define == (compound.get("kind") == "file") and (is_define or not plain(member.find("name")).startswith("@")):
                        full = plain(member.find("name")) if is_define else name + "::" + plain(member.find("name"))
                        if not (is_define and full in ("TAPESTRY_HOST_DEVICE", "TAPESTRY_HIDDEN", "TAPESTRY_HOT_TLS")):
                            self.add(member, full)
            else:
                self.members[name] = [m for m in sections if m.get("prot") != "private" and not plain(m.find("name")).startswith("@")]
                # A nested class stands beside its outer class; a specialization has the documentation of its template.
                if "<" not in name:
                    self.add(compound, name)
        for entries in self.of_header.values():
            entries.sort(key=lambda e: e[0])

    @staticmethod
    def is_private(name):
        return re.search(r"(^|::)(detail|internal|@\d+)(::|$)", name) is not None or name.startswith(("std::", "@"))

    def add(self, element, name):
        location = element.find("location")
        self.of_header[location.get("file")].append((int(location.get("line")), name, element))


def shown(name):
    """The name without the namespace that all names share."""
    return name.removeprefix("tapestry::")


def anchor_of(name):
    return re.sub(r"[^\w:.-]", lambda m: "%x" % ord(m.group()), shown(name))


def block(lines):
    return "```cpp\n%s\n```\n\n" % "\n".join(lines)


def listed(members):
    """Declarations, each with its documentation below it. Members without documentation share a block of code."""
    text, pending = "", []
    for member in members:
        code = declaration(member)
        if not code:
            continue
        about = documentation(member)
        values = [v for v in member.findall("enumvalue") if documentation(v)]
        if pending and (about or values):
            text, pending = text + block(pending), []
        pending.append(code)
        if about or values:
            text += block(pending) + (about + "\n\n" if about else "")
            text += "".join("- `%s`: %s\n" % (plain(v.find("name")), " ".join(documentation(v).split())) for v in values) + "\n"
            pending = []
    return text + (block(pending) if pending else "")


def fields(members):
    """A struct that has variables only, as one block: their documentation becomes comments."""
    lines = []
    for member in members:
        about = " ".join("".join(t for tag in ("briefdescription", "detaileddescription")
                                 for t in member.find(tag).itertext()).split())
        code = "  " + declaration(member)
        while len(about) > WIDTH - 5:
            cut = about.rfind(" ", 0, WIDTH - 5)
            if cut < 0:
                break
            lines.append("  // " + about[:cut])
            about = about[cut + 1:]
            if len(about) <= WIDTH - 5:
                lines.append("  // " + about)
                about = ""
        lines.append(code + ("  // " + about if about and len(code) + len(about) + 4 <= WIDTH else ""))
        if about and not lines[-1].endswith(about):
            lines.insert(-1, "  // " + about)
    return lines


def class_text(reader, name, element):
    bases = [("" if b.get("prot") == "public" else b.get("prot") + " ") + shown(tidy(plain(b))) for b in element.findall("basecompoundref")]
    if element.get("kind") == "concept":
        return block([re.sub(r"\s+", " ", plain(element.find("initializer"))) + ";"]) + documentation(element) + "\n\n"
    head = template_of(element) + element.get("kind") + " " + shown(name).split("::")[-1] + (" : " + ", ".join(bases) if bases else "")
    members = sorted(reader.members[name], key=lambda m: int(m.find("location").get("line")))
    about = documentation(element)
    about = about + "\n\n" if about else ""
    if members and all(m.get("kind") == "variable" for m in members):
        return about + block([head + " {"] + fields(members) + ["};"])
    return block([head]) + about + listed(members)


def file_comment(text):
    """The comment below #pragma once, as one paragraph for each block of lines."""
    found = re.match(r"\s*#pragma once\n((?://(?!/).*\n)+)", text)
    if not found:
        return ""
    lines = [line[2:].strip() for line in found.group(1).splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    parts = []
    for paragraph in paragraphs:
        spans = re.split(r"(`[^`]*`)", " ".join(paragraph.split()))
        parts.append("".join(s if s.startswith("`") else escaped(s) for s in spans))
    return "\n\n".join(parts)


def pages(root, folder):
    """Yields (header, Markdown, names) for each public header. `names` are those of namespaces: (shown name, kind)."""
    reader = Reader(folder)
    for header in public_headers(root):
        with open(os.path.join(root, header), encoding="utf-8") as file:
            about = file_comment(file.read())
        text = "# %s\n\n%s\n\n```cpp\n#include \"tapestry/%s\"\n```\n\n" % (escaped(header), about, header)
        names, previous = [], None
        groups = []
        for _, name, element in reader.of_header.get(header, []):
            if groups and name == previous and element.tag == "memberdef" and element.get("kind") == "function":
                groups[-1][1].append(element)
            else:
                groups.append((name, [element]))
            previous = name
        seen = set()
        for name, elements in groups:
            if name not in seen:
                text += '<a class="name" id="%s"></a>\n\n' % anchor_of(name)
                names.append((shown(name), elements[0].get("kind")))
            seen.add(name)
            text += "## %s\n\n" % escaped(shown(name))
            if elements[0].tag == "compounddef":
                text += class_text(reader, name, elements[0])
            else:
                text += listed(elements)
        yield header, text, names
