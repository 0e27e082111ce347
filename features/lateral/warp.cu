// One warp an event: the preamble of every kernel.
//
// Lanes share the stations; sums go through warp shuffles, so all lanes hold the same totals and take the same branches.
// Compiled as plain C++ (LANES = 1) a kernel runs on a CPU: so its numbers are tested without a GPU.

#ifdef __CUDACC__
#define LANES 32
#define ON_DEVICE __device__ __forceinline__
#define SYNCHRONISE __syncwarp()
#define NAN __int_as_float(0x7fc00000)
#define INFINITY __int_as_float(0x7f800000)
ON_DEVICE float total(float x) {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
ON_DEVICE float largest(float x) {
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
#else
#include <cmath>
#define LANES 1
#define ON_DEVICE inline
#define SYNCHRONISE
ON_DEVICE float total(float x) { return x; }
ON_DEVICE float largest(float x) { return x; }
using std::fmaxf; using std::fminf;
#endif

#define EACH(k, n) for (int k = lane; k < n; k += LANES)

// A kernel: all lanes do `call` for each `event`; they share `z` of type Shared.
#ifdef __CUDACC__
#define FOR_EVENTS(name, arguments, Shared, call) \
    extern "C" __global__ void name arguments { \
        __shared__ Shared of_warps[WARPS]; \
        Shared &z = of_warps[threadIdx.x / LANES]; \
        const int lane = threadIdx.x % LANES, event = blockIdx.x * WARPS + threadIdx.x / LANES; \
        if (event < n_events) call; \
    }
#else
#define FOR_EVENTS(name, arguments, Shared, call) \
    extern "C" void name arguments { \
        static Shared z; \
        const int lane = 0; \
        for (int event = 0; event < n_events; event++) call; \
    }
#endif
