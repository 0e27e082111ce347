#!/usr/bin/env bash
# as_processor.sh KIND COMMAND...: runs a command as on another processor: KIND is avx2 (most laptops and desktops) or sse (old or emulated ones).
# Each library that computes has a variable of its own. Compiled kernels are kept apart by processor.
set -euo pipefail
kind=$1; shift
case $kind in
  avx2) export NUMBA_CPU_NAME=haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Haswell
        lacking="X86_V4 AVX512_ICL AVX512_SPR" ;;
  sse)  export NUMBA_CPU_NAME=generic ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=SSE4_2 OPENBLAS_CORETYPE=Nehalem
        lacking="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" ;;
  *) echo "KIND is avx2 or sse"; exit 2 ;;
esac
# NumPy refuses to disable what this processor, or its own version, does not have.
known=""
for feature in $lacking; do
  if NPY_DISABLE_CPU_FEATURES=$feature "${PYTHON:-.venv/bin/python}" -W error -c "import numpy" 2>/dev/null; then known="$known $feature"; fi
done
if [ -n "$known" ]; then export NPY_DISABLE_CPU_FEATURES="${known# }"; fi
exec "$@"
