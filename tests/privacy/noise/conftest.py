"""Failures of the shared checks show their values, as in a test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("privacy.noise_cases")
