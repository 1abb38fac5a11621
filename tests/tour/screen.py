"""A small terminal: it understands what the tour's programs write, and draws itself as SVG.

It knows printable text, the usual control characters, and of the escape sequences those that
move the cursor, erase, scroll and colour. Whatever else comes is skipped, never shown.
"""

import re
import unicodedata
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

# The 16 colours, the background and the text, chosen to be read on light and dark pages.
COLOURS = [
    "#45475a", "#f38ba8", "#a6e3a1", "#f9e2af", "#89b4fa", "#cba6f7", "#94e2d5", "#bac2de",
    "#7f849c", "#f38ba8", "#a6e3a1", "#f9e2af", "#89b4fa", "#cba6f7", "#94e2d5", "#ffffff",
]  # fmt: skip
TEXT, BACKGROUND, BAR, TITLE = "#cdd6f4", "#1e1e2e", "#313244", "#9399b2"

# Sizes in pixels. A character of the fonts below is 0.6 em wide; `textLength` holds other fonts to it.
SIZE, WIDE, HIGH, PAD, HEAD, GAP = 14, 8.4, 19, 14, 30, 16
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

ESCAPE = re.compile(
    r"\x1b(?:\[(?P<args>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])|\](?P<osc>[^\x07\x1b]*)(?:\x07|\x1b\\)|[ -/]*[0-~])"
)


@dataclass(frozen=True)
class Style:
    """How a character looks."""

    fore: str = ""
    back: str = ""
    bold: bool = False
    dim: bool = False
    italic: bool = False
    under: bool = False
    struck: bool = False
    inverse: bool = False


PLAIN = Style()
FLAGS = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "inverse", 9: "struck"}


class Screen:
    """What a terminal of so many columns and rows shows."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines = [self.blank() for _ in range(rows)]
        self.x = self.y = 0
        self.style = PLAIN
        self.rest = ""  # the beginning of a sequence whose end has not come yet
        self.marks = []  # what operating system commands said

    def blank(self):
        return [(" ", PLAIN)] * self.columns

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
            elif found := ESCAPE.match(text, at):
                self.act(found)
                at = found.end()
            else:
                self.rest = text[at:]
                return

    def put(self, char):
        if char == "\n":
            self.down()
        elif char == "\r":
            self.x = 0
        elif char == "\b":
            self.x = max(0, self.x - 1)
        elif char == "\t":
            self.x = min(self.columns - 1, (self.x // 8 + 1) * 8)
        elif char >= " " and char != "\x7f":
            width = cells(char)
            if self.x + width > self.columns:
                self.x = 0
                self.down()
            self.lines[self.y][self.x : self.x + width] = [(char, self.style)] + [("", self.style)] * (width - 1)
            self.x += width

    def down(self):
        self.y += 1
        if self.y == self.rows:
            self.lines = [*self.lines[1:], self.blank()]
            self.y -= 1

    def act(self, found):
        if found["osc"] is not None:
            self.marks.append(found["osc"])
        if found["final"] is None or found["args"][:1] in ("?", ">", "<", "="):
            return
        given = [int(part) if part else 0 for part in re.split("[;:]", found["args"])]
        count = max(1, given[0])
        match found["final"]:
            case "m":
                self.colour(given)
            case "A":
                self.y = max(0, self.y - count)
            case "B" | "E":
                self.y = min(self.rows - 1, self.y + count)
                self.x = 0 if found["final"] == "E" else self.x
            case "C":
                self.x = min(self.columns - 1, self.x + count)
            case "D":
                self.x = max(0, self.x - count)
            case "G":
                self.x = min(self.columns, count) - 1
            case "H" | "f":
                self.y = min(self.rows, count) - 1
                self.x = min(self.columns, max(1, given[1] if len(given) > 1 else 1)) - 1
            case "K":
                begin, end = [(self.x, self.columns), (0, self.x + 1), (0, self.columns)][given[0]]
                self.lines[self.y][begin:end] = [(" ", PLAIN)] * (end - begin)
            case "J":
                if given[0] == 0:
                    self.lines[self.y][self.x :] = [(" ", PLAIN)] * (self.columns - self.x)
                begin = self.y + 1 if given[0] == 0 else 0
                end = self.y if given[0] == 1 else self.rows
                for line in range(begin, end):
                    self.lines[line] = self.blank()

    def colour(self, given):
        while given:
            code = given.pop(0)
            if code == 0:
                self.style = PLAIN
            elif code in FLAGS:
                self.style = replace(self.style, **{FLAGS[code]: True})
            elif code == 22:
                self.style = replace(self.style, bold=False, dim=False)
            elif code - 20 in FLAGS:
                self.style = replace(self.style, **{FLAGS[code - 20]: False})
            elif 30 <= code < 50 or 90 <= code < 108:
                side = "back" if 40 <= code < 50 or code >= 100 else "fore"
                self.style = replace(self.style, **{side: named(code, given)})

    def text(self):
        """The lines as they are read, without the empty ones below."""
        return "\n".join("".join(char for char, _ in line).rstrip() for line in self.lines).rstrip("\n")

    def used(self):
        """How many lines have something on them."""
        return self.text().count("\n") + 1


def cells(char):
    """How many columns a character takes."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def named(code, given):
    """The colour that a code means, with what follows it for 256 and all colours."""
    if code >= 90:
        return COLOURS[code % 10 + 8]
    if code % 10 < 8:
        return COLOURS[code % 10]
    if code % 10 == 9 or not given:
        return ""
    if given.pop(0) == 2:
        red, green, blue = (given.pop(0) for _ in range(3))
        return f"#{red:02x}{green:02x}{blue:02x}"
    number = given.pop(0)
    if number < 16:
        return COLOURS[number]
    if number >= 232:
        return f"#{8 + 10 * (number - 232):02x}" + f"{8 + 10 * (number - 232):02x}" * 2
    steps = [0, 95, 135, 175, 215, 255]
    number -= 16
    return "#" + "".join(f"{steps[step]:02x}" for step in (number // 36, number // 6 % 6, number % 6))


def runs(line):
    """A line as (column, text, style, columns), one for each stretch that looks the same."""
    column = 0
    found = []
    for char, style in line:
        # A run ends where a character of another font may stand, so that nothing behind it moves.
        if found and found[-1][2] == style and char.isascii() and found[-1][1].isascii():
            found[-1][1] += char
            found[-1][3] += 1
        elif char:
            found.append([column, char, style, cells(char)])
        column += 1
    return [run for run in found if run[1].strip() or run[2].back or run[2].inverse or run[2].under]


def attributes(style):
    """How SVG says it; the colour of the text, and that behind it."""
    fore, back = style.fore or TEXT, style.back
    if style.inverse:
        fore, back = back or BACKGROUND, fore
    said = f' fill="{fore}"' if fore != TEXT else ""
    said += ' font-weight="700"' if style.bold else ""
    said += ' opacity="0.6"' if style.dim else ""
    said += ' font-style="italic"' if style.italic else ""
    lines = " ".join(name for name, on in (("underline", style.under), ("line-through", style.struck)) if on)
    return said + (f' text-decoration="{lines}"' if lines else ""), back


def window(screen, title, left, top, rows):
    """One terminal as SVG, and how wide and high it is."""
    wide, high = screen.columns * WIDE + 2 * PAD, HEAD + rows * HIGH + 2 * PAD - 4
    out = [
        f'<g transform="translate({left:g} {top:g})">',
        f'<rect width="{wide:g}" height="{high:g}" rx="8" fill="{BACKGROUND}" stroke="{BAR}"/>',
        f'<path d="M0 {HEAD}V8a8 8 0 0 1 8-8H{wide - 8:g}a8 8 0 0 1 8 8V{HEAD}z" fill="{BAR}"/>',
        *(f'<circle cx="{18 + 18 * n}" cy="15" r="5.5" fill="{COLOURS[c]}"/>' for n, c in enumerate((1, 3, 2))),
        f'<text x="{wide / 2:g}" y="20" fill="{TITLE}" text-anchor="middle">{escape(title)}</text>',
    ]
    for row, line in enumerate(screen.lines[:rows]):
        y = HEAD + PAD + row * HIGH
        for column, text, style, width in runs(line):
            said, back = attributes(style)
            x = PAD + column * WIDE
            if back:
                out.append(f'<rect x="{x:g}" y="{y:g}" width="{width * WIDE:g}" height="{HIGH}" fill="{back}"/>')
            shown = text.rstrip() if not style.under else text
            if shown:
                length = f' textLength="{len(shown) * WIDE:g}"' if shown.isascii() and len(shown) > 1 else ""
                out.append(f'<text x="{x:g}" y="{y + 14:g}"{length}{said}>{escape(shown)}</text>')
    return [*out, "</g>"], wide, high


def draw(windows, label):
    """An SVG of terminals, one below the other: `windows` has (screen, title, rows to show)."""
    body, top, widest = [], 0, 0
    for screen, title, rows in windows:
        drawn, wide, high = window(screen, title, 0.5, top + 0.5, rows)
        body += drawn
        top += high + GAP
        widest = max(widest, wide)
    wide, high = widest + 1, top - GAP + 1
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}"'
        f' role="img" aria-label="{escape(label)}" font-family="{FONT}" font-size="{SIZE}" fill="{TEXT}"'
        ' xml:space="preserve">\n' + "\n".join(body) + "\n</svg>\n"
    )
