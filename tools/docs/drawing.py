"""SVG pictures: rectangles, lines, text and grids of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

INK, GREY, PALE, BLUE, ORANGE, GREEN, RED = (
    "#24292f",
    "#6e7781",
    "#eef1f5",
    "#3b63c9",
    "#d9822b",
    "#2f8f5b",
    "#c0392b",
)
CELL = 17


def shade(value: float, colour: tuple[int, int, int] = (59, 99, 201)) -> str:
    """A colour between almost white (0) and the full colour (1)."""
    value = min(1.0, max(0.0, value))
    white = (238, 241, 245)
    mixed = (round(a + (b - a) * value) for a, b in zip(white, colour, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


class Drawing:
    """Parts of a picture in pixels, from the top left corner."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.size = (round(width), round(height))
        self.title = title
        self.parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "none",
        stroke: str = "none",
        tip: str = "",
        round_: float = 1,
    ) -> None:
        hint = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}" '
            f'fill="{fill}" stroke="{stroke}">{hint}</rect>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        anchor: str = "start",
        fill: str = INK,
        bold: bool = False,
        code: bool = False,
        turn: bool = False,
    ) -> None:
        family = "ui-monospace, monospace" if code else "system-ui, sans-serif"
        more = ' font-weight="600"' if bold else ""
        more += f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{fill}" font-family="{family}"{more}>{escape(text)}</text>'
        )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        stroke: str = GREY,
        width: float = 1,
        dashes: str = "",
        arrow: bool = False,
    ) -> None:
        at = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        more += ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(
            f'<polyline points="{at}" fill="none" stroke="{stroke}" '
            f'stroke-width="{width:g}"{more}/>'
        )

    def grid(
        self,
        x: float,
        y: float,
        rows: int,
        columns: int,
        fill: Callable[[int, int], str],
        cell: float = CELL,
        tip: Callable[[int, int], str] | None = None,
    ) -> None:
        """Cells [rows, columns] with a gap of one pixel."""
        for i in range(rows):
            for j in range(columns):
                self.rect(
                    x + j * cell,
                    y + i * cell,
                    cell - 1,
                    cell - 1,
                    fill(i, j),
                    tip=tip(i, j) if tip else "",
                )

    def svg(self) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(self.title)}">'
            f"<title>{escape(self.title)}</title>"
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker>'
            f'</defs><rect width="{width}" height="{height}" rx="4" fill="#ffffff"/>'
        )
        return head + "".join(self.parts) + "</svg>\n"
