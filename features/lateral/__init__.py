"""Maximum-likelihood fit of the lateral distributions: station model, minimiser, compiled and CUDA kernels."""
