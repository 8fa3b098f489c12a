"""Line charts as SVG text, to see whether a curve is level. Pure functions without dependencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 360, 64, 20, 40, 48
TICKS = 5
COLOURS = ("#1f6fb2", "#c2571a", "#3d8b4b", "#7a4fa3")


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def nice_step(span: float) -> float:
    """A round step that cuts a span into about `TICKS` parts."""
    rough = max(span, 1e-9) / TICKS
    power: float = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    return next(step * power for step in (1, 2, 5, 10, 20, 50) if step * power >= rough)


def chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """A chart whose vertical axis starts at zero, so that slopes are not exaggerated."""
    xs = [x for one in series for x, _ in one.points] or [0.0, 1.0]
    ys = [y for one in series for _, y in one.points] or [0.0, 1.0]
    right, top = max(xs), max(ys) * 1.1 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / (right or 1.0)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    step, y = nice_step(top), 0.0
    while y <= top:
        at = place(0, y)[1]
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
        y += step
    step, x = nice_step(right), 0.0
    while x <= right:
        at = place(x, 0)[0]
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,.0f}</text>')
        x += step
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text x="{LEFT - 48}" y="{TOP - 6}">{escape(y_label)}</text>')
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in (place(*point) for point in one.points))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        legend = WIDTH - RIGHT - 180 * (len(series) - index)
        parts.append(f'<text x="{legend}" y="22" fill="{colour}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
