"""A table for a terminal of which nothing is lost, however narrow it is."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


class WholeTable(Table):
    """A table of which no cell is cut: where its words do not fit the screen its rows are stacked, a line a cell."""

    def _needed(self, console: Console, options: ConsoleOptions) -> int:
        """Return the least width: columns that may be broken as narrow as their longest word, others as they are."""
        wide = options.update(max_width=1000)
        width = Measurement.get(console, wide, self).maximum
        for column in self.columns:
            if not column.no_wrap:
                cells = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
                width -= max(cell.maximum for cell in cells) - max(cell.minimum for cell in cells)
        return width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its rows as lines."""
        if self._needed(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        heads = [str(column.header).replace("\n", " ") for column in self.columns]
        width = max(map(len, heads[1:]), default=0)
        yield Text(f"{self.title or ''}\n")
        for first, *others in zip(*(column.cells for column in self.columns), strict=True):
            yield Text(f"{heads[0]} {first}".strip())
            for head, cell in zip(heads[1:], others, strict=True):
                if cell:
                    yield Text(f"  {head:{width}}  {cell}")
        if self.caption:
            yield Text(f"\n{self.caption}")
