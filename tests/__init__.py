"""Tests of kbjax, and what they share: an oracle, comparisons, random kernels."""
