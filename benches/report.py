"""What `decode.py` writes: a Markdown table of engines side by side, and a plot of c(M)."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

Figures = Mapping[str, float]

TITLES = {"specrs": "specrs", "llama-cpp": "llama.cpp", "openvino": "OpenVINO"}


def table(measured: Mapping[str, Figures], rows: Sequence[tuple[str, bool]]) -> str:
    """Lay figures out, by engine and name; a ratio above 1 is in favour of specrs.

    Args:
        measured: by engine; a figure may be missing.
        rows: names of the figures, and of each whether more is better.
    """
    others = [engine for engine in measured if engine != "specrs"]
    heads = ["", TITLES["specrs"]]
    for engine in others:
        heads += [TITLES[engine], "ratio"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for name, more_is_better in rows:
        ours = measured["specrs"].get(name)
        cells = [name, _number(ours)]
        for engine in others:
            theirs = measured[engine].get(name)
            ratio = ours / theirs if ours and theirs else None
            if ratio and not more_is_better:
                ratio = 1 / ratio
            cells += [_number(theirs), "—" if ratio is None else f"{ratio:.2f}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def plot(curves: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> bool:
    """Draw c(M) by model and engine beside the line c = M; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 4), squeeze=False)
    for axes, (model, engines) in zip(row[0], curves.items(), strict=True):
        for engine, curve in engines.items():
            axes.plot(list(curve), list(curve.values()), marker="o", label=TITLES[engine])
        counts = sorted({count for curve in engines.values() for count in curve})
        axes.plot(counts, counts, color="grey", linestyle=":", label="M single forwards")
        axes.set(title=model, xlabel="M, rows in one forward", ylabel="c(M)")
        axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return True
