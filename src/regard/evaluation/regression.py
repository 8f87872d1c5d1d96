"""Scores of predicted numbers."""

import numpy as np
from jaxtyping import Float64


def regression_scores(
    found: Float64[np.ndarray, " numbers"], right: Float64[np.ndarray, " numbers"]
) -> dict[str, float]:
    """Return mse, mae, r2 and Pearson's correlation of predictions.

    `r2` is the share of the variance that predictions explain. It is NaN if all targets are equal,
    and the correlation if either side is constant.
    """
    error = found - right
    mse = float((error**2).mean())
    varied, both_varied = np.ptp(right) > 0, np.ptp(right) > 0 and np.ptp(found) > 0
    return {
        "mse": mse,
        "mae": float(np.abs(error).mean()),
        "r2": 1 - mse / float(right.var()) if varied else float("nan"),
        "pearson": float(np.corrcoef(found, right)[0, 1]) if both_varied else float("nan"),
    }
