"""Synthetic rows by SmartNoise's MST, from a CSV file of whole numbers, written to another; epsilon is an argument."""

from __future__ import annotations

import json
import sys
import warnings

import pandas as pd
from snsynth.mst import MSTSynthesizer

warnings.filterwarnings("ignore")
source, target, epsilon = sys.argv[1], sys.argv[2], float(sys.argv[3])
frame = pd.read_csv(source)
model = MSTSynthesizer(epsilon=epsilon)
model.fit(frame, categorical_columns=list(frame))
model.sample(len(frame)).astype(int).to_csv(target, index=False)
print(json.dumps({"epsilon": epsilon, "delta": float(model.delta)}))
