"""How far one set of logits is from another, by position, and the report that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np
import numpy.typing as npt


def check_heat_map(path: str | Path) -> None:
    """Raise ValueError if no image can be written to `path`, or matplotlib is not installed."""
    path = Path(path)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"the heat map {path} must end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise ValueError(f"the heat map {path} needs the folder {path.parent}; make it first")
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(
            "the heat map needs matplotlib; install it with `pip install matplotlib`"
        ) from None


@dataclass(frozen=True)
class Bucket:
    """How far the sparse logits are from the exact ones at positions `start` to `stop` - 1.

    Attributes:
        kl_mean: Mean divergence KL(exact || sparse), in nats.
        kl_max: Largest one.
        top1: Share of positions with the same most likely token.
        dense_loss: Mean negative log-likelihood of the next token of the prompt, exact.
        sparse_loss: The same, sparse; the quotient of perplexities is exp of the difference.
    """

    start: int
    stop: int
    kl_mean: float
    kl_max: float
    top1: float
    dense_loss: float
    sparse_loss: float


@dataclass(frozen=True)
class Report:
    """The result of `specrs.attention.compare`.

    Attributes:
        attention: The pattern as it prints.
        buckets: Fidelity by position; the first of them starts at 0.
        kept: Share of queries for which a block's values counted, [layers, blocks, blocks], query
            block first.
        windowed: Layers that see only a window of positions, exactly, whatever the pattern.
        dense_seconds: Time of the exact prefill.
        sparse_seconds: Time of the sparse one.
        dense_tokens: First greedy tokens after the exact prefill.
        sparse_tokens: First greedy tokens after the sparse one.
    """

    attention: str
    buckets: list[Bucket]
    kept: npt.NDArray[np.float32]
    windowed: list[int]
    dense_seconds: float
    sparse_seconds: float
    dense_tokens: list[int]
    sparse_tokens: list[int]

    @property
    def density(self) -> list[float]:
        """Share of all blocks up to the diagonal whose values counted, by layer."""
        blocks = self.kept.shape[1]
        return [float(layer.sum()) / (blocks * (blocks + 1) / 2) for layer in self.kept]

    @property
    def kl_mean(self) -> float:
        """Mean divergence over all positions, in nats."""
        return self._mean([bucket.kl_mean for bucket in self.buckets])

    @property
    def top1(self) -> float:
        """Share of all positions with the same most likely token."""
        return self._mean([bucket.top1 for bucket in self.buckets])

    @property
    def speedup(self) -> float:
        """Time of the exact prefill over that of the sparse one."""
        return self.dense_seconds / self.sparse_seconds

    @property
    def same_tokens(self) -> int:
        """How many greedy tokens are the same before the first difference."""
        pairs = zip(self.dense_tokens, self.sparse_tokens, strict=True)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(self.dense_tokens))

    def save_heat_map(self, path: str | Path) -> None:
        """Draw the kept blocks, mean of all layers, as an image; errors as of `check_heat_map`."""
        check_heat_map(path)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 6), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(self.kept.mean(0), vmin=0, vmax=1, cmap="viridis")
        axes.set(xlabel="block of keys", ylabel="block of queries")
        axes.set_title("\n".join(wrap(self.attention, 60)), fontsize="small")
        figure.colorbar(image, label="share of queries for which its values count")
        figure.savefig(path, dpi=150)

    def _mean(self, values: list[float]) -> float:
        weights = [bucket.stop - bucket.start for bucket in self.buckets]
        return float(np.average(values, weights=weights))

    def __str__(self) -> str:
        lines = [
            f"{self.attention}",
            f"{'positions':>15} {'KL mean':>10} {'KL max':>9} {'top-1':>8} "
            f"{'perplexity':>10} {'sparse':>10}",
        ]
        for bucket in self.buckets:
            dense, sparse = np.exp(bucket.dense_loss), np.exp(bucket.sparse_loss)
            lines.append(
                f"{bucket.start:>7}-{bucket.stop - 1:<7} {bucket.kl_mean:>10.6f} "
                f"{bucket.kl_max:>9.4f} {bucket.top1:>8.2%} {dense:>10.4f} {sparse:>10.4f}"
            )
        chosen = [d for layer, d in enumerate(self.density) if layer not in self.windowed]
        layers = " ".join(f"{density:.0%}" for density in chosen)
        if min(chosen) == 1:
            lines.append("nothing was left out: the pattern is exact up to this length")
        lines += [
            f"mean KL {self.kl_mean:.6f} nats, same top-1 {self.top1:.2%}",
            f"density {np.mean(chosen):.1%}; by layer: {layers}",
        ]
        if self.windowed:
            lines.append(f"{len(self.windowed)} other layers see a window of positions, exactly")
        lines += [
            f"prefill {self.dense_seconds:.2f} s exact, {self.sparse_seconds:.2f} s sparse: "
            f"{self.speedup:.2f}x",
            f"greedy tokens: the first {self.same_tokens} of {len(self.dense_tokens)} are the same",
        ]
        return "\n".join(lines)


def differences(
    exact: npt.NDArray[np.float32], got: npt.NDArray[np.float32], following: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return KL, equal top-1, and both losses (nan without a following token), [rows, 4]."""
    out = np.full((len(exact), 4), np.nan)
    # A row at a time stays in the processor's cache, where hundreds of a large vocabulary do not.
    for row, pair in enumerate(zip(exact, got, strict=True)):
        p, q = (_log_softmax(logits) for logits in pair)
        out[row, :2] = np.exp(p) @ (p - q), p.argmax() == q.argmax()
        if row < len(following):
            out[row, 2:] = -p[following[row]], -q[following[row]]
    return out


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def buckets(rows: npt.NDArray[np.float64]) -> list[Bucket]:
    """Sum up the `differences` of all positions by buckets from 0, 512, 1024, 2048 and so on."""
    starts = [0]
    while (following := max(512, 2 * starts[-1])) < len(rows):
        starts.append(following)
    return [_bucket(rows, start) for start in starts]


def _bucket(rows: npt.NDArray[np.float64], start: int) -> Bucket:
    stop = min(max(512, 2 * start), len(rows))
    kl, same, dense, sparse = rows[start:stop].T
    return Bucket(
        start=start,
        stop=stop,
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1=float(same.mean()),
        dense_loss=float(np.nanmean(dense)) if stop - start > 1 else float("nan"),
        sparse_loss=float(np.nanmean(sparse)) if stop - start > 1 else float("nan"),
    )
