#!/usr/bin/env python3
"""screenshot.py SCREEN.ansi PICTURE.svg "COMMAND": draws a terminal that shows a screen of the tests, colours and all.

The picture is text: it needs no font of its own, scales, and has light and dark.
"""
import re
import sys
from html import escape

# Classes of the codes that src/plugin/text.rs writes.
CODES = {"1": "title", "2": "faint", "31": "bad", "32": "good", "33": "care"}
STYLE = """
svg { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.paper { fill: #ffffff; stroke: #d0d7de } .bar { fill: #f6f8fa } text { fill: #1f2328; white-space: pre }
.title { font-weight: bold } .faint { fill: #59636e } .bad { fill: #cf222e } .good { fill: #1a7f37 } .care { fill: #9a6700 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117; stroke: #3d444d } .bar { fill: #151b23 } text { fill: #f0f6fc }
  .faint { fill: #9198a1 } .bad { fill: #ff7b72 } .good { fill: #3fb950 } .care { fill: #d29922 }
}
"""
LINE, CHARACTER, MARGIN, BAR = 19, 8.43, 16, 30


def spans(line):
    """Pieces of a line with the column at which each begins, so that no font moves a table."""
    column, tone, made = 0, "", []
    for part in re.split(r"(\x1b\[\d+m)", line):
        code = re.fullmatch(r"\x1b\[(\d+)m", part)
        if code:
            tone = CODES.get(code[1], "")
            continue
        for word in re.finditer(r"\S+(?: \S+)*", part):
            x = MARGIN + (column + word.start()) * CHARACTER
            length = len(word[0]) * CHARACTER
            mark = f' class="{tone}"' if tone else ""
            made.append(f'<tspan x="{x:.1f}" textLength="{length:.1f}"{mark}>{escape(word[0])}</tspan>')
        column += len(part)
    return "".join(made)


def main(screen, picture, command):
    with open(screen, encoding="utf-8") as file:
        lines = [f"\x1b[2m$\x1b[0m {command}"] + file.read().rstrip("\n").split("\n")
    longest = max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines)
    width, height = longest * CHARACTER + 2 * MARGIN, BAR + len(lines) * LINE + 2 * MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img">',
        f"<title>{escape(command)}</title><style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>',
        f'<path class="bar" d="M1 {BAR}V9a8 8 0 0 1 8-8H{width - 9:.0f}a8 8 0 0 1 8 8V{BAR}Z"/>',
    ]
    for number, line in enumerate(lines):
        y = BAR + MARGIN + number * LINE + 10
        drawn.append(f'<text y="{y}">{spans(line)}</text>')
    with open(picture, "w", encoding="utf-8") as file:
        file.write("\n".join(drawn + ["</svg>", ""]))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
