"""A table for a terminal of which nothing is lost, however narrow it is."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


class WholeTable(Table):
    """A table of which no cell is cut: where its words do not fit the screen its rows are stacked, a line a cell."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its rows as lines."""
        if Measurement.get(console, options.update(max_width=1000), self).minimum <= options.max_width:
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
