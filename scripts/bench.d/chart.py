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
SHADES = (OTHERS, "#9db4c0", UNVERIFIED, "#5f94b4", OURS)

Panels = dict[str, dict[str, float]]
Lines = dict[str, list[tuple[float, float]]]
"""The points of each line, by its name."""


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit("--plot needs matplotlib: .venv/bin/pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "fffs", "svg.fonttype": "path"})
    return pyplot


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw(figures: Iterable[Figure], path: Path) -> None:
    """Draw all comparisons. The ending of path determines the format."""
    pyplot = _pyplot()
    panels = _panels(figures)
    if not panels:
        raise SystemExit(f"{path}: not drawn: no measure had a comparison")
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
    _save(figure, path)


def draw_lines(panels: dict[str, tuple[Lines, bool]], x: str, path: Path) -> None:
    """Draw lines over a logarithmic x axis with that name. panels: of each title, the lines, and whether the y axis is
    logarithmic, too. The colours go from light to dark.
    """
    figure, axes = _pyplot().subplots(1, len(panels), figsize=(11, 3.6), squeeze=False)
    for ax, (title, (lines, logarithmic)) in zip(axes.flat, panels.items(), strict=True):
        for k, (name, points) in enumerate(lines.items()):
            colour = SHADES[k * (len(SHADES) - 1) // max(len(lines) - 1, 1)]
            ax.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.8)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        if logarithmic:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:,.0f}")
        else:
            ax.set_ylim(0, 1.05)
        ax.set_title(title, loc="left", fontsize=10)
        ax.set_xlabel(x)
        ax.legend(frameon=False, fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


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
