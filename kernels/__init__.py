"""Shipped kernels, one a file: the kernel, its float64 reference and its cases."""
