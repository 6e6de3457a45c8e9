"""Tests that run on the CPU here, and on a GPU too where there is one."""

from __future__ import annotations

import pytest

on_cpu_and_gpu = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
