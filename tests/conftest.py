"""Settings of every test: JAX refuses to mix dtypes or ranks silently, and a property
has no deadline (the machine may be busy)."""

import jax
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("kbjax", deadline=None)
settings.load_profile("kbjax")
