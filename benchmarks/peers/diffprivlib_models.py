"""Linear or logistic regression by diffprivlib at epsilon 1 for single rows; predictions or coefficients as JSON."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression

warnings.filterwarnings("ignore")
kind, path, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = np.load(path)
results = []
for seed in range(repeats):
    if kind == "linear":
        low, high = data["bounds"]
        model = LinearRegression(
            epsilon=1.0, bounds_X=(low[:-1], high[:-1]), bounds_y=(low[-1], high[-1]), random_state=seed
        )
        model.fit(data["x"], data["y"])
        results.append([float(model.intercept_), *map(float, model.coef_)])
    else:
        norm = float(np.linalg.norm(np.abs(data["x"]).max(axis=0)))
        model = LogisticRegression(epsilon=1.0, data_norm=norm, random_state=seed)
        model.fit(data["x"], data["y"])
        results.append(float(model.score(data["x_test"], data["y_test"])))
print(json.dumps(results))
