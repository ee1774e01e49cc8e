"""Settings of every test: JAX refuses to mix dtypes or ranks silently."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
