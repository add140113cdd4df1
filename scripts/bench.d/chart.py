"""The chart of ``mount``: a panel for each measure, a bar for each file system, ours in colour."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from figures import Figure

OURS, OTHERS = "#2a6f97", "#c3c9ce"
UNVERIFIED, SLOW = "#89b8d3", "#dfe9ef"
COLOURS = {
    "fffs, fastpath=on,verify=on": OURS,
    "fffs, fastpath=on,verify=off": UNVERIFIED,
    "fffs, fastpath=off,verify=on": SLOW,
    "fffs, fastpath=off,verify=off": SLOW,
}
LABELS = {
    "fffs, fastpath=on,verify=on": "fffs",
    "fffs, fastpath=on,verify=off": "fffs, unverified",
    "fffs, fastpath=off,verify=on": "fffs, no fast path",
    "fffs, fastpath=off,verify=off": "fffs, neither",
}
COLUMNS = 3


def draw(figures: Iterable[Figure], path: Path) -> None:
    """Draw what ``mount`` left among the figures; how path ends says in which format."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise SystemExit("a chart needs matplotlib: .venv/bin/pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "fffs", "svg.fonttype": "path"})
    panels = _panels(figures)
    rows = -(-len(panels) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(11, 2.9 * rows), sharey=False, squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for k, (ax, (title, bars)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        _panel(ax, title, bars, with_names=k % COLUMNS == 0)
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panels(figures: Iterable[Figure]) -> dict[str, list[tuple[str, float]]]:
    """The bars of each measure, as "measure, unit"."""
    panels: dict[str, list[tuple[str, float]]] = {}
    for row in figures:
        measure, colon, name = row.what.partition(": ")
        if row.measure == "mount" and colon:
            panels.setdefault(f"{measure}, {row.unit}", []).append((name.removesuffix(" (not hot)"), row.value))
    return panels


def _panel(ax: Any, title: str, bars: list[tuple[str, float]], with_names: bool) -> None:
    names = [LABELS.get(name, name) for name, _ in bars]
    values = [value for _, value in bars]
    drawn = ax.barh(range(len(bars)), values, color=[COLOURS.get(name, OTHERS) for name, _ in bars], height=0.72)
    ax.bar_label(drawn, [f"{v:,.0f}" if v >= 100 else f"{v:.2f}" for v in values], padding=3, fontsize=8)
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_yticks(range(len(bars)), names if with_names else [""] * len(bars))
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.xaxis.set_visible(False)
    ax.tick_params(left=False)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
