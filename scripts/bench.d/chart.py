"""The chart of what was measured: a panel for each measure, a bar for each way to do it, ours in colour."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from figures import Figure

OURS, UNVERIFIED, WITHIN, OTHERS = "#2a6f97", "#89b8d3", "#dfe9ef", "#c3c9ce"
COLOURS = {
    "fffs": OURS,
    "fffs, unverified": UNVERIFIED,
    "fffs, torch's loader": UNVERIFIED,
    "fffs, no fast path": WITHIN,
    "fffs, neither": WITHIN,
}
MOUNTS = {
    "fffs, fastpath=on,verify=on": "fffs",
    "fffs, fastpath=on,verify=off": "fffs, unverified",
    "fffs, fastpath=off,verify=on": "fffs, no fast path",
    "fffs, fastpath=off,verify=off": "fffs, neither",
}
COLUMNS = 3

Panels = dict[str, dict[str, float]]


def draw(figures: Iterable[Figure], path: Path) -> None:
    """Draw all figures that have something to be compared with; how path ends says in which format."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit("a chart needs matplotlib: .venv/bin/pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = _panels(figures)
    if not panels:
        raise SystemExit(f"{path}: not drawn: nothing was measured that others do as well")
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "fffs", "svg.fonttype": "path"})
    columns = min(COLUMNS, -(-len(panels) // 2)) if len(panels) > COLUMNS else len(panels)
    rows = -(-len(panels) // columns)
    height = 0.8 + 0.26 * max(map(len, panels.values()))
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, height * rows), squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    names: list[str] = []
    for k, (ax, (title, bars)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        # The panels of a row that has the same bars throughout share their names.
        named = k % columns == 0 or list(bars) != names
        names = list(bars)
        _panel(ax, title, bars, named)
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panels(figures: Iterable[Figure]) -> Panels:
    """The bars of each panel: a row is called "measure: one way of many" or "measure, against another"."""
    panels: Panels = {}
    for row in figures:
        measure, colon, name = row.what.partition(": ")
        if row.measure == "mount":
            if colon:
                name = name.partition(" (not ")[0]
                panels.setdefault(f"{measure}, {row.unit}", {})[MOUNTS.get(name, name)] = row.value
        elif row.baseline is not None and row.measure != "forms":  # those are all ours
            for separator in (" / ", ", against "):
                measure, _, name = row.what.partition(separator)
                if name:
                    break
            bars = panels.setdefault(f"{measure}, {row.unit}", {})
            bars.setdefault("fffs", row.value)
            bars[name or row.against] = row.baseline
    return panels


def _panel(ax: Any, title: str, bars: dict[str, float], named: bool) -> None:
    values = list(bars.values())
    drawn = ax.barh(range(len(bars)), values, color=[COLOURS.get(name, OTHERS) for name in bars], height=0.72)
    ax.bar_label(drawn, [f"{v:,.0f}" if v >= 100 else f"{v:.2f}" for v in values], padding=3, fontsize=8)
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_yticks(range(len(bars)), list(bars) if named else [""] * len(bars))
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.xaxis.set_visible(False)
    ax.tick_params(left=False)
    ax.spines[:].set_visible(False)
