"""The chart of the figures: a panel for each measure, a bar for each program, those of fffs in colour."""

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
    "fffs, kernel": OURS,
}
MOUNTS = {
    "fffs, fastpath=on,verify=on": "fffs",
    "fffs, fastpath=on,verify=off": "fffs, unverified",
    "fffs, fastpath=off,verify=on": "fffs, no fast path",
    "fffs, fastpath=off,verify=off": "fffs, neither",
    "fffs, kernel": "fffs, kernel",
}
COLUMNS = 3

Panels = dict[str, dict[str, float]]


def draw(figures: Iterable[Figure], path: Path) -> None:
    """Draw all comparisons. The ending of path determines the format."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit("--plot needs matplotlib: .venv/bin/pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = _panels(figures)
    if not panels:
        raise SystemExit(f"{path}: not drawn: no measure had a comparison")
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "fffs", "svg.fonttype": "path"})
    columns = min(COLUMNS, -(-len(panels) // 2)) if len(panels) > COLUMNS else len(panels)
    rows = -(-len(panels) // columns)
    height = 0.8 + 0.26 * max(map(len, panels.values()))
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, height * rows), squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    names: list[str] = []
    for k, (ax, (title, bars)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        # Neighbouring panels in a row with the same bars share their labels.
        named = k % columns == 0 or list(bars) != names
        names = list(bars)
        _panel(ax, title, bars, named)
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panels(figures: Iterable[Figure]) -> Panels:
    """Return the bars of each panel. Figures are named "MEASURE: NAME", "MEASURE, against NAME" or "MEASURE / NAME"."""
    panels: Panels = {}
    for row in figures:
        measure, colon, name = row.what.partition(": ")
        if row.measure == "mount":
            if colon:
                name = name.partition(" (not ")[0]
                panels.setdefault(f"{measure}, {row.unit}", {})[MOUNTS.get(name, name)] = row.value
        elif row.baseline is not None and row.measure != "forms":  # forms compares fffs only with itself
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
