"""Two small SVG pictures, drawn by hand: bars in groups, and lines over time or rank."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 64, 16, 46, 52
COLOURS = ("#31688e", "#e07b39", "#35b779", "#7a5195", "#888888", "#c0392b")
TEXT = 'font-family="sans-serif" font-size="12"'


def nice(top):
    """The first round number that is not below."""
    step = 10 ** (len(str(int(top))) - 1) if top >= 1 else 0.1
    for factor in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10):
        if step * factor >= top:
            return step * factor
    return top


def number(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


class Picture:
    """A frame with a title, a legend and a y axis from 0 to top."""

    def __init__(self, title, unit, top, names):
        self.top = nice(top)
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="18" {TEXT} font-weight="bold">{escape(title)}</text>',
            f'<text x="{LEFT - 8}" y="{TOP - 8}" {TEXT} text-anchor="end" fill="#555">{escape(unit)}</text>',
        ]  # fmt: skip
        for i in range(5):
            value = self.top * i / 4
            y = self.y(value)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.text(LEFT - 8, y + 4, number(value), "end")
        x = LEFT
        for i, name in enumerate(names):
            self.parts.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.text(x + 14, 35, name, "start")
            x += 26 + 7 * len(name)

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, self.top) / self.top

    def text(self, x, y, words, anchor="middle"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {TEXT} text-anchor="{anchor}" fill="#333">{escape(words)}</text>')

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([*self.parts, "</svg>"]) + "\n")


def bars(path, title, unit, names, groups):
    """groups: (label, [value for each name])."""
    top = max((value for _, values in groups for value in values if value), default=1)
    picture = Picture(title, unit, top * 1.05, names)
    room = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    for place, (label, values) in enumerate(groups):
        bar = room * 0.7 / len(names)
        for i, value in enumerate(values):
            if value is None:
                continue
            x, y = LEFT + room * (place + 0.15) + bar * i, picture.y(value)
            picture.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                                 f'fill="{COLOURS[i % len(COLOURS)]}"/>')  # fmt: skip
            picture.text(x + bar * 0.45, y - 3, number(value))
        for line, words in enumerate(label.split("\n")):
            picture.text(LEFT + room * (place + 0.5), HEIGHT - BOTTOM + 16 + 14 * line, words)
    picture.write(path)


def lines(path, title, unit, below, series, ticks, shade=None):
    """series: (name, [(x, y)]); ticks: (x, label); shade: (from, to, label) along x."""
    points = [point for _, some in series for point in some]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    picture = Picture(title, unit, max(y for _, y in points) * 1.1, [name for name, _ in series])
    at = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * (x - low) / ((high - low) or 1)
    if shade:
        begin, end = (max(LEFT, min(at(x), WIDTH - RIGHT)) for x in shade[:2])
        picture.parts.insert(3, f'<rect x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
                                'fill="#f3ead7"/>')  # fmt: skip
        picture.text((begin + end) / 2, TOP + 14, shade[2])
    for i, (_, some) in enumerate(series):
        path_data = " ".join(f"{at(x):.1f},{picture.y(y):.1f}" for x, y in some)
        picture.parts.append(
            f'<polyline points="{path_data}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"/>')
    for x, label in ticks:
        picture.text(at(x), HEIGHT - BOTTOM + 16, label)
    picture.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, below)
    picture.write(path)
