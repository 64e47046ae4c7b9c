"""Nanoseconds of CPU time for one draw of diffprivlib's discrete mechanisms, as JSON."""

from __future__ import annotations

import json
import sys
import time

from diffprivlib.mechanisms import GaussianDiscrete, Geometric

figures = {}
for scale in map(float, sys.argv[1:]):
    gaussian = GaussianDiscrete(epsilon=1.0, delta=1e-6, sensitivity=1)
    gaussian._scale = scale
    for kind, mechanism in (("laplace", Geometric(epsilon=1 / scale, sensitivity=1)), ("gaussian", gaussian)):
        start, draws = time.process_time(), 0
        while time.process_time() - start < 1:
            mechanism.randomise(0)
            draws += 1
        figures[f"{kind} {scale:g}"] = (time.process_time() - start) / draws * 1e9
print(json.dumps(figures))
